package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// onceFor fails the first n calls of an operation.
func onceFor(op string, n int, err error) func(string) error {
	left := n
	return func(got string) error {
		if got == op && left > 0 {
			left--
			return err
		}
		return nil
	}
}

func TestRED10NothingRunsWithoutTheStore(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(func(string) error { return errors.Join(errInjected, keystore.ErrNotApplied) }, nil)
		for range 3 {
			r := f.do(request{}).want(t, 503, CodeStoreUnavailable)
			if r.Header().Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
		f.do(request{key: "none"}).wantBody(t, 200, "execution 1", false)
		f.mem.fail(nil, nil)
		f.do(request{}).wantBody(t, 200, "execution 2", false)
		f.wantExecutions(2)
	})
}

// The claim landed, its reply did not come: nothing is sent, the record comes to
// say so, and the key is free for the next request.
func TestAmbiguousClaimIsAborted(t *testing.T) {
	for name, lost := range map[string]bool{"landed": true, "not landed": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				if lost {
					f.mem.fail(nil, onceFor("create", 1, errInjected))
				} else {
					f.mem.fail(onceFor("create", 1, errInjected), nil)
				}
				f.do(request{}).want(t, 503, CodeStoreUnavailable)
				f.wantExecutions(0)
				time.Sleep(time.Minute)
				a := f.mem.job().LastAttempt()
				if a.State != keystore.AttemptFailed || !strings.HasPrefix(a.Reason, keystore.ReasonNeverDispatched) {
					t.Errorf("attempt is %s: %s", a.State, a.Reason)
				}
				f.do(request{}).wantBody(t, 200, "execution 1", false)
				f.do(request{}).wantBody(t, 200, "execution 1", true)
			})
		})
	}
}

func TestAmbiguousNextAttemptIsAborted(t *testing.T) {
	for name, lost := range map[string]bool{"landed": true, "not landed": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.serve = func(w http.ResponseWriter, _ *http.Request) error {
					w.WriteHeader(http.StatusTooManyRequests)
					return nil
				}
				f.do(request{})
				if lost {
					f.mem.fail(nil, onceFor("swap", 1, errInjected))
				} else {
					f.mem.fail(onceFor("swap", 1, errInjected), nil)
				}
				f.do(request{}).want(t, 503, CodeStoreUnavailable)
				f.wantExecutions(1)
				time.Sleep(time.Minute)
				f.serve = nil
				f.do(request{}).wantBody(t, 200, "execution 2", false)
				if n := f.mem.job().AttemptCount(); n != 3 {
					t.Errorf("%d attempts, want 3", n)
				}
			})
		})
	}
}

func TestStoreOutageDuringAbort(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, onceFor("create", 1, errInjected))
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.mem.fail(func(string) error { return errInjected }, nil)
		time.Sleep(5 * time.Minute)
		f.mem.fail(nil, nil)
		time.Sleep(10 * time.Second)
		f.do(request{}).wantBody(t, 200, "execution 1", false)
	})
}

func TestRED11AnswerOutlivesTheStore(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			f.mem.fail(func(string) error { return errInjected }, nil)
			_, err := io.WriteString(w, "paid")
			return err
		}
		started := time.Now()
		r := f.do(request{}).wantBody(t, 200, "paid", false)
		if took := time.Since(started); took < answerTime || took > 2*answerTime {
			t.Errorf("answered after %v", took)
		}
		if r.Header().Get(HeaderRecorded) != "false" {
			t.Errorf("headers %v", r.Header())
		}
		time.Sleep(10 * time.Second)
		f.mem.fail(nil, nil)
		time.Sleep(5 * time.Second)
		r = f.do(request{}).wantBody(t, 200, "paid", true)
		if r.Header().Get(HeaderRecorded) != "" {
			t.Error("a replay is marked as not recorded")
		}
		f.wantExecutions(1)
	})
}

// A commit whose reply is lost has been made: the answer is the first one's, and
// the attempt has not lost a race against itself.
func TestCL09LostReplyToTheCommit(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, onceFor("swap", 1, errInjected))
		f.do(request{}).wantBody(t, 200, "execution 1", false)
		if f.incs.of(IncidentDiscarded) != 0 {
			t.Error("its own commit was taken for somebody else's")
		}
		f.do(request{}).wantBody(t, 200, "execution 1", true)
	})
}

