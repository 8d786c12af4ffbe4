package boltstore

import (
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestSteadyClock(t *testing.T) {
	t.Parallel()
	start := time.UnixMilli(1_000_000)
	var elapsed, wall time.Duration
	now := steady(start, func() (time.Duration, time.Duration) { return elapsed, wall })
	for i, step := range []struct{ elapsed, wall, want time.Duration }{
		{0, 0, 0},
		{1 * time.Second, 1 * time.Second, 1 * time.Second},
		{2 * time.Second, -time.Hour, 2 * time.Second},                          // set back: goes on
		{3 * time.Second, -time.Hour + time.Second, 3 * time.Second},            //
		{4 * time.Second, time.Hour, time.Hour},                                 // set forward: follows
		{5 * time.Second, 5 * time.Second, time.Hour + time.Second},             // set right: stays ahead
		{2 * time.Hour, 2*time.Hour + time.Minute, 3*time.Hour - 4*time.Second}, //
		{3 * time.Hour, 10 * time.Hour, 10 * time.Hour},                         //
		{3*time.Hour + time.Second, 10*time.Hour + time.Second, 10*time.Hour + time.Second},
	} {
		elapsed, wall = step.elapsed, step.wall
		if got, want := now(), keystore.TimeOf(start.Add(step.want)); got != want {
			t.Errorf("step %d: got %v, want %v", i, got.Std(), want.Std())
		}
	}
}
