package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// busy is a store all of whose lanes are under way, each with a GET that is held
// until release is called.
func busy(t *testing.T, options ...func(*Options)) (s *Store, proxy *faultnet.Proxy, release func()) {
	t.Helper()
	proxy = faultnet.New(t, redistest.Start(t).Addr())
	s = openAt(t, "redis://"+proxy.Addr(), append(options, func(o *Options) { o.Timeout = time.Minute })...)
	mustGetAny(t, s, keystore.NameOf("main", "alice", "warm"))
	var parked []*faultnet.Parked
	var all sync.WaitGroup
	for i := range maxLanes {
		p := proxy.Park("get")
		parked = append(parked, p)
		all.Go(func() {
			_, _ = s.Get(contextOf(t), keystore.NameOf("main", "alice", fmt.Sprint("held", i)))
		})
		<-p.Arrived()
	}
	var once sync.Once
	release = func() {
		once.Do(func() {
			for _, p := range parked {
				p.Release()
			}
			all.Wait()
		})
	}
	t.Cleanup(release)
	return s, proxy, release
}

// queued is how many commands wait for a lane.
func (s *Store) queued() int {
	l := s.servers.one.sharing.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Commands that come while all lanes are under way share the next round trip, and
// each gets its own reply.
func TestCommandsShareARoundTrip(t *testing.T) {
	t.Parallel()
	s, proxy, release := busy(t)
	const n = 100
	jobs := make([]*keystore.Job, n)
	for i := range jobs {
		jobs[i] = job(s, fmt.Sprint("k", i))
	}
	proxy.Gather("set", n)
	var all sync.WaitGroup
	for _, j := range jobs {
		all.Go(func() {
			if present, created, err := s.Create(contextOf(t), j); err != nil || !created || present != nil {
				t.Errorf("create: %v, %v, %v", present, created, err)
			}
		})
	}
	eventually(t, "all wait for a lane", func() bool { return s.queued() == n })
	release()
	all.Wait()
	if got := proxy.Flights("set"); got != 1 {
		t.Errorf("%d round trips for %d commands that could share one", got, n)
	}
	for _, j := range jobs {
		all.Go(func() {
			if got := mustGet(t, s, j.Name); got.WriteID != j.WriteID {
				t.Errorf("got the record of write %s, want that of %s", got.WriteID, j.WriteID)
			}
		})
	}
	all.Wait()
}

// Whoever no longer waits gets an answer at once. A command that had not left by then
// never does, and that is said; of one that had, nothing is.
func TestLeavingALane(t *testing.T) {
	t.Parallel()
	s, proxy, release := busy(t)
	ctx, cancel := context.WithCancel(contextOf(t))
	left := make(chan error, 1)
	j := job(s, "k")
	go func() {
		_, _, err := s.Create(ctx, j)
		left <- err
	}()
	eventually(t, "it waits for a lane", func() bool { return s.queued() == 1 })
	cancel()
	mustBeUnavailable(t, "a claim that was never sent", <-left, true)
	if n := s.queued(); n != 0 {
		t.Errorf("%d commands wait on", n)
	}
	release()
	mustGetAny(t, s, j.Name) // everything before it has been sent
	if n := proxy.Count("set"); n != 0 {
		t.Errorf("%d commands were sent that nobody waited for", n)
	}

	parked := proxy.Park("set")
	ctx, cancel = context.WithCancel(contextOf(t))
	go func() {
		_, _, err := s.Create(ctx, j)
		left <- err
	}()
	<-parked.Arrived()
	cancel()
	mustBeUnavailable(t, "a claim that was sent", <-left, false)
	parked.Release()
	eventually(t, "it was applied all the same", func() bool { return mustGetAny(t, s, j.Name) != nil })
}

func mustGetAny(t *testing.T, s *Store, name keystore.Name) *keystore.Job {
	t.Helper()
	j, err := s.Get(contextOf(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// A store that is closed leaves nobody waiting for a lane.
func TestCloseEmptiesTheLanes(t *testing.T) {
	t.Parallel()
	s, _, release := busy(t)
	errs := make(chan error, 10)
	for i := range cap(errs) {
		go func() {
			_, _, err := s.Create(contextOf(t), job(s, fmt.Sprint("k", i)))
			errs <- err
		}()
	}
	eventually(t, "all wait for a lane", func() bool { return s.queued() == cap(errs) })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, keystore.ErrUnavailable) && !errors.Is(err, keystore.ErrClosed) {
			t.Errorf("a claim that waited for a lane: %v", err)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	release()
	if _, err := s.Get(contextOf(t), keystore.Name{}); !errors.Is(err, keystore.ErrClosed) {
		t.Errorf("after that: %v", err)
	}
}

// Commands that wait for a lane when the server is found down are refused like those
// that come after: one round trip after the other would find out the same.
func TestWaitingForALaneToAServerThatIsDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openAt(t, server.URL(), func(o *Options) { o.Timeout = time.Second })
	eventually(t, "the clock is sampled", func() bool { _, known := s.ClockOffset(); return known })
	server.Freeze() // no answer says otherwise
	defer server.Thaw()
	for range s.servers.one.trip {
		s.servers.one.failed(time.Now(), "gone")
	}
	o := &order{cmd: redis.NewStringCmd(t.Context(), "get", "k"), done: make(chan struct{}, 1)}
	s.servers.one.sharing.lanes.send([]*order{o})
	<-o.done
	if f := fateOf(fmt.Errorf("%w", cmp.Or(o.cmd.Err(), errors.New("success")))); f.again || !f.notApplied {
		t.Errorf("got %v, want that nothing was sent", o.cmd.Err())
	}
}

// What is large does not wait for a lane, nor does anything where that is told.
func TestWhatGoesAlone(t *testing.T) {
	t.Parallel()
	s, _, _ := busy(t)
	j := job(s, "large")
	j.Request.Path = strings.Repeat("/", maxShared)
	mustCreate(t, s, j) // although no lane comes back

	alone := openAt(t, redistest.Start(t).URL(), func(o *Options) { o.Unshared = true })
	mustCreate(t, alone, job(alone, "k"))
	if alone.servers.one.sharing != nil {
		t.Error("there are lanes although there were to be none")
	}
}

// A connection that was retired while a batch was written may have taken some of it:
// that is not the same as nothing.
func TestRetiredMidwayIsInDoubt(t *testing.T) {
	t.Parallel()
	if f := fateOf(errRetiredMidway); !f.retired || !f.again || f.notApplied {
		t.Errorf("got %+v", f)
	}
}

// A server that refuses a new connection's greeting has executed nothing of what was
// to go over it. That must not look like commands that found nothing.
func TestRefusedGreetingIsNoReply(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if _, err := server.Do(t.Context(), "acl", "setuser", "someone", "on", ">right", "+@all", "~*"); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, "redis://someone:wrong@"+server.Addr(), func(o *Options) { o.Resends = -1 })
	cmds := make([]*order, 3)
	for i := range cmds {
		cmds[i] = &order{cmd: redis.NewStringCmd(t.Context(), "get", fmt.Sprint("k", i)), done: make(chan struct{}, 1)}
	}
	s.servers.one.sharing.lanes.send(cmds)
	for i, o := range cmds {
		<-o.done
		if f := fateOf(fmt.Errorf("%w", cmp.Or(o.cmd.Err(), errors.New("success")))); !f.down || !f.notApplied {
			t.Errorf("command %d: got %v", i, o.cmd.Err())
		}
	}
	found, err := s.getMany(t.Context(), "read", []string{"k0", "k1"})
	if !errors.Is(err, keystore.ErrUnavailable) {
		t.Errorf("reading many got %v, %v", found, err)
	}
}

// Callers that leave before a try has timed out don't keep a server that says nothing
// from being found down.
func TestAbandonedCommandsTripTheBreaker(t *testing.T) {
	t.Parallel()
	proxy := faultnet.New(t, redistest.Start(t).Addr())
	s := openAt(t, "redis://"+proxy.Addr(), func(o *Options) { o.Timeout = 500 * time.Millisecond })
	breaker := s.servers.one.breaker
	breaker.trip = 1
	eventually(t, "the server is found down", func() bool { // unless the clock was read at that moment
		parked := proxy.Park("get")
		defer parked.Release()
		ctx, cancel := context.WithCancel(contextOf(t))
		left := make(chan error, 1)
		go func() {
			_, err := s.Get(ctx, keystore.NameOf("main", "alice", "k"))
			left <- err
		}()
		<-parked.Arrived()
		cancel()
		mustBeUnavailable(t, "a call that was left", <-left, false)
		lanes := s.servers.one.sharing.lanes
		eventually(t, "its try has timed out", func() bool {
			lanes.mu.Lock()
			defer lanes.mu.Unlock()
			return lanes.idle == lanes.started
		})
		breaker.mu.Lock()
		defer breaker.mu.Unlock()
		return breaker.why != ""
	})
}

// What a caller who has left would have written is not written, also where the record
// is only just small enough.
func TestLeavingWithAnAlmostLargeRecord(t *testing.T) {
	t.Parallel()
	s := openAt(t, redistest.Start(t).URL())
	j := job(s, "k")
	for {
		record, err := keystore.EncodeRecord(j)
		if err != nil {
			t.Fatal(err)
		}
		if len(record) >= maxShared {
			break
		}
		j.Request.Path += strings.Repeat("/", max(1, maxShared-len(record)-10))
	}
	ctx, cancel := context.WithCancel(contextOf(t))
	cancel()
	_, _, err := s.Create(ctx, j)
	mustBeUnavailable(t, "a claim of a caller who has left", err, true)
}
