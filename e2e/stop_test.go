package e2e

import (
	"fmt"
	"slices"
	"testing"
)

// CAD-11: a gateway is told to end while fifty attempts run, and its grace period
// is short. None is lost and none stays in flight for ever: each is unknown and
// says why, and the restarted gateway executes none of them again.
func TestCAD11TerminationMakesFiftyAttemptsUnknown(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		const attempts = 50
		key := func(i int) string { return fmt.Sprintf("running-%d", i) }
		up := newUpstream(t)
		g := startGatewayWith(t, "grace_period 1s", to(up).on(store).with("lease", "1h").with("wait", "100ms"))
		c := g.client()
		clients := make([]*pending, attempts)
		for i := range clients {
			clients[i] = c.start(post(key(i)).tell("Up-Hold", "gate"))
		}
		for i := range clients {
			up.reached(key(i), 1)
		}
		if err := g.terminate(); err != nil {
			t.Errorf("the gateway ended with %v", err)
		}
		for _, p := range clients {
			if a := p.answer(); a.err == nil {
				wantUnknown(t, a)
			}
		}
		up.release("gate")
		g.restart()

		jobs := g.list()
		if len(jobs) != attempts {
			t.Errorf("%d jobs are unknown, want %d", len(jobs), attempts)
		}
		for _, job := range jobs {
			if s := g.look(job); s.Count != 1 || s.attempt(t, 1).State != "unknown" || s.attempt(t, 1).Reason != "gateway stopped" {
				t.Errorf("want one attempt, unknown since the gateway was stopped, got %+v", s)
			}
		}
		for i := range clients {
			a := c.do(post(key(i)))
			wantUnknown(t, a)
			if !slices.Contains(jobs, a.job()) {
				t.Errorf("job %s is not in the list", a.job())
			}
			up.want(key(i), 1)
		}
	})
}
