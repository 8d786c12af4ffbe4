package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/e2e/history"
	"github.com/caddy-idempotency/caddy-idempotency/internal/cutter"
)

// A storm is a run of gateways, their store, their upstreams and their clients with
// faults everywhere. It is drawn from a seed. What has happened is judged from
// outside, by what clients were told and what was executed; see the package history.
var (
	stormFor    = flag.Duration("chaos.for", 20*time.Second, "how long each storm of TestChaos lasts at least; as long as it takes for every fault to come")
	stormSeed   = flag.Uint64("chaos.seed", 0, "what storms are drawn from; 0: another one each time")
	stormSetups = flag.String("chaos.setups", "standalone sentinel cluster bolt", "the stores on which TestChaos has storms")
	stormKills  = flag.Int("chaos.kills", 2, "how often TestChaosPrimaryIsKilled kills the primary")
	stormCrowd  = flag.Int("chaos.clients", 4, "how many clients there are at a time")
)

// storm is one such run.
type storm struct {
	t     *testing.T
	seed  uint64
	began time.Time
	pause time.Duration // of a client, between two intents, on average

	ledger   *ledger
	posts    []*outpost
	crowd    *crowd
	operator *operator
	upstream []*cutter.Cutter // before the providers
	store    stormStore

	mu      sync.Mutex
	faults  map[string]int
	spans   history.History // only what the store has been through
	changes []history.Span  // when the store has changed its primary, by itself or not
}

// outpost is a gateway with what stands before it.
type outpost struct {
	g      *gateway
	front  *cutter.Cutter
	client *client
	sites  func(reload int) site
}

// stormStore is a store with its own ways to fail.
type stormStore interface {
	// block is what a gateway's configuration says of it; name is what the store's
	// connections tell the gateway by.
	block(name string) string
	// fronts stand before its servers.
	fronts() []*cutter.Cutter
	// says is what its servers have printed.
	says() string
	// faults are what can happen to it. Each is over, and healed, when it returns.
	faults() map[string]func(rnd *rand.Rand)
}

// TestChaos has a storm on each store: every kind of fault comes at least once, and
// nothing that was promised is broken.
func TestChaos(t *testing.T) {
	t.Parallel()
	setups := map[string]func(*storm) stormStore{
		"standalone": newStandalone, "sentinel": newSentinels, "cluster": newCluster, "bolt": newClocked,
	}
	for setup := range strings.FieldsSeq(*stormSetups) {
		if setups[setup] == nil {
			t.Fatalf("there is no set-up %q", setup)
		}
		t.Run(setup, func(t *testing.T) {
			t.Parallel()
			s := newStorm(t)
			gateways := 2
			if setup == "bolt" {
				gateways = 1 // the file is one process's
			}
			s.start(setups[setup], gateways)
			s.spans.Durable = true
			s.blow(*stormFor, s.lanes())
			s.judge()
		})
	}
}

func newStorm(t *testing.T) *storm {
	gatewayBinary(t) // takes a while
	s := &storm{t: t, seed: *stormSeed, began: time.Now(), pause: 15 * time.Millisecond, faults: make(map[string]int)}
	if s.seed == 0 {
		s.seed = rand.Uint64()
	}
	t.Logf("go test ./e2e -run '^%s$' -chaos.seed %d", t.Name(), s.seed)
	s.ledger = newLedger(s.now)
	s.crowd, s.operator = &crowd{s: s}, &operator{s: s}
	return s
}

// now is the time since the storm's beginning.
func (s *storm) now() time.Duration { return time.Since(s.began) }

// draw returns a source of random numbers for one purpose.
func (s *storm) draw(purpose string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(purpose) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(s.seed, h))
}

// start starts the store, the upstreams and the gateways.
func (s *storm) start(store func(*storm) stormStore, gateways int) {
	s.t.Helper()
	s.store = store(s)
	var providers []string
	for _, name := range []string{"primary", "fallback"} {
		c := cutter.New(s.t, s.ledger.serve(s.t, name), s.seed)
		s.upstream = append(s.upstream, c)
		providers = append(providers, c.Addr())
	}
	for n := range gateways {
		p := &outpost{sites: func(reload int) site { return s.site(fmt.Sprintf("gateway-%d", n+1), providers, reload) }}
		p.g = startGatewayWith(s.t, "log {\nlevel WARN\nformat json\n}", p.sites(0))
		p.front = cutter.New(s.t, p.g.addr(0), s.seed+uint64(n))
		p.client = p.g.client()
		p.client.url = "http://" + p.front.Addr()
		s.posts = append(s.posts, p)
	}
}

