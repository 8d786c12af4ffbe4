package proxy

import (
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// orphan leaves a job whose gateway has died before the job was in the index, and
// whose lease is over.
func (f *fixture) orphan(provider string) {
	f.t.Helper()
	j := f.claimed(keystore.NewToken())
	j.Attempts[0].Provider = provider
	if _, created, err := f.store.Create(f.t.Context(), j); !created || err != nil {
		f.t.Fatal(created, err)
	}
	time.Sleep(f.route.Lease + time.Second)
}

// wantSeen checks that the job is unknown, that whoever lists the unresolved ones finds
// it, and that its attempt's end was told once.
func (f *fixture) wantSeen() {
	f.t.Helper()
	if s := f.mem.job().State(f.store.Now()); s != keystore.JobUnknown {
		f.t.Errorf("the job is %s", s)
	}
	if page, _, _ := f.store.List(f.t.Context(), "", 10); len(page) != 1 {
		f.t.Errorf("%d jobs are listed", len(page))
	}
	if told, counted := f.incs.told(EventOutcomeUnknown), f.incs.of(IncidentLapsed); told != 1 || counted != 1 {
		f.t.Errorf("the end of the lease was told %d times, counted %d times", told, counted)
	}
}

// A racing route goes on beside an attempt whose lease has ended, and writes that down
// with the start of the next one. If that comes to nothing, the first one is unknown,
// and has to be found by those who can settle it.
func TestLapsedBesideASiblingIsSeen(t *testing.T) {
	c := racing
	c.MaxAttempts = 2
	for name, b := range map[string]script{"refused": refuses, "refused later": after(time.Second/2, says(429, "B"))} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {says(200, "A")}, "b": {b}})
				f.orphan("a")
				f.do(request{})
				f.wantExecuted(0, 1)
				f.wantAttempts("a unknown", "b failed")
				f.wantSeen()
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantExecuted(0, 1)
			})
		})
	}
}

// Where the index can't be written, neither is the end of the lease.
func TestLapsedBesideASiblingWaitsForTheIndex(t *testing.T) {
	bubble(t, racing, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {says(200, "A")}, "b": {refuses}})
		f.orphan("a")
		f.mem.fail(func(op string) error {
			if op == "index" {
				return errInjected
			}
			return nil
		}, nil)
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.wantExecuted(0, 0)
		f.wantAttempts("a starting")
		f.mem.fail(nil, nil)
		f.do(request{})
		f.wantExecuted(0, 1)
		f.wantSeen()
	})
}

// The end of a lease is told also where it is written with an attempt that a request
// starts after its first one: as that takes too long, or has certainly failed.
func TestLapsedBesideALaterAttemptIsTold(t *testing.T) {
	c := racing
	c.Providers = named("a", "b", "c")
	c.MaxAttempts = 4
	c.Race = 4 * time.Second
	for name, b := range map[string]script{"slow": hangs, "failed": after(3*time.Second, says(429, "B"))} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {breaks}, "b": {b}, "c": {says(200, "C")}})
				answered := make(chan result)
				go func() { answered <- f.do(request{}) }()
				time.Sleep(time.Second)
				n := f.attempt(keystore.NewToken()) // another gateway's, which dies
				n.Provider, n.Lease = "elsewhere", time.Second
				before := f.mem.job()
				j := before.Start(n)
				j.WriteID = keystore.NewWriteID()
				if _, swapped, err := f.store.Swap(t.Context(), before.WriteID, j); !swapped || err != nil {
					t.Fatal(swapped, err)
				}
				(<-answered).wantBody(t, 200, "C", false)
				time.Sleep(time.Second) // the loser has been ended by then
				f.wantExecuted(1, 1, 1)
				if told, counted := f.incs.told(EventOutcomeUnknown), f.incs.of(IncidentLapsed); told != 2 || counted != 1 {
					t.Errorf("attempts were told to be unknown %d times, ends of leases counted %d times", told, counted)
				}
			})
		})
	}
}
