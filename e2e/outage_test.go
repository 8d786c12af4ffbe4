package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
)

var outageTime = flag.Duration("outage", 3*time.Second, "how long the store is down in TestRED12OutageUnderLoad")

// asked is one request of a load, and its answer.
type asked struct {
	key    string
	began  time.Time
	answer answer
}

// load sends requests with ever new keys until its context ends: 50 per second and
// worker at most, so that it is not the machine that is measured.
type load struct {
	mu  sync.Mutex
	all []asked
	wg  sync.WaitGroup
}

func startLoad(ctx context.Context, workers int, c *client) *load {
	l := new(load)
	for worker := range workers {
		l.wg.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond)
			defer pace.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				<-pace.C
				r := asked{key: fmt.Sprintf("load-%d-%d", worker, i), began: time.Now()}
				r.answer = c.do(post(r.key))
				l.mu.Lock()
				l.all = append(l.all, r)
				l.mu.Unlock()
			}
		})
	}
	return l
}

// since returns the requests that were sent from then on, and have been answered.
func (l *load) since(then time.Time) (some []asked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if !r.began.Before(then) {
			some = append(some, r)
		}
	}
	return some
}

func (r asked) served() bool { return r.answer.err == nil && r.answer.status == http.StatusOK }

// RED-12: a store that is down under load. What is asked for meanwhile is refused and
// not executed, without anybody having to wait for the store: only the one that looks
// after it connects. Once it is back everything is served, and nothing of it is left:
// neither connections nor goroutines.
func TestRED12OutageUnderLoad(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]struct{ begin, end func(*redisServer) }{
		"killed": {func(s *redisServer) { s.Kill() }, func(s *redisServer) { s.Restart() }},
		"frozen": {func(s *redisServer) { s.Freeze() }, func(s *redisServer) { s.Thaw() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const workers = 16
			up, redis := newUpstream(t), startDurableRedis(t)
			net := faultnet.New(t, redis.Addr())
			g := startGateway(t, to(up).on(storeAt(net.Addr())))
			c := g.client()
			ours := func() int {
				return g.stacks("caddy-idempotency/caddy-idempotency/") + g.stacks("redis/go-redis")
			}

			volley(5*workers, post("warm"), c)
			var before int
			eventually(t, "nothing is under way", func() bool { before = ours(); return g.stacks("proxy.(*Route).Serve") == 0 })

			start := time.Now()
			ctx, stop := context.WithCancel(t.Context())
			l := startLoad(ctx, workers, c)
			defer l.wg.Wait()
			defer stop()
			eventually(t, "the load is served", func() bool { return len(l.since(start)) > 200 })

			outage.begin(redis)
			down := time.Now()
			// Until the gateway knows, requests wait for their own tries.
			eventually(t, "requests are refused", func() bool {
				late := l.since(down)
				return len(late) > 10*workers && !slices.ContainsFunc(late[len(late)-workers:], func(r asked) bool { return r.answer.code() != "store-unavailable" })
			})
			known, dials := time.Now(), net.Accepted()
			time.Sleep(time.Until(down.Add(*outageTime))) // the one thing here that takes as long as it takes
			refused, dialled, lasted := l.since(known), net.Accepted()-dials, time.Since(known)
			outage.end(redis)
			back := time.Now()

			// A look comes every 50 ms at most, but for those whose time is asked for and
			// for those that wait for hints, each of which tries it by itself.
			if most := 20 + int(lasted/(50*time.Millisecond)) + int(lasted/(100*time.Millisecond)); dialled > most {
				t.Errorf("%d connections in %s, want at most %d: requests wait for the store", dialled, lasted, most)
			}
			eventually(t, "a hundred in a row are served", func() bool {
				since := l.since(back)
				return len(since) > 100 && !slices.ContainsFunc(since[len(since)-100:], func(r asked) bool { return !r.served() })
			})
			stop()
			l.wg.Wait()

			var slow []time.Duration
			for _, r := range refused {
				if r.answer.code() != "store-unavailable" {
					t.Fatalf("%s: want it refused, got %d %v %s", r.key, r.answer.status, r.answer.err, r.answer.body)
				}
				up.want(r.key, 0)
				if r.began.After(down.Add(time.Second)) {
					slow = append(slow, r.answer.took)
				}
			}
			var lastRefused time.Time
			for _, r := range l.since(start) {
				switch {
				case r.served():
					up.want(r.key, 1)
				case r.answer.code() != "store-unavailable" && r.answer.code() != "outcome-unknown":
					t.Errorf("%s: got %d %v %s", r.key, r.answer.status, r.answer.err, r.answer.body)
				case r.began.After(lastRefused):
					lastRefused = r.began
				}
				if n := len(up.of(r.key)); n > 1 {
					t.Errorf("%s was executed %d times", r.key, n)
				}
			}
			if len(slow) > 0 {
				slices.Sort(slow)
				t.Logf("down for %s: %d refusals, after the first second p50 %s, p99 %s, slowest %s; %d connections tried; the last request that was refused came %s after the store was back",
					time.Since(down).Round(time.Second), len(refused), slow[len(slow)/2], slow[len(slow)*99/100], slow[len(slow)-1], dialled, lastRefused.Sub(back).Round(time.Millisecond))
			}

			c.c.CloseIdleConnections()
			pool := max(20, 10*runtime.GOMAXPROCS(0)) + 4 // and a few for hints
			eventually(t, "connections are those of one pool", func() bool { return redis.clients() <= pool })
			var after int
			eventually(t, "no more goroutines than before", func() bool { after = ours(); return after <= before })
			t.Logf("goroutines: %d before, %d after; connections to Redis: %d", before, after, redis.clients())
		})
	}
}
