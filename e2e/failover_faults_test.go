package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
)

// held is a provider whose answer a gate holds back.
func held(name string, up *upstream, gate string, more ...string) named {
	return named{name: name, up: up, before: "request_header Up-Hold " + gate + "\n" + strings.Join(more, "\n")}
}

const refuses = "request_header Up-Status 429"

// Who leaves while another provider is being tried gets its answer on the next
// request, and so does everybody who waits.
func TestClientLeavesDuringAFailover(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		primary, backup := newUpstream(t), newUpstream(t)
		g := startGateway(t, between("store "+store+"\n"+unproven, held("primary", primary, "gate", refuses), held("backup", backup, "gate")))
		c := g.client()
		early := c.start(post("early"))
		primary.reached("early", 1)
		early.leave() // before there is anything to fail over from
		late := c.start(post("late"))
		primary.reached("late", 1)
		primary.release("gate")
		for _, key := range []string{"early", "late"} {
			backup.reached(key, 1)
		}
		late.leave()
		waiter := c.start(post("late"))
		g.awaitWaiting(1)
		backup.release("gate")
		a := waiter.answer()
		if a.err != nil || a.status != http.StatusOK {
			t.Fatalf("the waiter got %d %v %s", a.status, a.err, a.body)
		}
		g.wantAttempts(a, "primary failed", "backup succeeded")
		for _, key := range []string{"early", "late"} {
			again := c.do(post(key))
			if again.status != http.StatusOK {
				t.Errorf("%s: got %d %s", key, again.status, again.body)
			}
			wantMarked(t, again)
			primary.want(key, 1)
			backup.want(key, 1)
		}
	})
}

// A gateway that is told to end starts nothing any more: an attempt that fails then
// is followed by nothing, and the next request goes on with the next provider.
// One that is running by then has the grace period, whichever provider it is on.
func TestTerminationDuringAFailover(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		primary, backup := newUpstream(t), newUpstream(t)
		g := startGatewayWith(t, "grace_period 50s", between("store "+store+"\n"+unproven,
			named{name: "primary", up: primary, before: "request_header Up-Hold {header.Hold}\n" + refuses}, held("backup", backup, "gate")))
		c := g.client()
		before, after := c.start(post("before").tell("Hold", "gate")), c.start(post("after"))
		primary.reached("before", 1)
		backup.reached("after", 1)
		ended := make(chan error, 1)
		go func() { ended <- g.terminate() }()
		g.draining()
		primary.release("gate")
		if a := before.answer(); a.status != http.StatusTooManyRequests {
			t.Errorf("want the primary's own answer, got %d %v %s", a.status, a.err, a.body)
		}
		backup.want("before", 0)
		backup.release("gate")
		wantExecuted(t, after.answer())
		if err := <-ended; err != nil {
			t.Errorf("the gateway ended with %v", err)
		}
		g.restart()
		wantReplay(t, after.answer(), c.do(post("after")))
		a := c.do(post("before"))
		wantExecuted(t, a)
		g.wantAttempts(a, "primary failed", "backup succeeded")
		for _, key := range []string{"before", "after"} {
			primary.want(key, 1)
			backup.want(key, 1)
		}
	})
}

// Where the grace period is too short, the second attempt is cut and unknown like
// any first one; and so are all of a race.
func TestTerminationCutsWhatFollows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		option, primary string
		attempts        []string
	}{
		"failover": {"", refuses, []string{"primary failed", "backup unknown"}},
		"race":     {"race after 100ms", "request_header Up-Hold gate", []string{"primary unknown", "backup unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, backup, redis := newUpstream(t), newUpstream(t), startRedis(t)
			g := startGatewayWith(t, "grace_period 1s", between("store "+redis.store()+"\nlease 1h\n"+unproven+c.option,
				named{name: "primary", up: primary, before: c.primary}, held("backup", backup, "gate")))
			first := g.client().start(post("cut"))
			backup.reached("cut", 1)
			if err := g.terminate(); err != nil {
				t.Errorf("the gateway ended with %v", err)
			}
			if a := first.answer(); a.err == nil {
				wantUnknown(t, a)
			}
			g.restart()
			a := g.client().do(post("cut"))
			wantUnknown(t, a)
			g.wantAttempts(a, c.attempts...)
			primary.want("cut", 1)
			backup.want("cut", 1)
		})
	}
}

