package boltstore

import (
	"sync/atomic"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// newClock returns the store's clock: the given one, or the system's without
// its steps back.
func newClock(given func() time.Time) func() keystore.Time {
	if given != nil {
		return func() keystore.Time { return keystore.TimeOf(given()) }
	}
	start := time.Now()
	return steady(start, func() (elapsed, wall time.Duration) {
		now := time.Now()
		return now.Sub(start), now.Round(0).Sub(start.Round(0))
	})
}

// steady returns a clock that runs with elapsed, which never steps, and is
// moved forward, never back, to follow the wall clock. Both are counted from
// start.
func steady(start time.Time, read func() (elapsed, wall time.Duration)) func() keystore.Time {
	var ahead atomic.Int64 // how far the wall clock has been stepped forward
	return func() keystore.Time {
		elapsed, wall := read()
		for {
			known := ahead.Load()
			step := max(known, int64(wall-elapsed))
			if step == known || ahead.CompareAndSwap(known, step) {
				return keystore.TimeOf(start.Add(elapsed + time.Duration(step)))
			}
		}
	}
}
