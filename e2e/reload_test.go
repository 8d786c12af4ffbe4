package e2e

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

// hurried returns a client that makes a connection for each request: a
// connection that is kept belongs to the configuration that it was made under.
func (g *gateway) hurried() *client {
	c := g.client()
	c.c.Transport.(*http.Transport).DisableKeepAlives = true
	return c
}

// persist sends a request until it is answered, and returns how often the
// connection was closed without a word. Go's HTTP server does that to a request
// that it has begun to read when it is shut down, before any handler sees it;
// with plain Caddy it happens in just the same way.
func (c *client) persist(r request) (a answer, unheard int64) {
	for unheard = 0; unheard < 100; unheard++ {
		if a = c.do(r); a.err == nil {
			return a, unheard
		}
	}
	return a, unheard
}

// startPersistently starts a request that persists, for right after a reload.
func (c *client) startPersistently(r request) *pending {
	p := &pending{t: c.t, result: make(chan answer, 1), cancel: func() {}}
	go func() {
		a, _ := c.persist(r)
		p.result <- a
	}()
	return p
}

// reloadUnderLoad reloads a gateway 20 times while requests with duplicates come
// in, and checks that none of them fails and none is executed twice. That each
// request which has reached the handler was also answered is seen from the
// handler's own count, which lasts over reloads.
func reloadUnderLoad(t *testing.T, g *gateway, up *upstream, next func(reload int) site) {
	t.Helper()
	c := g.hurried()
	type result struct {
		key     string
		answers []answer
	}
	var load sync.WaitGroup
	var ended, unheard atomic.Int64
	stop, results := make(chan struct{}), make(chan result, 10000)
	for worker := range 4 {
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("reload-%d-%d", worker, i)
				answers := make([]answer, 3)
				var all sync.WaitGroup
				for i := range answers {
					all.Go(func() {
						var n int64
						answers[i], n = c.persist(post(key).tell("Up-Sleep", "30ms"))
						unheard.Add(n)
					})
				}
				all.Wait()
				results <- result{key, answers}
				ended.Add(1)
			}
		})
	}
	for reload := range 20 {
		before := ended.Load()
		eventually(t, "requests under this configuration", func() bool { return ended.Load() >= before+8 })
		if err := g.load(next(reload)); err != nil {
			t.Fatalf("reload %d: %v", reload, err)
		}
	}
	close(stop)
	load.Wait()
	close(results)
	for r := range results {
		wantOneAnswer(t, r.answers)
		up.want(r.key, 1)
	}
	t.Logf("%d keys, three requests each, over 20 reloads; %d connections were closed before the request was read", ended.Load(), unheard.Load())
	wantMetricsOnce(t, g)
	handled := 0
	for verdict, n := range g.counts("caddy_idempotency_requests_total", "verdict") {
		if verdict != "bypassed" { // the harness asks whether the gateway is there
			handled += n
		}
	}
	if want := 3 * int(ended.Load()); handled != want {
		t.Errorf("the handler has seen %d requests, and %d were answered", handled, want)
	}
}

// wantMetricsOnce checks that the metrics are there, each of them once.
func wantMetricsOnce(t *testing.T, g *gateway) {
	t.Helper()
	seen := make(map[string]int)
	for line := range strings.Lines(g.metrics()) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok && strings.Contains(name, "idempotency") {
			seen[strings.Fields(name)[0]]++
		}
	}
	if len(seen) == 0 {
		t.Error("there are no metrics of idempotency")
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("the metric %s is there %d times", name, n)
		}
	}
}

