package proxy

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Leases that have ended are found without anybody asking, also by several
// gateways side by side.
func TestSweeper(t *testing.T) {
	bubble(t, Config{Lease: 10 * time.Second, Timeout: time.Hour}, func(t *testing.T, f *fixture) {
		f.serve = func(_ http.ResponseWriter, r *http.Request) error {
			<-r.Context().Done()
			return io.ErrUnexpectedEOF
		}
		go f.do(request{})
		time.Sleep(3 * time.Second) // it is in the index by then
		f.gateway.Close()           // no more signs of life
		others := []*fixture{newFixtureOn(t, f.store, f.route.Config), newFixtureOn(t, f.store, f.route.Config)}
		time.Sleep(25 * time.Second)
		a := f.mem.job().LastAttempt()
		if a.State != keystore.AttemptUnknown || a.Reason != keystore.ReasonLapsed {
			t.Errorf("attempt is %s: %s", a.State, a.Reason)
		}
		if n := others[0].incs.told(EventOutcomeUnknown) + others[1].incs.told(EventOutcomeUnknown); n != 1 {
			t.Errorf("told %d times", n)
		}
		for _, o := range others {
			o.gateway.Close()
		}
		for a := range f.gateway.attempts {
			a.cancel(errStopped)
		}
	})
}

// A job whose gateway died before it had entered it into the index is found by
// the slow sweep.
func TestSlowSweep(t *testing.T) {
	bubble(t, Config{Lease: 10 * time.Second}, func(t *testing.T, f *fixture) {
		if _, created, err := f.store.Create(t.Context(), f.claimed(keystore.NewToken())); !created || err != nil {
			t.Fatal(created, err)
		}
		indexed := func() int {
			f.mem.mu.Lock()
			defer f.mem.mu.Unlock()
			return len(f.mem.index)
		}
		time.Sleep(10 * time.Minute)
		if indexed() != 0 {
			t.Fatal("it is in the index")
		}
		time.Sleep(2 * time.Hour)
		if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptUnknown || indexed() != 1 {
			t.Errorf("attempt is %s, %d in the index", a.State, indexed())
		}
	})
}
