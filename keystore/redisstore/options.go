package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// DefaultPrefix begins the name of every key and channel, where
// [Options.Prefix] says nothing else.
const DefaultPrefix = "idempotency:"

// DefaultTimeout is how long one try may take, where [Options.Timeout] says
// nothing else.
const DefaultTimeout = time.Second

// Options says where the records are and how to reach them.
type Options struct {
	// URL is where the server is, or the servers are; see [Servers]. What is given
	// besides it adds to what it says.
	URL string

	// Servers says the same without a URL.
	Servers Servers

	// ClientName is the name of the connections on the server.
	ClientName string

	// Prefix begins the name of every key and of the channel. Gateways that
	// share records have the same one. Default [DefaultPrefix].
	Prefix string

	// PoolSize is how many connections there are at most, to each server of a
	// cluster. Default ten per CPU that Go uses, and at least 20.
	PoolSize int

	// Timeout is how long one try of a command may take, its connecting
	// included. A call whose context does not end it before can take as many
	// times that as there are tries. Default [DefaultTimeout].
	Timeout time.Duration

	// Unshared lets every command make a round trip of its own. Otherwise the small
	// ones of requests that run at the same time share theirs, which costs both sides
	// less. What waits for durability always goes alone.
	Unshared bool

	// Durability is what writes wait for.
	Durability Durability

	// Resends is how often a command that got no definite answer is sent again
	// before the call fails. Default 2; negative: never.
	Resends int

	// ClientRetries lets the Redis client repeat commands below this package as
	// well. Nothing becomes wrong by it, but the store can no longer say that a
	// write was certainly not applied. Default 0: it does not.
	ClientRetries int
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	o.Durability = o.Durability.withDefaults(o.Timeout)
	switch {
	case o.Resends == 0:
		o.Resends = 2
	case o.Resends < 0:
		o.Resends = 0
	}
	return o
}

// CheckPrefix reports what is wrong with a prefix.
func CheckPrefix(prefix string) error {
	if strings.ContainsAny(prefix, "{}") {
		return errors.New("the prefix must not contain { or }: in a cluster, what stands between them decides which server has a key, and then one had them all")
	}
	return nil
}

// Check reports what is wrong with the options.
func (o Options) Check() error {
	_, _, err := o.withDefaults().client()
	return err
}

// Where returns where the records are, as the URL and the options say it together.
func (o Options) Where() (Servers, error) {
	servers, _, err := o.servers()
	return servers, err
}

// client returns the options of the Redis client, and where it has to connect to.
func (o Options) client() (Servers, *redis.UniversalOptions, error) {
	servers, opt, err := o.servers()
	if err != nil {
		return servers, nil, err
	}
	if err := CheckPrefix(o.Prefix); err != nil {
		return servers, nil, err
	}
	if err := o.Durability.check(o.Timeout); err != nil {
		return servers, nil, err
	}
	if o.ClientName != "" {
		opt.ClientName = o.ClientName
	}
	if o.PoolSize > 0 {
		opt.PoolSize = o.PoolSize
	}
	if opt.PoolSize <= 0 {
		opt.PoolSize = max(20, 10*runtime.GOMAXPROCS(0))
	}
	// Version 2 of the protocol says all that is needed here, and spares looking
	// for pushed messages around every command.
	if opt.Protocol == 0 {
		opt.Protocol = 2
	}
	opt.MaxRetries = -1
	if o.ClientRetries > 0 {
		opt.MaxRetries = o.ClientRetries
	}
	opt.ContextTimeoutEnabled = true
	opt.ReadTimeout = o.Timeout
	opt.WriteTimeout = o.Timeout
	// Waiting for a connection and making one have to fail before the try does:
	// then it is known that nothing was sent.
	opt.PoolTimeout = o.Timeout / 2
	opt.DialTimeout = o.Timeout / 2
	opt.DialerRetries = 1
	opt.PipelinePoolSize = -1 // pipelines are rare here: they share the pool
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return servers, opt, nil
}

