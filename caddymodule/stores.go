package caddymodule

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

const storesNamespace = "http.handlers.idempotency.stores"

// redisLog takes what the Redis client would otherwise print by itself, such as
// each connection that it could not make. What matters of that comes back as the
// error of a call.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, v ...any) {
	slog.New(currentLog{}).DebugContext(ctx, "redis client", slog.String("message", fmt.Sprintf(format, v...)))
}

func init() { redis.SetLogger(redisLog{}) }

// RedisStore keeps the records in Redis or Valkey. Any number of gateways can
// share one server, and then a key holds on all of them.
type RedisStore struct {
	// Where the server is: `redis://[user:password@]host[:port][/db]`,
	// `rediss://…` for TLS, or `unix://[user:password@]/path/to/socket[?db=n]`.
	// Special characters in user and password are percent-encoded.
	// Placeholders such as `{env.REDIS_URL}` or `{file./run/secrets/redis}` are
	// replaced when the configuration is loaded.
	URL string `json:"url"`

	url string // with its placeholders replaced
}

// CaddyModule returns the Caddy module information.
func (*RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  storesNamespace + ".redis",
		New: func() caddy.Module { return new(RedisStore) },
	}
}

// UnmarshalCaddyfile sets up the store from Caddyfile tokens:
//
//	redis <url>
func (s *RedisStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	args := d.RemainingArgs()
	if len(args) != 1 {
		return d.Errf("store redis: takes the server's URL and nothing else; write `store redis redis://host:6379` or `store redis {env.REDIS_URL}`")
	}
	s.URL = args[0]
	if !hasPlaceholder(s.URL) {
		if err := checkRedisURL(s.URL); err != nil {
			return d.WrapErr(err)
		}
	}
	if d.NextBlock(d.Nesting()) {
		return d.Errf("store redis: has no options of its own; remove the block")
	}
	return nil
}

// Provision resolves the URL. It opens nothing.
func (s *RedisStore) Provision(caddy.Context) (err error) {
	if s.url, err = resolve("store redis", s.URL); err != nil {
		return err
	}
	return checkRedisURL(s.url)
}

func checkRedisURL(url string) error {
	if err := redisstore.CheckURL(url); err != nil {
		return fmt.Errorf("store redis: %w", err)
	}
	return nil
}

// Settings implements StoreOpener.
func (s *RedisStore) Settings() string { return s.url }

// Open implements StoreOpener.
func (s *RedisStore) Open(*slog.Logger) (keystore.Store, error) {
	store, err := redisstore.Open(redisstore.Options{URL: s.url})
	if err != nil {
		return nil, err
	}
	return store, nil
}

// BoltStore keeps the records in one file on this machine. One process can have
// the file open at a time. What was recorded is on the disk before anything is
// built on it, so that it survives a crash.
type BoltStore struct {
	// The file. It is created if need be, with its directory. A relative path
	// starts at the working directory; placeholders such as `{env.STATE_DIR}`
	// are replaced when the configuration is loaded. Default: `idempotency.db`
	// in Caddy's data directory.
	Path string `json:"path,omitempty"`

	path string // absolute, with its placeholders replaced
}

// CaddyModule returns the Caddy module information.
func (*BoltStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  storesNamespace + ".bolt",
		New: func() caddy.Module { return new(BoltStore) },
	}
}

// UnmarshalCaddyfile sets up the store from Caddyfile tokens:
//
//	bolt [<path>]
func (s *BoltStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	args := d.RemainingArgs()
	switch {
	case len(args) > 1:
		return d.Errf("store bolt: takes the path of a file and nothing else; write `store bolt /var/lib/caddy/idempotency.db`, or `store bolt` for a file in Caddy's data directory")
	case len(args) == 1 && args[0] == "":
		return d.Errf("store bolt: the path is empty; leave it out for a file in Caddy's data directory")
	case len(args) == 1:
		s.Path = args[0]
	}
	if d.NextBlock(d.Nesting()) {
		return d.Errf("store bolt: has no options of its own; remove the block")
	}
	return nil
}

// Provision resolves the path. It opens nothing.
func (s *BoltStore) Provision(caddy.Context) (err error) {
	if s.Path == "" {
		s.path = filepath.Join(caddy.AppDataDir(), "idempotency.db")
		return nil
	}
	path, err := resolve("store bolt", s.Path)
	if err != nil {
		return err
	}
	if s.path, err = filepath.Abs(path); err != nil {
		return fmt.Errorf("store bolt: find the working directory that the path is relative to: %w", err)
	}
	return nil
}

// Settings implements StoreOpener.
func (s *BoltStore) Settings() string { return s.path }

// Open implements StoreOpener.
func (s *BoltStore) Open(log *slog.Logger) (keystore.Store, error) {
	store, err := boltstore.Open(s.path, boltstore.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	return store, nil
}

// locator is a StoreOpener that can tell what place it opens, however the settings
// spell that.
type locator interface{ location() string }

// locationOf returns the place that an opener opens.
func locationOf(o StoreOpener) storeKey {
	key := keyOf(o)
	if l, ok := o.(locator); ok {
		key.settings = l.location()
	}
	return key
}

// location leaves out who comes, and how.
func (s *RedisStore) location() string {
	o, err := redis.ParseURL(s.url)
	if err != nil {
		return s.url // of which Provision has complained
	}
	addr := strings.ToLower(o.Addr)
	if o.Network == "unix" {
		addr = realPath(o.Addr)
	}
	return fmt.Sprintf("%s %s %d", o.Network, addr, o.DB)
}

func (s *BoltStore) location() string { return realPath(s.path) }

// realPath returns a path without symbolic links, as far as it exists.
func realPath(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	dir := filepath.Dir(path)
	if dir == path {
		return path
	}
	return filepath.Join(realPath(dir), filepath.Base(path))
}

// resolve replaces the placeholders of a setting. The error names only the
// placeholder, since what is around it may be secret.
func resolve(option, setting string) (string, error) {
	value, err := caddy.NewReplacer().ReplaceOrErr(setting, true, true)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w; is the environment variable or file that it stands for there?", option, err)
	case value == "":
		return "", fmt.Errorf("%s: nothing is given where the store is", option)
	}
	return value, nil
}

// hasPlaceholder reports whether a setting has one, of whatever name.
func hasPlaceholder(setting string) bool {
	_, err := caddy.NewEmptyReplacer().ReplaceOrErr(setting, false, true)
	return err != nil
}

// Interface guards
var (
	_ StoreOpener           = (*RedisStore)(nil)
	_ locator               = (*RedisStore)(nil)
	_ locator               = (*BoltStore)(nil)
	_ caddy.Provisioner     = (*RedisStore)(nil)
	_ caddyfile.Unmarshaler = (*RedisStore)(nil)
	_ StoreOpener           = (*BoltStore)(nil)
	_ caddy.Provisioner     = (*BoltStore)(nil)
	_ caddyfile.Unmarshaler = (*BoltStore)(nil)
)