// site is what a gateway serves.
func (s *storm) site(name string, providers []string, reload int) site {
	store := s.store.block(name)
	var b strings.Builder
	for _, route := range []string{plainRoute, failoverRoute, racingRoute, lookupRoute, briefRoute} {
		fmt.Fprintf(&b, "handle /%[1]s* {\nidempotency {\n%[2]s\nspace %[1]s\nowner {http.request.header.X-Owner}\n", route, store)
		fmt.Fprintf(&b, "retention %s\nwait %dms\n", retentions[route], 1000+reload%10)
		timeout, linger, more := "2s", "3s", ""
		switch route {
		case racingRoute:
			more = "unproven allow\nrace after 200ms\n"
		case failoverRoute:
			more = "unproven allow\n"
		case lookupRoute:
			more = "reconcile {\nlookup GET /lookup?job={http.idempotency.job}&attempt={http.idempotency.attempt}\nevery 300ms\nfor 1h\nsucceeded 200\ncancelled 404 after 1s\n}\n"
		case briefRoute:
			timeout, linger = "1s", "1s"
		}
		fmt.Fprintf(&b, "timeout %s\nlinger %s\nlease 5s\n%s", timeout, linger, more)
		if route == racingRoute || route == failoverRoute {
			fmt.Fprintf(&b, "provider primary {\nreverse_proxy %s\n}\nprovider fallback {\nreverse_proxy %s\n}\n}\n}\n", providers[0], providers[1])
		} else {
			fmt.Fprintf(&b, "}\nreverse_proxy %s\n}\n", providers[0])
		}
	}
	return site{raw: b.String()}
}

// blow lets clients work and faults come, for that long and until every fault of
// each lane has come once. Then all is healed, and every key is asked for again.
func (s *storm) blow(least time.Duration, lanes map[string]lane) {
	s.t.Helper()
	load, calm := context.WithCancel(s.t.Context())
	defer calm()
	decide, decided := context.WithCancel(s.t.Context())
	defer decided()
	var clients, faults, office sync.WaitGroup
	for n := range *stormCrowd {
		clients.Go(func() { s.crowd.work(load, s.draw(fmt.Sprintf("client %d", n))) })
	}
	office.Go(func() { s.operator.work(decide, s.draw("operator"), func() bool { return load.Err() != nil }) })
	for _, name := range slices.Sorted(maps.Keys(lanes)) {
		faults.Go(func() { s.run(name, lanes[name], least) })
	}
	faults.Wait()
	for _, kinds := range lanes {
		for kind := range kinds {
			if s.faults[kind] == 0 && !s.t.Failed() {
				s.t.Errorf("this fault has never come: %s", kind)
			}
		}
	}
	calm()
	clients.Wait()
	s.t.Logf("%s: %d requests, now every key again", s.now().Round(time.Second), len(s.crowd.requests))
	s.crowd.finish(2 * *stormCrowd)
	decided()
	office.Wait()
}

// judge checks what has happened.
func (s *storm) judge() *history.Report {
	s.t.Helper()
	h := s.spans
	h.Requests, h.Unknown = s.crowd.requests, make(map[string]bool)
	h.Decisions = s.operator.decisions
	s.ledger.tell(&h)
	for _, j := range s.operator.unknown(s.t.Context(), s.draw("end")) {
		h.Unknown[j.ID] = true
	}
	h.Failovers = append(h.Failovers, s.unplanned()...)
	r := history.Check(&h)
	s.t.Logf("seed %d, %s: %d requests for %d keys, %d answers, %d executions, %d decisions, %d unknown at the end",
		s.seed, s.now().Round(time.Second), r.Requests, r.Keys, r.Answered, r.Executions, len(h.Decisions), len(h.Unknown))
	s.t.Logf("faults: %s", counts(s.faults))
	s.t.Logf("permitted: %s", counts(r.Permitted))
	s.t.Logf("violations: %d", len(r.Violations))
	if len(h.Requests) == 0 || r.Answered == 0 || r.Executions == 0 {
		s.t.Error("nothing has happened")
	}
	for i, v := range r.Violations {
		if i == 10 {
			break
		}
		s.t.Errorf("%s\n%s", v, h.Timeline(v.Key))
	}
	if s.t.Failed() {
		s.t.Logf("it began at %s\n%s", s.began.Format(time.StampMilli), s.store.says())
	}
	return r
}

// changed writes down that the store has changed its primary between these instants.
func (s *storm) changed(from, to time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = append(s.changes, history.Span{From: from, To: to})
}

// unplanned returns the failovers that were no fault of the storm's: on a machine that
// is too busy for its servers, they take each other for dead.
func (s *storm) unplanned() (all []history.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if !slices.ContainsFunc(s.spans.Failovers, func(f history.Span) bool { return f.To >= c.From && f.From <= c.To }) {
			s.t.Logf("a primary that was alive was replaced between %s and %s", c.From, c.To)
			all = append(all, history.Span{From: c.From - 10*time.Second, To: c.To + 5*time.Second, Beyond: true})
		}
	}
	return all
}

// counts prints how often there was what.
func counts(of map[string]int) string {
	all := 0
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all += of[name]
		parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
	}
	return fmt.Sprintf("%d (%s)", all, strings.Join(parts, ", "))
}
