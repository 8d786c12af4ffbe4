package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
)

// CL-04: who decides on a copy of the record can't act on it once the record has
// moved on. Here the second gateway has read that the lease is over and is about
// to write that down, when the first one comes to itself and completes the job.
// The late write is refused, and the result stands.
func TestCL04StaleSnapshotCannotOverwriteACompletion(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	net := faultnet.New(t, redis.Addr())
	one := startGateway(t, to(up).on(redis.store()).with("lease", "1s"))
	two := startGateway(t, to(up).on(storeAt(net.Addr())).with("lease", "1s"))
	// From now on the script is known to the server, and runs by its digest.
	wantExecuted(t, two.client().do(post("warm")))

	first := one.client().start(post("stale").tell("Up-Hold", "gate"))
	up.reached("stale", 1)
	one.freeze()
	store := redis.open()
	lease := getJob(t, store, "stale").LeaseEnd()
	eventually(t, "the lease has ended", func() bool { return store.Now() > lease })
	parked := net.Park("EVALSHA")
	second := two.client().start(post("stale"))
	<-parked.Arrived()
	two.freeze() // so that it does not lose patience and send the write again

	up.release("gate")
	one.thaw()
	a := first.answer()
	wantExecuted(t, a)
	parked.Release()
	<-parked.Answered()
	two.thaw()
	wantReplay(t, a, second.answer())
	wantReplay(t, a, two.client().do(post("stale")))
	up.want("stale", 1)
}

// A gateway that stands still between its claim and the dispatch for longer than
// the lease can't know what others have concluded meanwhile. It dispatches
// nothing when it goes on, says so, and the key is free again.
func TestGatewayStoppedBeforeDispatchDispatchesNothing(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	net := faultnet.New(t, redis.Addr())
	g := startGateway(t, to(up).on(storeAt(net.Addr())).with("lease", "1s").with("wait", "100ms"))
	wantExecuted(t, g.client().do(post("warm")))

	parked := net.Park("SET")
	first := g.client().start(post("stopped"))
	<-parked.Arrived()
	g.freeze()
	parked.Release()
	<-parked.Answered() // the claim has landed
	store := redis.open()
	lease := getJob(t, store, "stopped").LeaseEnd()
	eventually(t, "the lease has ended", func() bool { return store.Now() > lease })
	g.thaw()
	a := first.answer()
	wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
	retryAfter(t, a)
	up.want("stopped", 0)

	wantExecuted(t, untilStatus(t, g.client(), post("stopped"), http.StatusOK))
	up.want("stopped", 1)
}

// The same for a claim whose reply comes only after the lease.
func TestClaimWhoseReplyComesAfterTheLeaseDispatchesNothing(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	net := faultnet.New(t, redis.Addr())
	g := startGateway(t, to(up).on(storeAt(net.Addr())).with("lease", "600ms").with("wait", "100ms"))
	c := g.client()
	wantExecuted(t, untilStatus(t, c, post("warm"), http.StatusOK))

	net.Inject(faultnet.Fault{Command: "SET", Do: faultnet.Delay, Delay: 800 * time.Millisecond, Times: 1})
	a := c.do(post("delayed"))
	wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
	retryAfter(t, a)
	up.want("delayed", 0)

	wantExecuted(t, untilStatus(t, c, post("delayed"), http.StatusOK))
	up.want("delayed", 1)
}
