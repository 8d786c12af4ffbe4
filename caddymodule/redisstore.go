package caddymodule

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// redisLog takes what the Redis client would otherwise print by itself, such as
// each connection that it could not make. What matters of that comes back as the
// error of a call.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, v ...any) {
	slog.New(currentLog{}).DebugContext(ctx, "redis client", slog.String("message", fmt.Sprintf(format, v...)))
}

func init() { redis.SetLogger(redisLog{}) }

// RedisStore keeps the records in Redis or Valkey: on one server, on the primary
// that sentinels name, or in a cluster. Any number of gateways can share it, and then
// a key holds on all of them. Where the servers are is said by `url` or by
// `addresses`; all the rest adds to that.
//
// Placeholders such as `{env.REDIS_URL}` are replaced when the configuration is
// loaded.
type RedisStore struct {
	// One server: `redis://[user:password@]host[:port][/db]`, or
	// `unix://[user:password@]/path/to/socket[?db=n]`. Sentinels:
	// `redis+sentinel://host[:port][/db]?master_name=mymaster&addr=host:port…`,
	// where user and password in the usual place are for the sentinels and the
	// parameters `username` and `password` for the servers. A cluster:
	// `redis+cluster://[user:password@]host[:port][?addr=host:port…]`. With `rediss`
	// instead of `redis`, connections are encrypted. Special characters are
	// percent-encoded; a password has to be a placeholder.
	URL string `json:"url,omitempty"`

	// The server, the sentinels, or some servers of the cluster, each `host:port`; or
	// the path of one server's unix socket.
	Addresses []string `json:"addresses,omitempty"`

	// The addresses are those of sentinels.
	Sentinel *RedisSentinel `json:"sentinel,omitempty"`

	// The addresses are those of a cluster.
	Cluster bool `json:"cluster,omitempty"`

	// Who to be on the servers. Default: the user `default`.
	Username string `json:"username,omitempty"`

	// The password: `{env.NAME}` or `{file./path}`.
	Password string `json:"password,omitempty"`

	// The number of the database. A cluster has only 0. Default: 0.
	Database int `json:"database,omitempty"`

	// How many connections there are at most, to each server of a cluster. Default:
	// ten per CPU, and at least 20.
	PoolSize int `json:"pool_size,omitempty"`

	// Whether small commands of requests that run at the same time share round trips:
	// `on`, or `off` to give each its own. What waits for durability never does.
	// Default: `on`.
	Pipelining string `json:"pipelining,omitempty"`

	// How long one try of a command may take. Default: `1s`.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// What the names of all keys begin with. Gateways that share jobs have the same.
	// Default: `idempotency:`.
	KeyPrefix string `json:"key_prefix,omitempty"`

	// The name of the connections, as `CLIENT LIST` shows it. Default: none.
	ClientName string `json:"client_name,omitempty"`

	// Encrypts the connections.
	TLS *RedisTLS `json:"tls,omitempty"`

	// What claims, commits and resolutions wait for. Default: nothing.
	Durability *RedisDurability `json:"durability,omitempty"`

	options  redisstore.Options // with placeholders replaced
	where    string
	settings string
}

// RedisSentinel says what the sentinels watch.
type RedisSentinel struct {
	// The name that they know the servers by.
	Master string `json:"master"`

	// Who to be on the sentinels themselves. Default: nobody.
	Username string `json:"username,omitempty"`

	// The password for that: `{env.NAME}` or `{file./path}`.
	Password string `json:"password,omitempty"`
}

// RedisTLS says how connections are encrypted.
type RedisTLS struct {
	// A file with the certificates, in PEM, of who has to have signed the servers'.
	// Default: those that the system trusts.
	CA string `json:"ca,omitempty"`

	// Files, in PEM, with the certificate to show and its key.
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`

	// The name that the servers' certificates have to be for. Default: the host that
	// is connected to.
	ServerName string `json:"server_name,omitempty"`
}

// RedisDurability says what has to have a claim, a commit or a resolution before it
// counts. A claim that is not acknowledged in time is not dispatched: 503.
type RedisDurability struct {
	// How many replicas have to have it in their memory.
	Replicas int `json:"replicas,omitempty"`

	// How long to wait for that, at most half of the store's timeout. Default:
	// `100ms`.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// It has to be on the server's disk. A server before Redis 7.2 has to have
	// `appendfsync always` for that.
	Fsync bool `json:"fsync,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  storesNamespace + ".redis",
		New: func() caddy.Module { return new(RedisStore) },
	}
}