func TestCL14GarbageIsRefused(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.do(request{})
		for _, garbage := range []string{"garbage", "", "\x01", strings.Repeat("x", 100)} {
			f.mem.garble(garbage)
			f.do(request{}).want(t, 503, CodeStoreUnavailable)
			time.Sleep(time.Minute)
			for _, record := range f.mem.records {
				if string(record) != garbage {
					t.Errorf("%q was overwritten", garbage)
				}
			}
		}
		f.wantExecutions(1)
	})
}

// nothingStore says that the record is there and gives none.
type nothingStore struct{ *memStore }

func (nothingStore) Create(context.Context, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, false, nil
}

func TestCL08ExistsButReadsAsNothing(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, nothingStore{newMemStore()}, Config{})
	f.do(request{}).want(t, 503, CodeStoreUnavailable)
	f.wantExecutions(0)
}

func TestLongAttemptsKeepTheirLease(t *testing.T) {
	bubble(t, Config{Lease: 10 * time.Second, Timeout: 5 * time.Minute}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(2*time.Minute, f)
		go f.do(request{})
		for range 11 {
			time.Sleep(10 * time.Second)
			if s := f.mem.job().State(f.store.Now()); s != keystore.JobRunning {
				t.Fatalf("job is %s", s)
			}
		}
		time.Sleep(time.Minute)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		if n := f.incs.of(IncidentRenewed); n < 15 || n > 20 {
			t.Errorf("%d renewals in 2 minutes with a lease of 10 s", n)
		}
	})
}

func TestShortAttemptsCostTwoCalls(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(1900*time.Millisecond, f)
		f.do(request{})
		if len(f.mem.ops) != 2 {
			t.Errorf("operations: %v", f.mem.ops)
		}
	})
}

// A gateway that is gone leaves a claim behind. The end of its lease makes the
// job unknown, whoever asks.
func TestCL06DeadGateway(t *testing.T) {
	bubble(t, Config{Lease: 10 * time.Second, Wait: 15 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = func(http.ResponseWriter, *http.Request) error {
			f.gateway.Close() // no more renewals, no more writes
			<-t.Context().Done()
			return errors.New("gone")
		}
		dead := f.gateway
		ctx, cancel := context.WithCancel(t.Context())
		go f.do(request{ctx: ctx})
		synctest.Wait()
		other := newFixtureOn(t, f.store, f.route.Config)
		other.do(request{}).want(t, 504, CodeOutcomeUnknown)
		other.do(request{}).want(t, 504, CodeOutcomeUnknown)
		other.wantExecutions(0)
		f.wantExecutions(1)
		time.Sleep(48 * time.Hour)
		other.do(request{}).want(t, 504, CodeOutcomeUnknown)
		other.gateway.Close()
		cancel()
		for a := range dead.attempts {
			a.cancel(errStopped)
		}
	})
}

// A claim is lost once, however often the attempt's lease is to be renewed.
func TestLostClaimIsCountedOnce(t *testing.T) {
	bubble(t, Config{Lease: 3 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(30*time.Second, f)
		first := make(chan result, 1)
		go func() { first <- f.do(request{}) }()
		synctest.Wait()
		f.mem.wipe()
		other := newFixtureOn(t, f.store, f.route.Config) // a gateway that knows nothing of the first
		other.do(request{}).wantBody(t, 200, "execution 1", false)
		time.Sleep(20 * time.Second) // several leases
		if n := f.incs.of(IncidentClaimLost); n != 1 || f.incs.told(EventClaimLost) != 1 {
			t.Errorf("counted %d times while the attempt ran", n)
		}
		if r := (<-first).wantBody(t, 200, "execution 1", false); r.Header().Get(HeaderRecorded) != "false" {
			t.Errorf("an answer that could not be recorded is not marked: %v", r.Header())
		}
		if n := f.incs.of(IncidentClaimLost); n != 1 {
			t.Errorf("counted %d times in all", n)
		}
		other.gateway.Close()
	})
}
