package e2e

import (
	"net/http"
	"slices"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// CL-06: a gateway that dies while its upstream works leaves a job of which
// nobody knows whether it was executed. Once its lease has ended the answer says
// so; neither is the key locked for as long as results are kept, nor is it free.
func TestCL06CrashBetweenClaimAndCompletion(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store).with("lease", "2s").with("wait", "100ms"))
		c := g.client()
		first := c.start(post("crash").tell("Up-Hold", "gate"))
		up.reached("crash", 1)
		g.kill()
		if a := first.answer(); a.err == nil {
			t.Fatalf("a dead gateway has answered with status %d", a.status)
		}
		g.restart()

		wantUnknown(t, untilCode(t, c, post("crash"), "outcome-unknown"))
		up.release("gate") // the answer that nobody listens to any more
		wantUnknown(t, c.do(post("crash")))
		up.want("crash", 1)
	})
}

// OUT-07: the end of the lease is no permission. The lease here is shorter than
// the upstream may take by far, and the upstream is still at work when it ends.
func TestOUT07EndOfTheLeaseIsNoPermission(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	one := startGateway(t, to(up).on(redis.store()).with("lease", "1s").with("wait", "100ms"))
	two := startGateway(t, to(up).on(redis.store()).with("lease", "1s").with("wait", "100ms"))
	one.client().start(post("lease").tell("Up-Hold", "gate"))
	up.reached("lease", 1)
	one.kill()

	c := two.client()
	wantUnknown(t, untilCode(t, c, post("lease"), "outcome-unknown"))
	for range 5 {
		for _, a := range volley(4, post("lease"), c) {
			wantUnknown(t, a)
		}
	}
	up.want("lease", 1)
}

// What a client has been told is told again after the gateway was killed.
func TestCompletedJobSurvivesTheGatewaysDeath(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store))
		c := g.client()
		a := c.do(post("done"))
		wantExecuted(t, a)
		g.kill()
		g.restart()
		wantReplay(t, a, c.do(post("done")))
		up.want("done", 1)
	})
}

// A lease is renewed as long as its gateway lives, and so does not end in the
// midst of an attempt that takes long.
func TestLeaseIsRenewedWhileTheUpstreamWorks(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	both := to(up).on(redis.store()).with("lease", "2s").with("wait", "100ms")
	one, two := startGateway(t, both), startGateway(t, both).client()
	first := one.client().start(post("renewed").tell("Up-Hold", "gate"))
	up.reached("renewed", 1)
	store := redis.open()
	lease := getJob(t, store, "renewed").LeaseEnd()
	eventually(t, "the lease that was written first has ended", func() bool { return store.Now() > lease })
	wantRefusal(t, two.do(post("renewed")), http.StatusConflict, "in-flight")
	up.release("gate")
	a := first.answer()
	wantExecuted(t, a)
	wantReplay(t, a, two.do(post("renewed")))
	up.want("renewed", 1)
}

// CL-05: what an attempt writes at its end, it writes only as itself. One that
// has outlived its lease finds its job unknown, and may turn that into done; the
// record is there all the time, so that the key is never free.
func TestCL05LateFinishOnlySettlesItsOwnAttempt(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	both := to(up).on(redis.store()).with("lease", "1s").with("wait", "100ms")
	one, two := startGateway(t, both), startGateway(t, both).client()
	first := one.client().start(post("late").tell("Up-Hold", "gate"))
	up.reached("late", 1)
	one.freeze() // nobody renews the lease now
	wantUnknown(t, untilCode(t, two, post("late"), "outcome-unknown"))
	if !redis.exists("late") {
		t.Error("the record has gone with the lease")
	}
	up.release("gate")
	one.thaw()
	a := first.answer()
	wantExecuted(t, a)
	if !redis.exists("late") {
		t.Error("the record has gone with the late answer")
	}
	wantReplay(t, a, two.do(post("late")))
	up.want("late", 1)
}

// CL-03: a running attempt without the deadline of a lease is not taken for
// abandoned: the absence of a deadline proves nothing. It is held.
func TestCL03MissingLeaseIsNotTakenForAbandoned(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	g := startGateway(t, to(up).on(redis.store()).with("lease", "1s").with("wait", "100ms"))
	c := g.client()
	c.start(post("held").tell("Up-Hold", "gate"))
	up.reached("held", 1)
	g.kill()

	store := redis.open()
	present := getJob(t, store, "held")
	changed := *present
	changed.Attempts = slices.Clone(present.Attempts)
	end := changed.Attempts[0].Lease
	changed.Attempts[0].Lease = 0
	changed.WriteID = keystore.NewWriteID()
	if _, swapped, err := store.Swap(t.Context(), present.WriteID, &changed); err != nil || !swapped {
		t.Fatalf("take the lease away: %v, %v", swapped, err)
	}
	g.restart()
	eventually(t, "the lease would have ended", func() bool { return store.Now() > end })
	wantRefusal(t, c.do(post("held")), http.StatusConflict, "in-flight")
	up.want("held", 1)
}