// Servers says where the records are: on one server, on the primary that
// sentinels know of, or on the masters of a cluster.
type Servers struct {
	// Addresses (host:port) are the server's, those of some sentinels, or those of
	// some servers of the cluster, from which the others are learnt. A single
	// server can also have the path of a unix socket.
	Addresses []string

	// Master is the name that the sentinels at these addresses know the servers
	// by. SentinelUsername and SentinelPassword are for the sentinels themselves.
	Master                             string
	SentinelUsername, SentinelPassword string

	// Cluster says that these addresses are a cluster's.
	Cluster bool

	Username, Password string
	// Database is its number; a cluster has but one.
	Database int

	// TLS is how to encrypt connections, also those to sentinels; nil: they are
	// not. Where it names no server, the certificate has to be for the address.
	TLS *tls.Config `json:"-"`
}

// check reports what contradicts itself, for whoever has not come by a URL.
func (s Servers) check() error {
	switch {
	case len(s.Addresses) == 0:
		return errors.New("no address is given; write one such as host:6379")
	case s.Cluster && s.Master != "":
		return errors.New("servers are a cluster or have sentinels, not both")
	case s.Cluster && s.Database != 0:
		return errors.New("a cluster has no database but 0")
	case !s.Cluster && s.Master == "" && len(s.Addresses) > 1:
		return errors.New("several addresses need to be a cluster's or those of sentinels")
	case s.Master == "" && s.SentinelUsername+s.SentinelPassword != "":
		return errors.New("credentials for sentinels need the name of the master that they watch")
	}
	for _, addr := range s.Addresses {
		if strings.HasPrefix(addr, "/") && !s.Cluster && s.Master == "" {
			continue
		}
		if err := checkAddress(addr); err != nil {
			return err
		}
	}
	return nil
}

// servers returns where the servers are, by URL or without.
func (o Options) servers() (Servers, *redis.UniversalOptions, error) {
	servers, opt := o.Servers, new(redis.UniversalOptions)
	if o.URL != "" || len(servers.Addresses) == 0 {
		var err error
		var tuning redis.UniversalOptions
		if servers, tuning, err = parseURL(o.URL); err != nil {
			return servers, nil, err
		}
		if err := servers.add(o.Servers); err != nil {
			return servers, nil, err
		}
		opt = &tuning
	}
	if err := servers.check(); err != nil {
		return servers, nil, err
	}
	opt.Addrs, opt.MasterName, opt.IsClusterMode = servers.Addresses, servers.Master, servers.Cluster
	opt.Username, opt.Password, opt.DB = servers.Username, servers.Password, servers.Database
	opt.SentinelUsername, opt.SentinelPassword = servers.SentinelUsername, servers.SentinelPassword
	opt.TLSConfig = servers.TLS
	return servers, opt, nil
}

// add adds to what a URL says what was given besides it.
func (s *Servers) add(o Servers) error {
	if len(o.Addresses) > 0 || o.Cluster || o.Master != "" {
		return errors.New("the URL says already where the servers are")
	}
	for what, both := range map[string][2]bool{
		"username":              {s.Username != "", o.Username != ""},
		"password":              {s.Password != "", o.Password != ""},
		"username of sentinels": {s.SentinelUsername != "", o.SentinelUsername != ""},
		"password of sentinels": {s.SentinelPassword != "", o.SentinelPassword != ""},
		"database":              {s.Database != 0, o.Database != 0},
	} {
		if both[0] && both[1] {
			return fmt.Errorf("the %s is given twice, in the URL and besides it", what)
		}
	}
	if o.TLS != nil && s.TLS == nil {
		return errors.New("the URL says that connections are not encrypted; let it begin with rediss://, rediss+sentinel:// or rediss+cluster://")
	}
	s.Username += o.Username
	s.Password += o.Password
	s.SentinelUsername += o.SentinelUsername
	s.SentinelPassword += o.SentinelPassword
	s.Database += o.Database
	if o.TLS != nil {
		config := o.TLS.Clone()
		config.InsecureSkipVerify = config.InsecureSkipVerify || s.TLS.InsecureSkipVerify
		if config.ServerName == "" && !s.Cluster && s.Master == "" {
			config.ServerName = s.TLS.ServerName
		}
		s.TLS = config
	}
	return nil
}
