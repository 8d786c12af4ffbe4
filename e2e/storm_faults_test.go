package e2e

import (
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/e2e/history"
	"github.com/caddy-idempotency/caddy-idempotency/internal/cutter"
)

// lane is a number of faults that come one after the other.
type lane map[string]func(rnd *rand.Rand)

// lanes are what goes wrong side by side.
func (s *storm) lanes() map[string]lane {
	var fronts []*cutter.Cutter
	for _, p := range s.posts {
		fronts = append(fronts, p.front)
	}
	lanes := map[string]lane{
		"gateways": s.gatewayFaults(), "store": s.store.faults(),
		"clients' network": s.networkFaults("clients", fronts), "upstream's network": s.networkFaults("upstream", s.upstream),
	}
	if servers := s.store.fronts(); len(servers) > 0 {
		lanes["store's network"] = s.networkFaults("store", servers)
	}
	return lanes
}

// run lets the faults of a lane come, in an order drawn anew for each round. At
// least one round is finished.
func (s *storm) run(name string, of lane, least time.Duration) {
	rnd := s.draw(name)
	for round := 0; ; round++ {
		kinds := slices.Sorted(maps.Keys(of))
		rnd.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, kind := range kinds {
			if s.t.Failed() || (round > 0 && s.now() > least) {
				return
			}
			time.Sleep(time.Duration(50+rnd.IntN(700)) * time.Millisecond)
			began := s.now()
			of[kind](rnd)
			s.count(kind)
			s.t.Logf("%8s to %8s  %s: %s", began.Round(time.Millisecond), s.now().Round(time.Millisecond), name, kind)
		}
	}
}

// count counts a fault.
func (s *storm) count(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[kind]++
}

// await is eventually for the many processes of a storm: what takes seconds on an idle
// machine can take a minute on a busy one.
func (s *storm) await(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(5 * patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %s: %s", 5*patience, what)
		}
	}
}

// span writes down that the store has been through something since then.
func (s *storm) span(of *[]history.Span, from time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*of = append(*of, history.Span{From: from, To: s.now()})
}

// jumped writes down that the store's clock is that far ahead from now on. It is
// called before the step.
func (s *storm) jumped(ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans.Jumps = append(s.spans.Jumps, history.Jump{At: s.now(), Ahead: ahead})
}

// clockFaults are the steps of the store's clock. It is never set back to what it
// was after a step forward: the leases of that time would last for as much longer.
func (s *storm) clockFaults(step func(time.Duration)) lane {
	return lane{
		"clock forward": func(*rand.Rand) { step(2 * time.Minute) },
		"clock back": func(rnd *rand.Rand) {
			step(-time.Hour)
			sleepUpTo(rnd, 3*time.Second)
			step(time.Hour)
		},
	}
}

// sleepUpTo lets a fault last: there is nothing to wait for in that.
func sleepUpTo(rnd *rand.Rand, most time.Duration) {
	time.Sleep(most/4 + time.Duration(rnd.Int64N(int64(most*3/4))))
}

func (s *storm) gatewayFaults() lane {
	reload := 0
	one := func(rnd *rand.Rand) *outpost { return s.posts[rnd.IntN(len(s.posts))] }
	return lane{
		"gateway killed": func(rnd *rand.Rand) {
			p := one(rnd)
			p.g.kill()
			sleepUpTo(rnd, time.Second)
			p.g.restart()
		},
		"gateway frozen": func(rnd *rand.Rand) {
			p := one(rnd)
			p.g.freeze()
			sleepUpTo(rnd, 7*time.Second) // longer than a lease, too
			p.g.thaw()
		},
		"gateway restarted": func(rnd *rand.Rand) {
			p := one(rnd)
			p.g.signal(syscall.SIGTERM)
			if err := p.g.ended(); err != nil {
				s.t.Errorf("a gateway was asked to end, and: %v", err)
			}
			p.g.restart()
		},
		"gateway reloaded": func(rnd *rand.Rand) {
			p := one(rnd)
			reload++
			if err := p.g.load(p.sites(reload)); err != nil {
				s.t.Errorf("reload: %v", err)
			}
		},
	}
}

var actions = map[string]cutter.Fault{
	"delayed":      {Do: cutter.Delay, Chance: 0.5, Delay: 30 * time.Millisecond},
	"cut before":   {Do: cutter.CutBefore, Chance: 0.2},
	"cut after":    {Do: cutter.CutAfter, Chance: 0.2},
	"black hole":   {Do: cutter.BlackHole},
	"drop by drop": {Do: cutter.Drip, Delay: 2 * time.Millisecond},
}

// networkFaults are those of the network between gateways and one of the others.
func (s *storm) networkFaults(leg string, cutters []*cutter.Cutter) lane {
	faults := make(lane)
	for action, fault := range actions {
		faults["network to "+leg+": "+action] = func(rnd *rand.Rand) {
			f := fault
			if leg == "store" {
				// What gateways are told by. Servers among themselves are left alone: a
				// primary that lives and is cut off is a fault that no copy protects from.
				f.Of = []string{"gateway-", "gateway-1", "gateway-2"}[rnd.IntN(3)]
			}
			before := hits(cutters, f.Do)
			for range 100 { // until somebody has met it
				for _, c := range cutters {
					c.Set(f)
				}
				sleepUpTo(rnd, 1500*time.Millisecond)
				if f.Do == cutter.BlackHole && rnd.IntN(2) == 0 {
					for _, c := range cutters {
						c.Cut(f.Of) // what was swallowed never arrives
					}
				}
				for _, c := range cutters {
					c.Set()
				}
				if hits(cutters, f.Do) > before || s.t.Failed() {
					return
				}
			}
			s.t.Errorf("nobody has met the fault: network to %s: %s", leg, action)
		}
	}
	return faults
}

func hits(of []*cutter.Cutter, a cutter.Action) (n int) {
	for _, c := range of {
		n += c.Hits(a)
	}
	return n
}
