package redisstore

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

// TestRED02ReadOnlyServer: the server that a name pointed to is demoted, and the
// name points to another one. Connections to the old one are still open, and
// healthy. The store leaves them at the first write they refuse.
func TestRED02ReadOnlyServer(t *testing.T) {
	t.Parallel()
	old, next := redistest.Start(t), redistest.Start(t)
	name := faultnet.New(t, old.Addr())
	s := openAt(t, "redis://"+name.Addr())
	onNext := openAt(t, next.URL())

	// Several connections, all of them to the old server.
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() { _, _, _ = s.Create(context.Background(), job(s, fmt.Sprint("old", i))) })
	}
	wg.Wait()
	warm := mustCreate(t, s, job(s, "warm"))
	mustSwap(t, s, warm.WriteID, completed(s, warm, nil))

	_, port, _ := strings.Cut(next.Addr(), ":")
	if err := rawClient(t, old.URL()).Do(contextOf(t), "replicaof", "127.0.0.1", port).Err(); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.Create(contextOf(t), job(s, "refused"))
	mustBeUnavailable(t, "create on the demoted server", err, true)
	j := mustCreate(t, onNext, job(onNext, "k"))
	eventually(t, "the old server follows the new one", func() bool {
		found, err := s.Get(contextOf(t), j.Name)
		return err == nil && found != nil
	})
	_, _, err = s.Swap(contextOf(t), j.WriteID, completed(s, j, nil))
	mustBeUnavailable(t, "swap on the demoted server", err, true)

	name.Redirect(next.Addr())
	done := completed(s, j, []byte("paid"))
	eventually(t, "a write reaches the new server", func() bool {
		_, swapped, err := s.Swap(contextOf(t), j.WriteID, done)
		return err == nil && swapped
	})
	if got := mustGet(t, onNext, j.Name); got.WriteID != done.WriteID {
		t.Error("the write did not reach the new server")
	}
}

// TestRED02OpaqueConnections: connections that the pool can't look into, such as
// those over TLS, are left just the same.
func TestRED02OpaqueConnections(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		o := Options{URL: "redis://" + proxy.Addr(), Timeout: 5 * time.Second}.withDefaults()
		where, opt, err := o.client()
		if err != nil {
			t.Fatal(err)
		}
		s := open(o, where, opt, &dialer{wrap: func(c net.Conn) net.Conn { return struct{ net.Conn }{c} }})
		t.Cleanup(func() { _ = s.Close() })

		var wg sync.WaitGroup
		for i := range 10 { // several idle connections
			wg.Go(func() { _, _, _ = s.Create(context.Background(), job(s, fmt.Sprint("k", i))) })
		}
		wg.Wait()
		before := proxy.Accepted()
		f := answer("READONLY You can't write against a read only replica.")
		f.Command, f.Times = "set", 1
		proxy.Inject(f)
		mustCreate(t, s, job(s, "another"))
		if proxy.Accepted() == before {
			t.Error("a connection to the read-only server was used again")
		}
	})
}

// TestRED02ReadOnlyInsideAScriptError: older servers wrap the error of a command
// inside a script, so that it does not begin with its code.
func TestRED02ReadOnlyInsideAScriptError(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		j := mustCreate(t, s, job(s, "k"))
		before := proxy.Accepted()
		f := answer("ERR Error running script (call to f_1f): @user_script:12: -READONLY You can't write against a read only replica.")
		f.Command, f.Times = "evalsha", 1
		proxy.Inject(f)
		mustSwap(t, s, j.WriteID, completed(s, j, nil))
		if proxy.Accepted() == before {
			t.Error("the connection to the read-only server was used again")
		}
	})
}

