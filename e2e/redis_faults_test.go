package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
)

// RED-02: a server that has become a replica refuses writes, inside of scripts
// too. That dispatches nothing; and as soon as the name points to the new
// primary the gateway goes there, though its old connections still work.
func TestRED02DemotedPrimary(t *testing.T) {
	t.Parallel()
	up, old, next := newUpstream(t), startRedis(t), startRedis(t)
	name := faultnet.New(t, old.Addr())
	c := startGateway(t, to(up).on(storeAt(name.Addr()))).client()
	wantExecuted(t, c.do(post("before")))

	_, port, _ := strings.Cut(next.Addr(), ":")
	old.do("REPLICAOF", "127.0.0.1", port)
	a := c.do(post("demoted"))
	wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
	up.want("demoted", 0)

	name.Redirect(next.Addr())
	a = untilStatus(t, c, post("demoted"), http.StatusOK)
	wantExecuted(t, a)
	wantReplay(t, a, c.do(post("demoted")))
	up.want("demoted", 1)
}

// RED-02: the same in the midst of an attempt, with an orderly change of roles:
// the result is written to the new primary, though the connections on which the
// job was claimed lead to the old one, which answers as before and takes no
// writes any more.
func TestRED02PrimaryChangesDuringAnAttempt(t *testing.T) {
	t.Parallel()
	up, old, next := newUpstream(t), startRedis(t), startRedis(t)
	name := faultnet.New(t, old.Addr())
	c := startGateway(t, to(up).on(storeAt(name.Addr())).with("wait", "100ms")).client()
	_, oldPort, _ := strings.Cut(old.Addr(), ":")
	_, nextPort, _ := strings.Cut(next.Addr(), ":")
	next.do("REPLICAOF", "127.0.0.1", oldPort)
	first := c.start(post("moved").tell("Up-Hold", "gate"))
	up.reached("moved", 1)
	eventually(t, "the replica knows of the claim", func() bool { return next.exists("moved") })
	next.do("REPLICAOF", "NO", "ONE")
	old.do("REPLICAOF", "127.0.0.1", nextPort)
	name.Redirect(next.Addr())
	up.release("gate")
	a := first.answer()
	if a.status != http.StatusOK || a.code() != "" {
		t.Fatalf("want the upstream's answer, got %d %s", a.status, a.body)
	}
	wantReplay(t, a, untilStatus(t, c, post("moved"), http.StatusOK))
	if j := getJob(t, next.open(), "moved"); j.CompletedBy.IsZero() {
		t.Error("the new primary does not know of the result")
	}
	up.want("moved", 1)
}

// RED-03: a server that has forgotten its scripts gets them again, unnoticed.
func TestRED03ScriptCacheGone(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	g := startGateway(t, to(up).on(redis.store()))
	c := g.client()
	first := c.do(post("one"))
	wantExecuted(t, first)
	redis.do("SCRIPT", "FLUSH")
	second := c.do(post("two"))
	wantExecuted(t, second)
	if second.header.Get("Idempotency-Recorded") != "" {
		t.Error("the result was not recorded in time")
	}
	redis.do("SCRIPT", "FLUSH")
	wantReplay(t, first, c.do(post("one")))
	// A waiter marks the record by a script too.
	running := c.start(post("three").tell("Up-Hold", "gate"))
	up.reached("three", 1)
	redis.do("SCRIPT", "FLUSH")
	waiter := c.start(post("three"))
	g.awaitWaiting(1)
	up.release("gate")
	wantExecuted(t, running.answer())
	wantReplay(t, running.answer(), waiter.answer())
	for _, key := range []string{"one", "two", "three"} {
		up.want(key, 1)
	}
}

// RED-10: without the store, a request with a key goes nowhere. There is no mode
// in which it would. Requests that have no key are none of the store's business.
func TestRED10NoDispatchWithoutTheStore(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startDurableRedis(t)
	c := startGateway(t, to(up).on(redis.store()).with("cache", "off")).client()
	remembering := startGateway(t, to(up).on(redis.store()).with("cache", "16MiB 10m")).client()
	before, kept := c.do(post("before")), remembering.do(post("kept"))
	wantExecuted(t, before)
	wantExecuted(t, kept)
	redis.Stop()
	for _, a := range volley(5, post("down"), c) {
		wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
		if p := a.problem(); p.Advice != "retry-same-key" {
			t.Errorf("want the advice to repeat with the same key, got %+v", p)
		}
		retryAfter(t, a)
	}
	wantRefusal(t, c.do(post("before")), http.StatusServiceUnavailable, "store-unavailable")
	wantReplay(t, kept, remembering.do(post("kept"))) // what it has in memory needs no store
	up.want("down", 0)
	keyless := c.do(post("keyless").as(func(r *request) { r.key = "" }))
	if keyless.status != http.StatusOK || keyless.job() != "" {
		t.Errorf("want a request without a key to pass untouched, got %d %v", keyless.status, keyless.header)
	}

	redis.Restart()
	wantExecuted(t, untilStatus(t, c, post("down"), http.StatusOK))
	wantReplay(t, before, c.do(post("before")))
	up.want("down", 1)
	up.want("before", 1)
}

