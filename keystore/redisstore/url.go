package redisstore

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What a URL can say. A server of its own has one of the first two or a path,
// sentinels and clusters the others, each of which is also there over TLS:
//
//	redis://[user:password@]host[:port][/db]
//	unix://[user:password@]/path/to/socket[?db=n]
//	redis+sentinel://[sentinel's user:password@]host[:port][/db]?master_name=m[&addr=host:port…][&username=…&password=…]
//	redis+cluster://[user:password@]host[:port][?addr=host:port…]
//
// Parameters are those of the Redis client, as far as they have an effect here.
var parameters = []string{
	"db", "addr", "master_name", "username", "password", "client_name", "protocol", "skip_verify",
	"pool_size", "pool_fifo", "min_idle_conns", "max_idle_conns", "max_concurrent_dials",
	"conn_max_idle_time", "conn_max_lifetime",
}

// Errors about a URL don't say what is in it: a part that was parsed wrongly may
// be a part of the password.
var (
	errScheme = errors.New("the URL has to begin with redis://, rediss:// (TLS) or unix://, redis+sentinel:// or rediss+sentinel://, " +
		"redis+cluster:// or rediss+cluster://; write one such as redis://host:6379")
	errURL = errors.New("the URL can't be parsed; write one such as redis://user:password@host:6379/0, " +
		"with special characters in user and password percent-encoded, and no parameters but those of the Redis client")
	errParameters = errors.New("the URL has a parameter that has no effect here; those that have are " + strings.Join(parameters, ", "))
	errMaster     = errors.New("the URL of sentinels has to say which servers they watch; " +
		"write one such as redis+sentinel://host:26379?master_name=mymaster")
	errClusterPath = errors.New("the URL of a cluster has no path: there is no database but 0")
)

// CheckURL reports what is wrong with a URL, without saying what is in it.
func CheckURL(url string) error {
	servers, _, err := parseURL(url)
	if err != nil {
		return err
	}
	return servers.check()
}

// parseURL returns where the servers are, and how the client is to be tuned.
func parseURL(text string) (servers Servers, tuning redis.UniversalOptions, err error) {
	scheme, rest, _ := strings.Cut(text, "://")
	plain, kind, _ := strings.Cut(scheme, "+")
	text = plain + "://" + rest
	switch {
	case scheme == "unix", (plain == "redis" || plain == "rediss") && (scheme == plain || kind == "sentinel" || kind == "cluster"):
	default:
		return servers, tuning, errScheme
	}
	u, err := url.Parse(text)
	if err != nil {
		return servers, tuning, errURL
	}
	for name := range u.Query() {
		if !slices.Contains(parameters, name) {
			return servers, tuning, errParameters
		}
	}
	switch kind {
	case "sentinel":
		servers, tuning, err = parseSentinelURL(text)
	case "cluster":
		if strings.Trim(u.Path, "/") != "" {
			return servers, tuning, errClusterPath
		}
		servers, tuning, err = parseClusterURL(text)
	default:
		servers, tuning, err = parseServerURL(text)
	}
	return servers, tuning, err
}

func parseServerURL(text string) (servers Servers, tuning redis.UniversalOptions, err error) {
	o, err := redis.ParseURL(text)
	if err != nil {
		return servers, tuning, errURL
	}
	servers = Servers{
		Addresses: []string{o.Addr}, Username: o.Username, Password: o.Password, Database: o.DB, TLS: o.TLSConfig,
	}
	tuning = redis.UniversalOptions{
		ClientName: o.ClientName, Protocol: o.Protocol, PoolSize: o.PoolSize, PoolFIFO: o.PoolFIFO,
		MinIdleConns: o.MinIdleConns, MaxIdleConns: o.MaxIdleConns, MaxConcurrentDials: o.MaxConcurrentDials,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
	}
	return servers, tuning, nil
}

func parseSentinelURL(text string) (servers Servers, tuning redis.UniversalOptions, err error) {
	o, err := redis.ParseFailoverURL(text)
	if err != nil {
		return servers, tuning, errURL
	}
	if o.MasterName == "" {
		return servers, tuning, errMaster
	}
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = "" // it is the first sentinel's; every server is asked for its own
	}
	servers = Servers{
		Addresses: sentinelPorts(text, o.SentinelAddrs), Master: o.MasterName,
		SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
		Username: o.Username, Password: o.Password, Database: o.DB, TLS: o.TLSConfig,
	}
	tuning = redis.UniversalOptions{
		ClientName: o.ClientName, Protocol: o.Protocol, PoolSize: o.PoolSize, PoolFIFO: o.PoolFIFO,
		MinIdleConns: o.MinIdleConns, MaxIdleConns: o.MaxIdleConns, MaxConcurrentDials: o.MaxConcurrentDials,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
	}
	return servers, tuning, nil
}

// sentinelPorts gives the first address the port that sentinels have, where the
// URL says none.
func sentinelPorts(text string, addresses []string) []string {
	if u, err := url.Parse(text); err == nil && u.Port() == "" {
		if host, _, err := net.SplitHostPort(addresses[0]); err == nil {
			addresses[0] = net.JoinHostPort(host, "26379")
		}
	}
	return addresses
}

func parseClusterURL(text string) (servers Servers, tuning redis.UniversalOptions, err error) {
	o, err := redis.ParseClusterURL(text)
	if err != nil {
		return servers, tuning, errURL
	}
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = "" // as with sentinels
	}
	servers = Servers{
		Addresses: o.Addrs, Cluster: true, Username: o.Username, Password: o.Password, TLS: o.TLSConfig,
	}
	tuning = redis.UniversalOptions{
		ClientName: o.ClientName, Protocol: o.Protocol, PoolSize: o.PoolSize, PoolFIFO: o.PoolFIFO,
		MinIdleConns: o.MinIdleConns, MaxIdleConns: o.MaxIdleConns, MaxConcurrentDials: o.MaxConcurrentDials,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
	}
	return servers, tuning, nil
}

func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if n, e := strconv.Atoi(port); err != nil || e != nil || host == "" || n < 1 || n > 65535 {
		return errors.New("an address has to be host:port, such as redis-1:6379, or the path of a unix socket")
	}
	return nil
}
