package caddymodule

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
)

const storesNamespace = "http.handlers.idempotency.stores"

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
	_ locator               = (*BoltStore)(nil)
	_ StoreOpener           = (*BoltStore)(nil)
	_ caddy.Provisioner     = (*BoltStore)(nil)
	_ caddyfile.Unmarshaler = (*BoltStore)(nil)
)
