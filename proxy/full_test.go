package proxy

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// fullStore has no room for bodies, nor for new jobs, as long as it is full; with none
// it has no room for anything.
type fullStore struct {
	*memStore
	full, none atomic.Bool
}

var errFull = errors.Join(keystore.ErrUnavailable, keystore.ErrFull, keystore.ErrNotApplied)

func (s *fullStore) Create(ctx context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	if present, err := s.Get(ctx, j.Name); s.full.Load() && present == nil && err == nil {
		return nil, false, errFull
	}
	return s.memStore.Create(ctx, j)
}

func (s *fullStore) Swap(ctx context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	if s.none.Load() || (s.full.Load() && j.Result != nil && len(j.Result.Body) > 0) {
		return nil, false, errFull
	}
	return s.memStore.Swap(ctx, expected, j)
}

// A store that is full: new keys are refused before anything is sent. The first client
// gets the whole of an answer that is not to be kept any more; whoever repeats is told
// that it was executed.
func TestRED07AnswerThatDoesNotFitIsKeptWithoutItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullStore{memStore: newMemStore()}
		f := newFixtureOn(t, store, Config{})
		defer f.gateway.Close()
		f.serve = sleepy(time.Second, f)
		before := f.do(request{key: "before"}).wantBody(t, 200, "execution 1", false)
		first := make(chan result, 1)
		go func() { first <- f.do(request{}) }()
		synctest.Wait()
		store.full.Store(true)
		f.do(request{key: "new"}).want(t, 503, CodeStoreUnavailable)

		r := (<-first).wantBody(t, 200, "execution 2", false)
		if r.Header().Get(HeaderRecorded) != "" || r.Header().Get(HeaderExpires) == "" {
			t.Errorf("the first client is told that nothing was recorded: %v", r.Header())
		}
		for range 2 {
			r := f.do(request{}).want(t, 410, CodeResultNotKept)
			if !strings.Contains(r.Body.String(), `"executed_status":200`) {
				t.Errorf("it is not said how it was executed: %s", r.Body)
			}
			store.full.Store(false)
		}
		f.do(request{key: "before"}).wantBody(t, 200, before.Body.String(), true)
		f.do(request{key: "new"}).wantBody(t, 200, "execution 3", false)
		f.wantExecutions(3)
	})
}

// One that takes nothing at all is tried again, with the body: there may be room for
// that by then.
func TestAnswerIsKeptWholeOnceThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullStore{memStore: newMemStore()}
		f := newFixtureOn(t, store, Config{})
		defer f.gateway.Close()
		f.serve = sleepy(time.Second, f)
		first := make(chan result, 1)
		go func() { first <- f.do(request{}) }()
		synctest.Wait()
		store.none.Store(true)
		if r := (<-first).wantBody(t, 200, "execution 1", false); r.Header().Get(HeaderRecorded) != "false" {
			t.Errorf("it is not said that the answer is not recorded: %v", r.Header())
		}
		store.none.Store(false)
		time.Sleep(10 * time.Second)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
	})
}

// narrowStore takes bodies more slowly than anybody waits for it.
type narrowStore struct {
	*memStore
	narrow atomic.Bool
	atOnce bool // it refuses them instead
	tries  atomic.Int32
}

func (s *narrowStore) Swap(ctx context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	if s.narrow.Load() && j.Result != nil && len(j.Result.Body) > 0 {
		s.tries.Add(1)
		if !s.atOnce {
			<-ctx.Done()
		}
		return nil, false, errors.Join(keystore.ErrUnavailable, keystore.ErrNotApplied)
	}
	return s.memStore.Swap(ctx, expected, j)
}

// An answer that the store takes too slowly, time and again, is recorded without its body
// before its job becomes unknown. One that it takes after a while, or refuses for another
// reason, is kept whole, and so is one whose body can't be the reason.
func TestAnswerThatIsTooSlowToKeep(t *testing.T) {
	for name, after := range map[string]time.Duration{"always": 0, "for a while": 8 * time.Second, "refused": 20 * time.Second, "small": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &narrowStore{memStore: newMemStore(), atOnce: name == "refused"}
				f := newFixtureOn(t, store, Config{})
				defer f.gateway.Close()
				store.narrow.Store(true)
				body := "small"
				if name != body {
					body = strings.Repeat("x", slowBody)
				}
				f.serve = says(200, body)
				if r := f.do(request{}).wantBody(t, 200, body, false); r.Header().Get(HeaderRecorded) != "false" {
					t.Errorf("it is not said that the answer is not recorded: %v", r.Header())
				}
				if after > 0 {
					time.Sleep(after)
					store.narrow.Store(false)
				}
				time.Sleep(f.route.Lease)
				if after > 0 {
					f.do(request{}).wantBody(t, 200, body, true)
				} else {
					f.do(request{}).want(t, 410, CodeResultNotKept)
				}
				before := store.tries.Load()
				time.Sleep(time.Hour)
				if again := store.tries.Load() - before; again > 0 {
					t.Errorf("the body was sent %d times more", again)
				}
				f.wantExecutions(1)
			})
		})
	}
}
