// Package storetest holds what every [keystore.Store] has to pass: one
// conformance suite that takes the promises of the interface one by one, and a
// check that histories of concurrent claims are linearizable.
//
// A store's own tests call both with a function that makes an empty backend:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, newBackend)
//	}
//
//	func TestLinearizable(t *testing.T) {
//		storetest.Linearizable(t, newBackend, storetest.Load{})
//	}
package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Backend is one empty place where records are kept, and what a test needs to
// do to it behind the store's back.
type Backend struct {
	// Open returns a store on this backend. Every call stands for another
	// gateway. A store that only one process can have may return the same one
	// again. The stores are closed at the test's end by whoever made them, with
	// t.Cleanup; closing one twice does no harm.
	Open func(t testing.TB) keystore.Store

	// Advance lets d pass on the backend's clock, so that records expire and
	// Now of every open store moves on. The suite asks for at most a few seconds
	// in all, since some backends can only sleep.
	Advance func(d time.Duration)

	// Garble puts raw bytes where the record of this name stands.
	Garble func(t testing.TB, name keystore.Name, raw []byte)
}

// Run checks every promise of [keystore.Store]. It asks for a new backend for
// each of its subtests, which run in parallel.
func Run(t *testing.T, newBackend func(t testing.TB) Backend) {
	t.Helper()
	for _, c := range slices.Concat(createTests, swapTests, manyTests, expiryTests, corruptTests, indexTests, scanTests,
		watchTests, lifeTests, bodyTests, keptTests, raceTests, throughMany(swapTests, expiryTests, corruptTests, bodyTests, keptTests, raceTests)) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, newBackend(t))
		})
	}
}

// Load says how much a run of [Linearizable] does. The zero value is a run of
// about a second.
type Load struct {
	// Clients is how many goroutines claim at the same time; each of them uses a
	// store of its own. Default 8.
	Clients int
	// Keys is how many jobs they fight for. Default 12.
	Keys int
	// Operations is how many operations each client does. Default 120.
	Operations int
	// Seed makes the choice of operations repeatable. Default 1.
	Seed uint64
	// Timeout bounds each call of the store. Default 5 s.
	Timeout time.Duration
}

// Linearizable lets concurrent clients claim, commit, mark as unknown and
// resolve jobs through the state machine and the store, and checks that what
// they were told is what one store that does one thing at a time could have
// told them. Operations that ended in an error may or may not have happened.
//
// It also counts how often a claim was told to run: more than once per key
// without a failure or cancellation in between is an error of its own.
func Linearizable(t *testing.T, newBackend func(t testing.TB) Backend, load Load) {
	t.Helper()
	b := newBackend(t)
	if err := check(record(t, b, load.withDefaults())); err != nil {
		t.Error(err)
	}
}