// Provision resolves what there is to resolve. It opens nothing.
func (s *RedisStore) Provision(caddy.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	o, err := s.resolved(resolve)
	if err != nil {
		return err
	}
	var files [][]byte
	if s.TLS != nil {
		if o.Servers.TLS, files, err = s.TLS.load(); err != nil {
			return err
		}
	}
	if err := checkRedis(o); err != nil {
		return err
	}
	s.options = o
	if s.where, err = placeOf(o); err != nil {
		return fmt.Errorf("store redis: %w", err)
	}
	// It decides what is shared and stands in maps for long: of all that is secret
	// there is only a digest.
	all, err := json.Marshal(struct {
		Options redisstore.Options
		Name    *RedisTLS
		Files   [][]byte
	}{o, s.TLS, files})
	if err != nil {
		return fmt.Errorf("store redis: %w", err)
	}
	sum := sha256.Sum256(all)
	s.settings = s.where + " " + hex.EncodeToString(sum[:])
	return nil
}

// check reports what can be told without the values of placeholders.
func (s *RedisStore) check() error {
	switch {
	case s.URL == "" && len(s.Addresses) == 0:
		return fmt.Errorf("store redis: nothing is given where the store is; write `store redis redis://host:6379`, or a block with `address host:6379`")
	case s.URL != "" && (len(s.Addresses) > 0 || s.Cluster || s.Sentinel != nil):
		return fmt.Errorf("store redis: the URL says already where the servers are; remove it, or address, sentinel and cluster")
	case s.Pipelining != "" && s.Pipelining != pipeliningOn && s.Pipelining != pipeliningOff:
		return fmt.Errorf("store redis: pipelining %s: must be on or off", s.Pipelining)
	case s.Sentinel != nil && s.Sentinel.Master == "":
		return fmt.Errorf("store redis: sentinel: the name of the master is missing; write `sentinel mymaster`")
	case hasLiteralPassword(s.URL):
		return fmt.Errorf("store redis: the URL has the password itself in it; %s", howToGiveSecrets)
	case s.Password != "" && !secretPlaceholder.MatchString(s.Password):
		return fmt.Errorf("store redis: password: the password itself is in the configuration; %s", howToGiveSecrets)
	case s.Sentinel != nil && s.Sentinel.Password != "" && !secretPlaceholder.MatchString(s.Sentinel.Password):
		return fmt.Errorf("store redis: sentinel_password: the password itself is in the configuration; %s", howToGiveSecrets)
	case s.Database < 0 || s.PoolSize < 0 || s.Timeout < 0:
		return fmt.Errorf("store redis: database, pool_size and timeout must not be negative")
	case s.Timeout > 0 && time.Duration(s.Timeout) < 10*time.Millisecond:
		return fmt.Errorf("store redis: timeout: %s is too short for any answer; write one such as `timeout 1s`", time.Duration(s.Timeout))
	case s.Durability != nil && s.Durability.Replicas <= 0 && !s.Durability.Fsync:
		return fmt.Errorf("store redis: durability: says neither for how many replicas to wait nor for the disk; write `replicas 1`, `fsync`, or both")
	case s.TLS != nil && (s.TLS.Cert == "") != (s.TLS.Key == ""):
		return fmt.Errorf("store redis: tls: cert and key belong together; give both or neither")
	}
	if slices.ContainsFunc(append(slices.Clone(s.Addresses), s.URL, s.KeyPrefix), hasPlaceholder) {
		return nil // the rest has to wait for their values
	}
	o, err := s.resolved(func(_, setting string) (string, error) { return setting, nil })
	if err != nil {
		return err
	}
	if s.TLS != nil {
		o.Servers.TLS = new(tls.Config)
	}
	return checkRedis(o)
}

