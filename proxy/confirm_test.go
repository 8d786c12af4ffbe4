package proxy

import (
	"context"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// durableStore is told to wait for acknowledgements. As long as it lags there are
// none.
type durableStore struct {
	*memStore
	lags bool
}

func (*durableStore) Durable() bool { return true }

func (s *durableStore) Swap(ctx context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	present, done, err := s.memStore.Swap(ctx, expected, j)
	if done && err == nil && s.lags {
		return nil, true, errShort
	}
	return present, done, err
}

// An answer that another gateway has recorded is not given out before it is durable,
// and that is found out once. One's own is known to be.
func TestReplayIsOfWhatIsDurable(t *testing.T) {
	t.Parallel()
	store := &durableStore{memStore: newMemStore()}
	one, two := newFixtureOn(t, store, Config{}), newFixtureOn(t, store, Config{})
	swaps := func(want int) {
		t.Helper()
		if n := store.calls("swap"); n != want {
			t.Errorf("%d swaps, want %d", n, want)
		}
	}
	first := one.do(request{}).wantBody(t, 200, "execution 1", false)
	for range 3 {
		one.do(request{}).wantBody(t, 200, "execution 1", true)
	}
	swaps(1)
	store.lags = true
	for range 2 {
		two.do(request{}).want(t, 503, CodeStoreUnavailable)
	}
	one.do(request{}).wantBody(t, 200, "execution 1", true)
	store.lags = false
	for range 3 {
		r := two.do(request{}).wantBody(t, 200, "execution 1", true)
		if r.Header().Get(HeaderJob) != first.Header().Get(HeaderJob) {
			t.Error("it is another job's answer")
		}
	}
	swaps(4)
	one.wantExecutions(1)
	two.wantExecutions(0)
}

// What is there by the time that it is asked for decides.
func TestReplayIsOfWhatIsThereWhenItIsConfirmed(t *testing.T) {
	t.Parallel()
	store := &vanishing{durableStore{memStore: newMemStore()}}
	one, two := newFixtureOn(t, store, Config{}), newFixtureOn(t, store, Config{})
	one.do(request{}).wantBody(t, 200, "execution 1", false)
	two.do(request{}).want(t, 503, CodeRecordLost)
	two.wantExecutions(0)
}

// vanishing loses a record in the moment before it is confirmed.
type vanishing struct{ durableStore }

func (s *vanishing) Swap(ctx context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	if expected.IsZero() {
		s.wipe()
	}
	return s.durableStore.Swap(ctx, expected, j)
}
