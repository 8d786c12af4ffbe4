package e2e

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// draining waits until a gateway takes no connections any more.
func (g *gateway) draining() {
	g.t.Helper()
	eventually(g.t, "the gateway takes no more connections", func() bool {
		c, err := net.DialTimeout("tcp", "127.0.0.1:"+g.ports[0], time.Second)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

// A gateway that is told to end lets its attempts finish, and their clients get
// their answers. Who only waits is sent away to come back.
func TestTerminationDrainsAttempts(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGatewayWith(t, "grace_period 50s", to(up).on(store))
		c := g.client()
		first := c.start(post("drained").tell("Up-Hold", "gate"))
		up.reached("drained", 1)
		waiter := c.start(post("drained"))
		g.awaitWaiting(1)
		left := c.start(post("left").tell("Up-Hold", "gate"))
		up.reached("left", 1)
		left.leave() // its attempt is waited for all the same

		ended := make(chan error, 1)
		go func() { ended <- g.terminate() }()
		g.draining()
		wantRefusal(t, waiter.answer(), http.StatusConflict, "in-flight")
		up.release("gate")
		a := first.answer()
		wantExecuted(t, a)
		if err := <-ended; err != nil {
			t.Errorf("the gateway ended with %v", err)
		}
		g.restart()
		wantReplay(t, a, c.do(post("drained")))
		b := c.do(post("left"))
		if b.status != http.StatusOK {
			t.Errorf("want the answer of the execution, got %d %s", b.status, b.body)
		}
		wantMarked(t, b)
		up.want("drained", 1)
		up.want("left", 1)
	})
}

// What does not finish within the grace period is cut, and written down as
// unknown before the process ends: nobody has to wait for the lease.
func TestTerminationWritesDownWhatItCuts(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	g := startGatewayWith(t, "grace_period 1s", to(up).on(redis.store()).with("lease", "1h").with("wait", "100ms"))
	c := g.client()
	first := c.start(post("cut").tell("Up-Hold", "gate"))
	up.reached("cut", 1)
	left := c.start(post("left").tell("Up-Hold", "gate"))
	up.reached("left", 1)
	left.leave()
	if err := g.terminate(); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
	if a := first.answer(); a.err == nil {
		wantUnknown(t, a)
	}
	store := redis.open()
	for _, key := range []string{"cut", "left"} {
		if a := getJob(t, store, key).Attempts[0]; a.State != keystore.AttemptUnknown {
			t.Errorf("%s: the attempt is %s (%s), want unknown", key, a.State, a.Reason)
		}
	}
	g.restart()
	for _, key := range []string{"cut", "left"} {
		wantUnknown(t, c.do(post(key)))
		up.want(key, 1)
	}
}

// The same on the embedded store, whose file must take those last writes.
func TestTerminationWritesDownWhatItCutsOnBolt(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "grace_period 1s", to(up).on("bolt").with("lease", "1h").with("wait", "100ms"))
	c := g.client()
	c.start(post("cut").tell("Up-Hold", "gate"))
	up.reached("cut", 1)
	if err := g.terminate(); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
	g.restart()
	wantUnknown(t, c.do(post("cut")))
	up.want("cut", 1)
}

// The process ends in time also where the store can't be told of what is cut. The
// end of the lease says the same then.
func TestTerminationEndsThoughTheStoreIsDown(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startDurableRedis(t)
	g := startGatewayWith(t, "grace_period 1s", to(up).on(redis.store()).with("lease", "2s").with("wait", "100ms"))
	c := g.client()
	c.start(post("cut").tell("Up-Hold", "gate"))
	up.reached("cut", 1)
	redis.Stop()
	began := time.Now()
	if err := g.terminate(); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
	t.Logf("it took %s", time.Since(began).Round(time.Millisecond))
	redis.Restart()
	g.restart()
	wantUnknown(t, untilCode(t, c, post("cut"), "outcome-unknown"))
	up.want("cut", 1)
}
