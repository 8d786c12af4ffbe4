package boltstore

import (
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, newBackend)
}

func TestLinearizable(t *testing.T) {
	t.Parallel()
	storetest.Linearizable(t, newBackend, storetest.Load{})
}

// newBackend returns a backend of one process: all its gateways share a store.
func newBackend(t testing.TB) storetest.Backend {
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now, idleEvery: 10 * time.Millisecond})
	return storetest.Backend{
		Open:    func(testing.TB) keystore.Store { return s },
		Advance: clock.Advance,
		Garble:  func(t testing.TB, name keystore.Name, raw []byte) { garble(t, s, name, raw) },
	}
}
