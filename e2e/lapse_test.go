package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// A gateway that stands still for three leases while its upstream works comes
// back to a job that is unknown. Whoever repeated the request on another gateway
// meanwhile was told so, and nothing was executed again; the answer that the
// upstream gave still becomes the result.
func TestFrozenGatewayComesBackToItsJob(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]struct{ before, after bool }{
		"upstream answers meanwhile":  {before: true},
		"upstream answers afterwards": {after: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lease = 3 * time.Second
			up, redis := newUpstream(t), startRedis(t)
			s := to(up).on(redis.store()).with("lease", lease.String()).with("wait", "100ms")
			one, two := startGateway(t, s), startGateway(t, s)
			first := one.client().start(post("frozen").tell("Up-Hold", "gate"))
			up.reached("frozen", 1)
			one.freeze()
			store := redis.open()
			frozen := store.Now()
			retry := untilCode(t, two.client(), post("frozen"), "outcome-unknown")
			wantUnknown(t, retry)
			eventually(t, "three leases have passed", func() bool { return store.Now().Sub(frozen) > 3*lease })
			wantUnknown(t, two.client().do(post("frozen")))
			if answers.before {
				up.release("gate")
			}
			one.thaw()
			if answers.after {
				eventually(t, "the gateway is back", one.ready)
				wantUnknown(t, one.client().do(post("frozen")))
				up.release("gate")
			}

			a := first.answer()
			wantExecuted(t, a)
			if retry.job() != a.job() || !strings.Contains(a.body, `"execution":1`) {
				t.Errorf("want the answer of the one execution, of job %s, got %s %s", retry.job(), a.job(), a.body)
			}
			wantReplay(t, a, two.client().do(post("frozen")))
			wantReplay(t, a, one.client().do(post("frozen")))
			if s := two.show(a.job()); s.State != "completed" || s.Count != 1 || s.Result.Attempt != 1 {
				t.Errorf("want the job completed by its only attempt, got %+v", s)
			}
			one.wantTold("late_result", "info", "a late result took the result slot")
			up.want("frozen", 1)
		})
	}
}

// Nobody asks for a job whose gateway has died. A sweep finds it all the same,
// and an operator sees it and why it is unknown.
func TestLapsedLeaseIsFoundWithoutAClient(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store).with("lease", "10s"))
		g.client().start(post("orphan").tell("Up-Hold", "gate"))
		up.reached("orphan", 1)
		var job string
		eventually(t, "the job is in the index", func() bool {
			if ids := g.list("--state", "running"); len(ids) == 1 {
				job = ids[0]
			}
			return job != ""
		})
		g.kill()
		g.restart()
		eventually(t, "a sweep has written down that the lease lapsed", func() bool {
			return slices.Equal(g.list(), []string{job}) && g.look(job).attempt(t, 1).State == "unknown"
		})
		g.wantTold("outcome_unknown", "warn", "a lease lapsed: it is unknown whether its attempt was executed")
		up.want("orphan", 1)
	})
}

// Gateways that sweep the same store don't get in each other's way: each lapsed
// lease is written down, and told of, once.
func TestSweepsSideBySide(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	s := to(up).on(redis.store()).with("lease", "10s")
	dying, one, two := startGateway(t, s), startGateway(t, s), startGateway(t, s)
	const jobs = 20
	for i := range jobs {
		dying.client().start(post(chaosKey(i)).tell("Up-Hold", "gate"))
	}
	for i := range jobs {
		up.reached(chaosKey(i), 1)
	}
	eventually(t, "all are in the index", func() bool { return len(one.list("--state", "running")) == jobs })
	dying.kill()
	store := redis.open()
	eventually(t, "all are written down as unknown", func() bool {
		page, _, err := store.List(context.Background(), "", 2*jobs)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, j := range page {
			if j.LastAttempt().State == keystore.AttemptUnknown {
				n++
			}
		}
		return n == jobs
	})
	eventually(t, "each was told of", func() bool {
		return one.events()["outcome_unknown"]+two.events()["outcome_unknown"] >= jobs
	})
	if n, m := one.incidents()["lease_lapsed"], two.incidents()["lease_lapsed"]; n+m != jobs {
		t.Errorf("%d and %d lapsed leases were counted, want %d together", n, m, jobs)
	}
	for i := range jobs {
		wantUnknown(t, one.client().do(post(chaosKey(i))))
		up.want(chaosKey(i), 1)
	}
}
