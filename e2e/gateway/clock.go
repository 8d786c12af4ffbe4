package main

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
)

func init() { caddy.RegisterModule(clockedStore{}) }

// clockedStore is the embedded store with a clock that a test can move. The store
// on Redis needs none: its clock is the server's.
type clockedStore struct {
	Path  string `json:"path"`
	Clock string `json:"clock"` // the file that says how many nanoseconds it is ahead
}

// CaddyModule implements caddy.Module.
func (clockedStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.idempotency.stores.clocked", New: func() caddy.Module { return new(clockedStore) }}
}

// UnmarshalCaddyfile implements caddyfile.Unmarshaler.
func (s *clockedStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if !d.Args(&s.Path, &s.Clock) {
		return d.ArgErr()
	}
	return nil
}

// Settings implements caddymodule.StoreOpener.
func (s *clockedStore) Settings() string { return s.Path + "\n" + s.Clock }

// Open implements caddymodule.StoreOpener.
func (s *clockedStore) Open(log *slog.Logger) (keystore.Store, error) {
	if _, err := s.ahead(); err != nil {
		return nil, err
	}
	return boltstore.Open(s.Path, boltstore.Options{Logger: log, Clock: func() time.Time {
		ahead, err := s.ahead()
		if err != nil {
			panic(err) // a test that removes its clock has a bug
		}
		return time.Now().Add(ahead)
	}})
}

func (s *clockedStore) ahead() (time.Duration, error) {
	raw, err := os.ReadFile(s.Clock)
	if err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	if len(raw) != 8 {
		return 0, fmt.Errorf("the clock's file has %d bytes", len(raw))
	}
	return time.Duration(binary.NativeEndian.Uint64(raw)), nil
}