// TestRED03ScriptCacheGone: a server that has forgotten the scripts is told them
// again, in the same call.
func TestRED03ScriptCacheGone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s := openAt(t, "redis://"+addr)
		admin := rawClient(t, "redis://"+addr)
		for i := range 3 {
			j := mustCreate(t, s, job(s, fmt.Sprint("k", i)))
			if err := admin.ScriptFlush(contextOf(t)).Err(); err != nil {
				t.Fatal(err)
			}
			_, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			mustSwap(t, s, j.WriteID, completed(s, j, nil))
			stop()
			if err := s.Index(contextOf(t), keystore.IndexEntryOf(j)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.List(contextOf(t), "", 10); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestRED10LazyOpen: a store can be opened while its server is down. Until that
// is up, every write is refused for certain.
func TestRED10LazyOpen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	s := openAt(t, server.URL())
	_, _, err := s.Create(contextOf(t), job(s, "k"))
	mustBeUnavailable(t, "create", err, true)
	server.Restart()
	eventually(t, "a record is created", func() bool {
		_, created, err := s.Create(contextOf(t), job(s, "k"))
		return err == nil && created
	})
	eventually(t, "the server's clock is known", func() bool {
		_, known := s.ClockOffset()
		return known
	})
}

// TestRED12PoolRecovers: after an outage under load the first call that comes
// when the server is back succeeds, or one of the next ones.
func TestRED12PoolRecovers(t *testing.T) {
	t.Parallel()
	for what, outage := range map[string]func(*redistest.Server){
		"killed": func(s *redistest.Server) {
			s.Kill()
			time.Sleep(time.Second)
			s.Restart()
		},
		"frozen": func(s *redistest.Server) {
			s.Freeze()
			time.Sleep(time.Second)
			s.Thaw()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			s := openAt(t, server.URL(), func(o *Options) { o.Timeout = 500 * time.Millisecond })
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			var succeeded, failed atomic.Int64
			for i := range 100 { // five times as many as there are connections
				wg.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						callCtx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
						if _, _, err := s.Create(callCtx, job(s, fmt.Sprint("load", i, n))); err == nil {
							succeeded.Add(1)
						} else {
							failed.Add(1)
							time.Sleep(5 * time.Millisecond)
						}
						cancel()
					}
				})
			}
			eventually(t, "the load runs", func() bool { return succeeded.Load() > 100 })
			outage(server)
			back := time.Now()
			before := succeeded.Load()
			eventually(t, "the load runs again", func() bool { return succeeded.Load() > before+100 })
			t.Logf("100 calls succeeded %s after the server was back; %d failed", time.Since(back).Round(time.Millisecond), failed.Load())
			cancel()
			wg.Wait()
		})
	}
}

// TestRED13CancelledCallers: many callers that lose their patience cost no more
// connections than patient ones.
func TestRED13CancelledCallers(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		const poolSize = 20
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr(), func(o *Options) { o.PoolSize, o.Timeout = poolSize, patience })
		// Slow answers, so that nearly all give up while their command is on its way.
		proxy.Inject(faultnet.Fault{Command: "set", Do: faultnet.Delay, Delay: 5 * time.Millisecond})
		var wg sync.WaitGroup
		var gaveUp atomic.Int64
		for i := range 2000 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				defer cancel()
				if _, _, err := s.Create(ctx, job(s, fmt.Sprint("k", i))); err != nil {
					gaveUp.Add(1)
				}
			})
		}
		wg.Wait()
		_ = s.Close() // waits for those that nobody waits for any more
		if gaveUp.Load() < 1000 {
			t.Fatalf("only %d of 2000 callers gave up: this shows nothing", gaveUp.Load())
		}
		if n := proxy.Accepted(); n > 2*poolSize {
			t.Errorf("%d callers that gave up made the client connect %d times, with a pool of %d", gaveUp.Load(), n, poolSize)
		}
	})
}

// TestKillAndRestart: what was acknowledged is there after a crash, if the
// server keeps an append-only file.
func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := openAt(t, server.URL())
	j := mustCreate(t, s, job(s, "completed"))
	done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
	running := mustCreate(t, s, job(s, "running"))
	server.Kill()
	server.Restart()
	eventually(t, "the records are back", func() bool {
		got, err := s.Get(contextOf(t), j.Name)
		return err == nil && got.WriteID == done.WriteID
	})
	mustCreate(t, s, running) // it is its own earlier send
	mustSwap(t, s, running.WriteID, completed(s, running, nil))
}

// TestLinearizableThroughCrashes kills the server again and again while clients
// claim and commit.
func TestLinearizableThroughCrashes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	var calls atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for crashes := int64(1); crashes <= 3; crashes++ {
			for calls.Load() < crashes*200 { // somewhere in the middle of the work
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
			server.Restart()
		}
	})
	storetest.Linearizable(t, func(testing.TB) storetest.Backend {
		return storetest.Backend{Open: func(t testing.TB) keystore.Store {
			return &counting{Store: openAt(t, server.URL()), calls: &calls}
		}}
	}, storetest.Load{})
	close(stop)
	wg.Wait()
}

// counting counts the calls of Now, of which every operation makes one.
type counting struct {
	*Store
	calls *atomic.Int64
}

func (c *counting) Now() keystore.Time {
	c.calls.Add(1)
	return c.Store.Now()
}
