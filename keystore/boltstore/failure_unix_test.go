//go:build unix

package boltstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// A mapped file that is cut short faults when it is read. That must not end the
// process.
func TestFileCutShort(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jobs.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	if err := os.Truncate(path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), j.Name); !errors.Is(err, keystore.ErrUnavailable) {
		t.Errorf("get: %v", err)
	}
	for range 2 {
		if _, _, err := s.Create(t.Context(), j); !errors.Is(err, keystore.ErrUnavailable) {
			t.Errorf("create: %v", err)
		}
	}
	_ = s.Close() // with whatever it has to say
}