// RED-10: a gateway that starts while the store is down serves as soon as the
// store is there.
func TestRED10GatewayStartsWithoutTheStore(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	redis.Stop()
	c := startGateway(t, to(up).on(redis.store())).client()
	wantRefusal(t, c.do(post("early")), http.StatusServiceUnavailable, "store-unavailable")
	redis.Restart()
	wantExecuted(t, untilStatus(t, c, post("early"), http.StatusOK))
	up.want("early", 1)
}

// RED-12: after an outage under load the connections recover by themselves, and
// the first success comes soon. What was told before, with the server then killed
// or stopped, is told again.
func TestRED12PoolRecoversAfterAnOutage(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startDurableRedis(t)
	c := startGateway(t, to(up).on(redis.store())).client()
	var load sync.WaitGroup
	var refused, served atomic.Int64
	var mu sync.Mutex
	told := make(map[string]answer)
	ctx, stop := context.WithCancel(t.Context())
	defer load.Wait()
	defer stop()
	for worker := range 16 {
		load.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("outage-%d-%d", worker, i)
				switch a := c.do(post(key)); {
				case a.status == http.StatusOK:
					mu.Lock()
					told[key] = a
					mu.Unlock()
					served.Add(1)
				case a.code() == "store-unavailable":
					refused.Add(1)
				default:
					t.Errorf("want an answer or a refusal of the store, got %d %v %s", a.status, a.err, a.body)
					return
				}
			}
		})
	}
	more := func(counter *atomic.Int64, n int64) {
		before := counter.Load()
		eventually(t, "more requests have ended that way", func() bool { return counter.Load() >= before+n })
	}
	more(&served, 100)
	for _, end := range []func(){redis.Stop, redis.Kill} {
		end()
		more(&refused, 64)
		redis.Restart()
		back := time.Now()
		more(&served, 1)
		t.Logf("first success %s after the store was back", time.Since(back).Round(time.Millisecond))
		more(&served, 100)
	}
	stop()
	load.Wait()
	for key, a := range told {
		// One that was answered while it could not be recorded is recorded soon
		// after the store is back.
		again := untilStatus(t, c, post(key), http.StatusOK)
		wantReplay(t, a, again)
		up.want(key, 1)
		if t.Failed() {
			break
		}
	}
	t.Logf("%d answers, %d refusals", len(told), refused.Load())
}

// RED-13: clients without patience don't cost connections. A command runs on
// when the client that asked for it has gone, and so does connecting.
func TestRED13ImpatientClientsDoNotCostConnections(t *testing.T) {
	t.Parallel()
	const clients, atOnce = 1000, 50
	up, redis := newUpstream(t), startRedis(t)
	c := startGateway(t, to(up).on(redis.store())).client()
	wantExecuted(t, c.do(post("warm")))
	before := redis.info("stats", "total_connections_received")
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range clients {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%50)*time.Millisecond)
			defer cancel()
			c.doContext(ctx, post(fmt.Sprintf("hasty-%d", i)).tell("Up-Sleep", "20ms"))
		})
	}
	all.Wait()
	connections := redis.info("stats", "total_connections_received") - before
	t.Logf("%d connections for %d impatient clients", connections, clients)
	// As many as are needed at once, and not one for each that was cut.
	if connections > clients/4 {
		t.Errorf("%d connections for %d impatient clients", connections, clients)
	}
	for i := range clients {
		if n := len(up.of(fmt.Sprintf("hasty-%d", i))); n > 1 {
			t.Errorf("hasty-%d was executed %d times", i, n)
		}
	}
}

// RED-14: the result is written whether or not the client is still there: also
// when it leaves in the very moment in which the answer comes. 499 is what the
// proxy below says to itself then, and is never stored.
func TestRED14ResultIsWrittenThoughTheClientLeaves(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		const tries = 50
		for i := range tries {
			key := fmt.Sprintf("edge-%d", i)
			first := c.start(post(key).tell("Up-Hold", key))
			up.reached(key, 1)
			// From well before to well after the answer.
			go func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				first.cancel()
			}()
			time.Sleep((tries - time.Duration(i)) * 100 * time.Microsecond)
			up.release(key)
			first.answer()
			a := c.do(post(key))
			if a.status != http.StatusOK {
				t.Fatalf("%s: want the answer of the execution, got %d %s", key, a.status, a.body)
			}
			wantMarked(t, a)
			up.want(key, 1)
		}
	})
}

// RED-19: a reload keeps what is stored, and whatever else lives in the same
// Redis. Nothing of ours ever empties a database or lists all its keys.
func TestRED19ReloadKeepsTheStore(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	g := startGateway(t, to(up).on(redis.store()))
	c := g.client()
	a := c.do(post("kept"))
	wantExecuted(t, a)
	redis.do("SET", "other", "1")
	for i := range 3 {
		if err := g.load(to(up).on(redis.store()).with("wait", fmt.Sprintf("%ds", 30+i))); err != nil {
			t.Fatalf("reload: %v", err)
		}
	}
	if err := g.terminate(); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
	g.restart()
	wantReplay(t, a, c.do(post("kept")))
	up.want("kept", 1)
	if other := redis.do("GET", "other"); other != "1" {
		t.Errorf("the other application's key is %v", other)
	}
	stats := strings.ToLower(redis.do("INFO", "commandstats").(string))
	for _, never := range []string{"cmdstat_flush", "cmdstat_keys", "cmdstat_swapdb"} {
		if strings.Contains(stats, never) {
			t.Errorf("the gateway has used %s", never)
		}
	}
}
