package e2e

import (
	"math/rand/v2"
	"net"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/e2e/history"
	"github.com/caddy-idempotency/caddy-idempotency/internal/cutter"
)

// The primary is killed under load while a replica lags behind. Where claims wait for
// a replica, none that was acknowledged is executed twice, however often that
// happens. Where they don't, what both replicas have missed is lost, and is executed
// again: the loss that the documentation tells of, and it is counted.
func TestChaosPrimaryIsKilled(t *testing.T) {
	t.Parallel()
	for name, durability := range map[string]string{"with durability": waitsForReplica, "without durability": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStorm(t)
			var w *watched
			s.start(func(s *storm) stormStore { w = newWatched(s, durability); return w }, 2)
			s.spans.Durable = durability != ""
			s.blow(0, map[string]lane{"store": {"primary killed while replicas lag": func(rnd *rand.Rand) {
				for n := range *stormKills {
					if n > 0 {
						s.count("primary killed while replicas lag")
					}
					lag := "listening-port" // what every replica tells of itself
					if s.spans.Durable {
						lag = port(w.other(rnd).Front())
					}
					w.killLagging(lag)
				}
			}}})
			r := s.judge()
			lost := r.Permitted[history.ClaimLost]
			t.Logf("%d kills, %d executions of claims that were lost", s.faults["primary killed while replicas lag"], lost)
			if s.spans.Durable && s.faults["the replica promoted that has less"] == *stormKills {
				t.Error("each time the replica was promoted that has less: this shows nothing")
			}
			if !s.spans.Durable && lost == 0 {
				t.Error("nothing was lost: the storm does not show what it is for")
			}
		})
	}
}

func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// killLagging kills the primary when what it has written for some time has not reached
// the replicas that are known by this word.
func (w *watched) killLagging(of string) {
	s := w.s
	from, old := s.now(), w.present()
	front := w.cutters[old]
	front.Set(cutter.Fault{Do: cutter.BlackHole, Of: of})
	executed := s.ledger.count()
	s.await("there is something that replicas have missed", func() bool { return s.ledger.count() >= executed+20 })
	old.Kill()
	front.Cut(of) // and it never reaches them
	front.Set()
	w.succeed(old, from)
}