// Reloads under load: whatever changes, also the name by which the same store is
// reached, no request fails, nothing is executed twice, and the connections of
// clients that are no longer configured are closed.
func TestReloadsUnderLoadOnRedis(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	at := func(reload int) site {
		addr := redis.Addr()
		if (reload/5)%2 == 1 { // a few times to another name and back
			addr = strings.Replace(addr, "127.0.0.1", "localhost", 1)
		}
		return to(up).on(storeAt(addr)).with("wait", fmt.Sprintf("%ds", 30+reload))
	}
	g := startGateway(t, at(0))
	reloadUnderLoad(t, g, up, at)
	// A gateway has one pool, and a few connections for hints.
	limit := max(20, 10*runtime.GOMAXPROCS(0)) + 4
	eventually(t, "no more connections to Redis than one gateway uses", func() bool { return redis.clients() <= limit })
	t.Logf("%d connections to Redis in the end", redis.clients())
	if err := g.terminate(); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
	eventually(t, "no connections to Redis are left", func() bool { return redis.clients() == 0 })
}

// The embedded store's file is held by one process, and handed on from one
// configuration to the next.
func TestReloadsUnderLoadOnBolt(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	at := func(reload int) site { return to(up).on("bolt").with("wait", fmt.Sprintf("%ds", 30+reload)) }
	g := startGateway(t, at(0))
	reloadUnderLoad(t, g, up, at)
	if err := g.terminate(); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
}

// CAD-11: a reload in the midst of an attempt cuts nobody off. The attempt goes
// on, who waited under the old configuration goes on waiting, and a duplicate
// under the new one, with another store client, waits for the same job.
func TestCAD11ReloadWhileAnAttemptRuns(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	g := startGateway(t, to(up).on(redis.store()))
	first := g.hurried().start(post("reloaded").tell("Up-Hold", "gate"))
	up.reached("reloaded", 1)
	before := g.hurried().start(post("reloaded"))
	g.awaitWaiting(1)
	if err := g.load(to(up).on(storeAt(strings.Replace(redis.Addr(), "127.0.0.1", "localhost", 1)))); err != nil {
		t.Fatalf("reload: %v", err)
	}
	after := g.hurried().startPersistently(post("reloaded"))
	g.awaitWaiting(2)
	up.release("gate")
	wantExecuted(t, first.answer())
	wantReplay(t, first.answer(), before.answer())
	wantReplay(t, first.answer(), after.answer())
	up.want("reloaded", 1)
}

// MOD-01: several sites, on several stores, and reloads: the metrics are there
// once.
func TestMOD01SeveralSitesShareTheMetrics(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	sites := []site{to(up).on("bolt"), to(up).on(redis.store()), to(up).on(redis.store()).with("space", "third")}
	g := startGatewayWith(t, "", sites...)
	for range 5 {
		if err := g.load(sites...); err != nil {
			t.Fatalf("reload: %v", err)
		}
	}
	for i := range sites {
		a, _ := g.clientOf(i).persist(post(fmt.Sprintf("site-%d", i)))
		wantExecuted(t, a)
	}
	wantMetricsOnce(t, g)
}

// MOD-04: a configuration that can't be loaded changes nothing: the old one goes
// on serving, and nothing of the new one is left behind.
func TestMOD04BrokenReloadChangesNothing(t *testing.T) {
	t.Parallel()
	up, redis, other := newUpstream(t), startRedis(t), redistest.Start(t)
	g := startGateway(t, to(up).on(redis.store()))
	c := g.hurried()
	a := c.do(post("kept"))
	wantExecuted(t, a)
	before := redis.clients()
	for _, broken := range []site{
		to(up).on(redis.store()).with("retention", "1s"),
		to(up).on(storeAt(other.Addr())).with("space", "_reserved"),
		{raw: to(up).on(storeAt(other.Addr())).block() + "\ntracing {\nspan\n}\n"},
	} {
		if err := g.load(broken); err == nil {
			t.Errorf("this was loaded:\n%s", broken.block())
		}
	}
	wantReplay(t, a, c.do(post("kept")))
	wantExecuted(t, c.do(post("new")))
	up.want("kept", 1)
	up.want("new", 1)
	eventually(t, "no more connections to Redis than before", func() bool { return redis.clients() <= before+2 })
}
