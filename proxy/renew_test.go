package proxy

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// However many attempts outlive their lease, their renewals share round trips.
// Not in parallel with other tests: on a machine that can't keep up with so many
// attempts, leases rightly lapse.
func TestManyRenewalsShareRoundTrips(t *testing.T) {
	const attempts, roundTrips = 10_000, 20
	server := redistest.Start(t)
	net := faultnet.New(t, server.Addr())
	store, err := redisstore.Open(redisstore.Options{URL: "redis://" + net.Addr(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	f := newFixtureOn(t, store, Config{Lease: 40 * time.Second, Timeout: 10 * time.Minute})
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
	f.eventually("all leases are renewed", func() bool { return f.incs.of(IncidentRenewed) >= attempts })
	if renewed, flights := f.incs.of(IncidentRenewed), net.Flights("EVALSHA"); renewed < attempts || flights > roundTrips {
		t.Errorf("%d renewals took %d round trips, want at most %d", renewed, flights, roundTrips)
	}
	net.Gather("EVALSHA", 0)
	close(gate)
	all.Wait()
	if n := f.incs.of(IncidentLapsed); n != 0 {
		t.Errorf("%d leases lapsed", n)
	}
	f.wantExecutions(attempts)
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