func checkRedis(o redisstore.Options) error {
	if err := o.Check(); err != nil {
		return fmt.Errorf("store redis: %w", err)
	}
	return nil
}

// hasLiteralPassword reports whether a URL, as it is written, has a password in it
// that is not all a placeholder.
func hasLiteralPassword(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	// Placeholders may have any character in them.
	for {
		before, from, ok := strings.Cut(rest, "{")
		_, after, closed := strings.Cut(from, "}")
		if !ok || !closed {
			break
		}
		rest = before + after
	}
	authority, query, _ := strings.Cut(rest, "?")
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		if _, password, _ := strings.Cut(authority[:i], ":"); password != "" {
			return true
		}
	}
	values, _ := url.ParseQuery(query)
	return values.Get("password") != ""
}

// resolved returns the options, with all placeholders replaced as told.
func (s *RedisStore) resolved(resolve func(option, setting string) (string, error)) (o redisstore.Options, err error) {
	o = redisstore.Options{PoolSize: s.PoolSize, Timeout: time.Duration(s.Timeout), Unshared: s.Pipelining == pipeliningOff}
	o.Servers.Cluster, o.Servers.Database = s.Cluster, s.Database
	o.Servers.Addresses = slices.Clone(s.Addresses)
	if s.Durability != nil {
		o.Durability = redisstore.Durability{
			Replicas: s.Durability.Replicas, Fsync: s.Durability.Fsync, Timeout: time.Duration(s.Durability.Timeout),
		}
	}
	type setting struct {
		option, from string
		to           *string
	}
	all := []setting{
		{"", s.URL, &o.URL},
		{"username", s.Username, &o.Servers.Username},
		{"password", s.Password, &o.Servers.Password},
		{"key_prefix", s.KeyPrefix, &o.Prefix},
		{"client_name", s.ClientName, &o.ClientName},
	}
	if s.Sentinel != nil {
		all = append(all, setting{"sentinel", s.Sentinel.Master, &o.Servers.Master},
			setting{"sentinel_username", s.Sentinel.Username, &o.Servers.SentinelUsername},
			setting{"sentinel_password", s.Sentinel.Password, &o.Servers.SentinelPassword})
	}
	for i := range o.Servers.Addresses {
		all = append(all, setting{"address", s.Addresses[i], &o.Servers.Addresses[i]})
	}
	for _, one := range all {
		if one.from == "" {
			continue
		}
		if *one.to, err = resolve(strings.TrimSuffix("store redis: "+one.option, ": "), one.from); err != nil {
			return o, err
		}
	}
	return o, nil
}

// Settings implements StoreOpener.
func (s *RedisStore) Settings() string { return s.settings }

// Open implements StoreOpener.
func (s *RedisStore) Open(*slog.Logger) (keystore.Store, error) {
	store, err := redisstore.Open(s.options)
	if err != nil {
		return nil, err
	}
	return store, nil
}

// location leaves out who comes, and how.
func (s *RedisStore) location() string { return s.where }

// placeOf returns what these options share with all that lead to the same records.
func placeOf(o redisstore.Options) (string, error) {
	servers, err := o.Where()
	if err != nil {
		return "", err
	}
	kind := "server"
	switch {
	case servers.Cluster:
		kind = "cluster"
	case servers.Master != "":
		kind = "sentinel " + servers.Master
	}
	addresses := slices.Clone(servers.Addresses)
	for i, addr := range addresses {
		if strings.HasPrefix(addr, "/") {
			addresses[i] = realPath(addr)
		} else {
			addresses[i] = strings.ToLower(addr)
		}
	}
	slices.Sort(addresses)
	prefix := o.Prefix
	if prefix == "" {
		prefix = redisstore.DefaultPrefix
	}
	return fmt.Sprintf("%s %s %d %s", kind, strings.Join(slices.Compact(addresses), ","), servers.Database, prefix), nil
}

// Interface guards
var (
	_ StoreOpener       = (*RedisStore)(nil)
	_ locator           = (*RedisStore)(nil)
	_ caddy.Provisioner = (*RedisStore)(nil)
)
