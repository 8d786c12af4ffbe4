package proxy

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// However many attempts outlive their lease, their renewals share round trips.
// When they are due is left to other tests: here they are all renewed at once,
// with leases that no machine is too slow for.
func TestManyRenewalsShareRoundTrips(t *testing.T) {
	const attempts, roundTrips = 10_000, 20
	server := redistest.Start(t)
	net := faultnet.New(t, server.Addr())
	store, err := redisstore.Open(redisstore.Options{URL: "redis://" + net.Addr(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	f := newFixtureOn(t, store, Config{Lease: 2 * time.Hour, Timeout: time.Hour})
	gate, claiming := make(chan struct{}), make(chan struct{}, 32)
	f.serve = func(http.ResponseWriter, *http.Request) error {
		<-claiming
		<-gate
		return nil
	}
	var all sync.WaitGroup
	for n := range attempts {
		claiming <- struct{}{}
		all.Go(func() {
			if r := f.do(request{key: strconv.Itoa(n)}); r.Code != 200 || r.err != nil {
				t.Errorf("request %d got %d, %v", n, r.Code, r.err)
			}
		})
	}
	f.eventually("all attempts run", func() bool { return f.executions.Load() == attempts })
	net.Gather("EVALSHA", 1000)
	f.gateway.mu.Lock()
	due := slices.Collect(maps.Keys(f.gateway.attempts))
	f.gateway.mu.Unlock()
	// On a machine that has much else to do, some may take longer than they are waited for.
	for tries := 1; ; tries++ {
		before, flown := f.incs.of(IncidentRenewed), net.Flights("EVALSHA")
		f.gateway.renew(due)
		renewed, flights := f.incs.of(IncidentRenewed)-before, net.Flights("EVALSHA")-flown
		if flights > roundTrips {
			t.Errorf("%d renewals took %d round trips, want at most %d", renewed, flights, roundTrips)
		}
		// The gateway's own loop may be looking at a few in that moment.
		if renewed >= attempts*99/100 {
			break
		}
		if tries == 10 {
			t.Fatalf("only %d of %d leases were renewed", renewed, attempts)
		}
	}
	net.Gather("EVALSHA", 0)
	close(gate)
	all.Wait()
	if n := f.incs.of(IncidentLapsed); n != 0 {
		t.Errorf("%d leases lapsed", n)
	}
	f.wantExecutions(attempts)
}

// None of so many leases lapses while its attempt runs.
func TestManyLongAttemptsKeepTheirLeases(t *testing.T) {
	const attempts = 1_000
	bubble(t, Config{Lease: 30 * time.Second, Timeout: 5 * time.Minute}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(2*time.Minute, f)
		var all sync.WaitGroup
		for n := range attempts {
			all.Go(func() {
				time.Sleep(time.Duration(n) * time.Millisecond)
				if r := f.do(request{key: strconv.Itoa(n)}); r.Code != 200 || r.err != nil {
					t.Errorf("request %d got %d, %v", n, r.Code, r.err)
				}
			})
		}
		all.Wait()
		if renewed, lapsed := f.incs.of(IncidentRenewed), f.incs.of(IncidentLapsed); renewed < 3*attempts || lapsed != 0 {
			t.Errorf("%d renewals, and %d leases lapsed", renewed, lapsed)
		}
		f.wantExecutions(attempts)
	})
}

func TestShortAttemptCostsTwoCommands(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	net := faultnet.New(t, server.Addr())
	store, err := redisstore.Open(redisstore.Options{URL: "redis://" + net.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	f := newFixtureOn(t, store, Config{})
	f.do(request{key: "first"}) // the script is sent in full once
	before := net.Counts()
	f.do(request{}).wantBody(t, 200, "execution 2", false)
	after := net.Counts()
	for _, command := range []string{"TIME", "ZRANGEBYSCORE"} { // of the clock and the sweeper
		delete(after, command)
	}
	sent := 0
	for command, n := range after {
		sent += n - before[command]
	}
	if set, swap := after["SET"]-before["SET"], after["EVALSHA"]-before["EVALSHA"]; set != 1 || swap != 1 || sent != 2 {
		t.Errorf("before %v, after %v", before, after)
	}
}

// eventually waits for a condition, for as long as a slow machine may take.
func (f *fixture) eventually(what string, condition func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: not within two minutes", what)
		}
	}
}
