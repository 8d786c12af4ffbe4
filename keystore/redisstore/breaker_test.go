package redisstore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// stepping is a breaker whose probes are made, and answered, by the test.
type stepping struct {
	*breaker
	steps chan bool // each lets a wait end; false ends the probing
	probe chan error
	ended chan struct{}
}

func newStepping() *stepping {
	s := &stepping{steps: make(chan bool), probe: make(chan error), ended: make(chan struct{}, 1)}
	s.breaker = &breaker{
		trip:  tripAfter,
		probe: func() error { return <-s.probe },
		wait:  func() bool { return <-s.steps },
		watch: func(f func()) bool {
			go func() {
				f()
				s.ended <- struct{}{}
			}()
			return true
		},
	}
	return s
}

func (s *stepping) fail(times int) {
	for range times {
		s.failed(time.Now(), "gone")
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	t.Run("opens after failures in a row, and closes by a probe", func(t *testing.T) {
		t.Parallel()
		b := newStepping()
		b.fail(tripAfter - 1)
		if err := b.admit(); err != nil {
			t.Fatalf("open too early: %v", err)
		}
		b.answered()
		b.fail(tripAfter - 1)
		if err := b.admit(); err != nil {
			t.Fatalf("an answer between them did not count: %v", err)
		}
		b.fail(3) // more than needed start no second prober
		var open *openError
		if err := b.admit(); !errors.As(err, &open) {
			t.Fatalf("got %v, want it open", err)
		}
		if f := fateOf(b.admit()); !f.notApplied || f.again {
			t.Errorf("what is refused was not sent, and there is no use in trying again: %+v", f)
		}
		b.steps <- true
		b.probe <- &dialError{errors.New("still gone")}
		b.steps <- true
		if b.admit() == nil {
			t.Error("closed by a probe that failed")
		}
		b.probe <- nil
		<-b.ended
		if err := b.admit(); err != nil {
			t.Errorf("after a probe that succeeded: %v", err)
		}
		b.fail(tripAfter - 1)
		if err := b.admit(); err != nil {
			t.Errorf("old failures still count: %v", err)
		}
	})
	t.Run("a call that was still waiting closes it", func(t *testing.T) {
		t.Parallel()
		b := newStepping()
		b.fail(tripAfter)
		b.answered()
		if err := b.admit(); err != nil {
			t.Errorf("got %v", err)
		}
		b.steps <- true
		b.probe <- errors.New("of another opinion")
		<-b.ended
		if err := b.admit(); err != nil {
			t.Errorf("got %v", err)
		}
	})
	t.Run("slow is not down", func(t *testing.T) {
		t.Parallel()
		b := newStepping()
		began := time.Now()
		b.answered()
		for range 100 {
			b.failed(began, "no answer in time")
		}
		if err := b.admit(); err != nil {
			t.Errorf("got %v, although somebody had an answer meanwhile", err)
		}
	})
	t.Run("refused is answered", func(t *testing.T) {
		t.Parallel()
		for reply, down := range map[string]bool{
			"LOADING Redis is loading the dataset in memory": true, "MASTERDOWN Link with MASTER is down": true,
			"CLUSTERDOWN The cluster is down": true, "WRONGPASS invalid username-password pair": true,
			"CLUSTERDOWN Hash slot not served": false, "OOM command not allowed": false, "BUSY Redis is busy": false,
			"READONLY You can't write": false, "MOVED 1 127.0.0.1:1": false, "ERR unknown command": false,
		} {
			if f := fateOfReply(reply, false); f.down != down {
				t.Errorf("%s: is the server down: %t, want %t", reply, f.down, down)
			}
		}
	})
}

// TestOutageCostsMilliseconds: as soon as a server is known to be down, calls are
// refused at once and for certain, and none of them looks whether it is back.
func TestOutageCostsMilliseconds(t *testing.T) {
	t.Parallel()
	for what, outage := range map[string]struct{ begin, end func(*redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"frozen": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := faultnet.New(t, server.Addr())
			s := openAt(t, "redis://"+proxy.Addr(), func(o *Options) { o.Timeout, o.PoolSize = time.Second, 10 })
			mustCreate(t, s, job(s, "before"))
			outage.begin(server)
			if what == "killed" {
				proxy.CutAll()
			}
			// Many at a time find out, so that many wait.
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() { _, _, _ = s.Create(contextOf(t), job(s, fmt.Sprint("first", i))) })
			}
			wg.Wait()
			connections := proxy.Accepted()
			const calls = 2000
			began := time.Now()
			for i := range calls {
				_, _, err := s.Create(contextOf(t), job(s, "k"))
				if !errors.Is(err, keystore.ErrUnavailable) || !errors.Is(err, keystore.ErrNotApplied) {
					t.Fatalf("call %d: got %v, want that nothing was sent", i, err)
				}
			}
			took := time.Since(began)
			probes := proxy.Accepted() - connections
			if most := int(took/(probeEvery/2)) + 2; probes > most {
				t.Errorf("%d refused calls within %s made the client connect %d times", calls, took, probes)
			}

			var waiting atomic.Int64
			for i := range 40 { // a herd
				waiting.Add(1)
				go func() {
					defer waiting.Add(-1)
					eventually(t, "a record is created", func() bool {
						_, created, err := s.Create(contextOf(t), job(s, fmt.Sprint("back", i)))
						return err == nil && created
					})
				}()
			}
			connections = proxy.Accepted()
			outage.end(server)
			back := time.Now()
			eventually(t, "all have been served", func() bool { return waiting.Load() == 0 })
			t.Logf("%d refusals took %s; all served %s after its return", calls, took.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
			if n := proxy.Accepted() - connections; n > 40 {
				t.Errorf("the server's return was met by %d connections, with a pool of 10", n)
			}
		})
	}
}

// TestWrongPasswordForAWhile: a server that lets nobody in is down as well, until it
// does again.
func TestWrongPasswordForAWhile(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "hunter2")
	admin := rawClient(t, "redis://:hunter2@"+server.Addr())
	s := openAt(t, "redis://:hunter2@"+server.Addr())
	mustCreate(t, s, job(s, "before"))
	if err := admin.ConfigSet(contextOf(t), "requirepass", "another").Err(); err != nil {
		t.Fatal(err)
	}
	s.dialer.retire(s.dialer.generation.Load()) // old connections would go on
	eventually(t, "it is known that the server lets nobody in", func() bool {
		_, _, err := s.Create(contextOf(t), job(s, "k"))
		mustBeUnavailable(t, "create", err, true)
		return s.servers.one.isOpen()
	})
	if err := admin.ConfigSet(contextOf(t), "requirepass", "hunter2").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it lets us in again", func() bool {
		_, created, err := s.Create(contextOf(t), job(s, "k"))
		return err == nil && created
	})
}