// A race that is under way when the gateway is told to end is drained, and won.
func TestTerminationDuringARace(t *testing.T) {
	t.Parallel()
	primary, backup, redis := newUpstream(t), newUpstream(t), startRedis(t)
	g := startGatewayWith(t, "grace_period 50s", between("store "+redis.store()+"\n"+unproven+"race after 100ms",
		held("primary", primary, "never"), held("backup", backup, "gate")))
	first := g.client().start(post("race"))
	backup.reached("race", 1)
	ended := make(chan error, 1)
	go func() { ended <- g.terminate() }()
	g.draining()
	backup.release("gate")
	wantExecuted(t, first.answer())
	if err := <-ended; err != nil { // the loser is not waited for: it would never end
		t.Errorf("the gateway ended with %v", err)
	}
	g.restart()
	wantReplay(t, first.answer(), g.client().do(post("race")))
	g.wantAttempts(first.answer(), "primary discarded", "backup succeeded")
	primary.want("race", 1)
	backup.want("race", 1)
}

// A reload in the midst of a race, or of a failover, ends neither: also what
// follows is started under the configuration under which the request came. Who
// comes afterwards waits for the same job, though its providers are others.
func TestReloadDuringARaceAndAFailover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		option, primary string
		attempts        []string
	}{
		"failover": {"", "request_header Up-Hold gate\n" + refuses, []string{"primary failed", "backup succeeded"}},
		"race":     {"race after 1s", "request_header Up-Hold never", []string{"primary discarded", "backup succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, backup, other, redis := newUpstream(t), newUpstream(t), newUpstream(t), startRedis(t)
			options := unproven + c.option
			g := startGateway(t, between("store "+redis.store()+"\n"+options, named{name: "primary", up: primary, before: c.primary}, held("backup", backup, "gate")))
			first := g.hurried().start(post("reloaded"))
			primary.reached("reloaded", 1)
			elsewhere := storeAt(strings.Replace(redis.Addr(), "127.0.0.1", "localhost", 1))
			if err := g.load(between("store "+elsewhere+"\n"+options, named{name: "primary", up: other}, named{name: "third", up: other})); err != nil {
				t.Fatalf("reload: %v", err)
			}
			after := g.hurried().startPersistently(post("reloaded"))
			if name == "failover" {
				primary.release("gate")
			}
			backup.reached("reloaded", 1)
			backup.release("gate")
			a := first.answer()
			wantExecuted(t, a)
			wantReplay(t, a, after.answer())
			g.wantAttempts(a, c.attempts...)
			primary.want("reloaded", 1)
			backup.want("reloaded", 1)
			other.want("reloaded", 0)
		})
	}
}

// A failover that can't be written is none: the client gets the first provider's
// own answer, marked as not recorded, and nothing is sent to the next one. Once
// the store is back the job says what has happened, whether the write had landed
// or not, and the next request goes on with the next provider.
func TestStoreFailsBetweenAttempts(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redisServer, *faultnet.Proxy) (heal func()){
		"stopped": func(s *redisServer, _ *faultnet.Proxy) func() { s.Stop(); return s.Restart },
		"frozen":  func(s *redisServer, _ *faultnet.Proxy) func() { s.Freeze(); return s.Thaw },
		"its replies are lost": func(_ *redisServer, n *faultnet.Proxy) func() {
			return n.Inject(faultnet.Fault{Command: "EVALSHA", Do: faultnet.LoseReplyAndHang})
		},
		"its replies are cut": func(_ *redisServer, n *faultnet.Proxy) func() {
			return n.Inject(faultnet.Fault{Command: "EVALSHA", Do: faultnet.LoseReplyAndCut})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, backup, redis := newUpstream(t), newUpstream(t), startDurableRedis(t)
			net := faultnet.New(t, redis.Addr())
			g := startGateway(t, between("store "+storeAt(net.Addr())+"\n"+unproven, held("primary", primary, "gate", refuses), named{name: "backup", up: backup}))
			c := g.client()
			first := c.start(post("lost"))
			primary.reached("lost", 1)
			heal := fail(redis, net)
			primary.release("gate")
			a := first.answer()
			if a.status != http.StatusTooManyRequests || a.code() != "" || a.header.Get("Idempotency-Recorded") != "false" {
				t.Errorf("want the primary's answer, marked as not recorded, got %d %v %s", a.status, a.header, a.body)
			}
			t.Logf("answered after %s", a.took.Round(time.Millisecond))
			backup.want("lost", 0)
			heal()
			again := untilStatus(t, c, post("lost"), http.StatusOK)
			wantExecuted(t, again)
			wantReplay(t, again, c.do(post("lost")))
			primary.want("lost", 1)
			backup.want("lost", 1)
			attempts := g.look(again.job()).Attempts
			if attempts[0].State != "failed" || attempts[0].Evidence.Status != http.StatusTooManyRequests || attempts[len(attempts)-1].Provider != "backup" {
				t.Errorf("the attempts are %+v", attempts)
			}
		})
	}
}
