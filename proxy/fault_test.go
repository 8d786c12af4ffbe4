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

// A gateway that stood still for longer than half the lease between the claim
// and the dispatch sends nothing, and the key is free again.
func TestNothingIsDispatchedLate(t *testing.T) {
	bubble(t, Config{Lease: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, func(op string) error {
			if op == "create" {
				time.Sleep(6 * time.Second)
			}
			return nil
		})
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.wantExecutions(0)
		f.mem.fail(nil, nil)
		a := f.mem.job().LastAttempt()
		if a.State != keystore.AttemptFailed || !strings.HasPrefix(a.Reason, keystore.ReasonNeverDispatched) {
			t.Errorf("attempt is %s: %s", a.State, a.Reason)
		}
		f.do(request{}).wantBody(t, 200, "execution 1", false)
	})
}

// The same, but the lease has lapsed and been written down before the gateway
// goes on.
func TestLapsedBeforeDispatch(t *testing.T) {
	bubble(t, Config{Lease: 10 * time.Second}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, func(op string) error {
			if op == "create" {
				time.Sleep(15 * time.Second)
			}
			return nil
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.do(request{}).want(t, 503, CodeStoreUnavailable)
		}()
		time.Sleep(12 * time.Second)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		<-done
		time.Sleep(time.Second)
		f.wantExecutions(0)
		f.mem.fail(nil, nil)
		f.do(request{}).wantBody(t, 200, "execution 1", false)
	})
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

func TestCL10VanishedRecord(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(10*time.Second, f)
		go f.do(request{})
		synctest.Wait()
		waiter := make(chan result)
		go func() { waiter <- f.do(request{}) }()
		synctest.Wait()
		f.mem.wipe()
		(<-waiter).want(t, 503, CodeRecordLost)
		time.Sleep(20 * time.Second)
		// The attempt itself was alive, and its commit has brought the job back.
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
		if f.incs.of(IncidentClaimLost) != 1 {
			t.Error("the loss was not counted")
		}
	})
}

func TestDrainLetsAttemptsEnd(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(3*time.Second, f)
		first, waiter := make(chan result, 1), make(chan result, 1)
		go func() { first <- f.do(request{}) }()
		synctest.Wait()
		go func() { waiter <- f.do(request{}) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		started := time.Now()
		f.gateway.Drain(ctx)
		if took := time.Since(started); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("drained in %v", took)
		}
		(<-waiter).want(t, 409, CodeInFlight)
		(<-first).wantBody(t, 200, "execution 1", false)
		f.do(request{key: "k2"}).want(t, 503, CodeStoreUnavailable)
		if f.mem.job().State(f.store.Now()) != keystore.JobCompleted {
			t.Error("not completed")
		}
	})
}

func TestDrainCutsWhatDoesNotEnd(t *testing.T) {
	for name, deafToContext := range map[string]bool{"handler ends": false, "handler hangs": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				hang := make(chan struct{})
				f.serve = func(w http.ResponseWriter, r *http.Request) error {
					if deafToContext {
						<-hang
						return nil
					}
					<-r.Context().Done()
					w.WriteHeader(499)
					return nil
				}
				first := make(chan result, 1)
				go func() { first <- f.do(request{}) }()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				f.gateway.Drain(ctx)
				a := f.mem.job().LastAttempt()
				if a.State != keystore.AttemptUnknown || a.Reason != "gateway stopped" {
					t.Errorf("attempt is %s: %s", a.State, a.Reason)
				}
				(<-first).want(t, 504, CodeOutcomeUnknown)
				close(hang)
			})
		})
	}
}

func TestResultNotKept(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 1000}, func(t *testing.T, f *fixture) {
		large := strings.Repeat("0123456789", 300)
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Location", "/o/1")
			w.WriteHeader(201)
			for i := range 30 {
				time.Sleep(30 * time.Second) // longer than the timeout, in all
				if _, err := io.WriteString(w, large[i*100:(i+1)*100]); err != nil {
					return err
				}
			}
			return nil
		}
		f.route.Timeout = 10 * time.Minute
		f.do(request{}).wantBody(t, 201, large, false)
		r := f.do(request{}).want(t, 410, CodeResultNotKept)
		if !strings.Contains(r.Body.String(), `"executed_status":201`) || !strings.Contains(r.Body.String(), `"executed_at":"`) {
			t.Errorf("problem: %s", r.Body)
		}
		f.wantExecutions(1)
	})
}

func TestLargeAnswerForNobody(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 1000}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			time.Sleep(2 * time.Second)
			_, err := w.Write(make([]byte, 5000))
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.do(request{ctx: ctx})
		time.Sleep(200 * time.Second)
		f.do(request{}).want(t, 410, CodeResultNotKept)
		f.wantExecutions(1)
	})
}

func TestLargeAnswerCutIsUnknownAndBrokenForTheClient(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 1000}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			_, _ = w.Write(make([]byte, 5000))
			panic(http.ErrAbortHandler)
		}
		func() {
			defer func() {
				if !isAbort(recover()) {
					t.Error("the client would see a clean end")
				}
			}()
			f.do(request{})
		}()
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
	})
}

func TestStreamFallsSilent(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 10, StreamIdle: 5 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			_, _ = w.Write(make([]byte, 50))
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		func() {
			defer func() { _ = recover() }()
			f.do(request{})
		}()
		a := f.mem.job().LastAttempt()
		if a.State != keystore.AttemptUnknown || a.Reason != errStreamIdle.Error() {
			t.Errorf("attempt is %s: %s", a.State, a.Reason)
		}
	})
}

// brokenReader is the body of a client that leaves before its end.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestUnfinishedBodyClaimsNothing(t *testing.T) {
	bubble(t, Config{MaxRequestBody: 1000, Buffer: 100}, func(t *testing.T, f *fixture) {
		for _, sent := range []int{0, 50, 500} {
			r := f.do(request{reader: io.MultiReader(strings.NewReader(strings.Repeat("x", sent)), brokenReader{})})
			if !errors.Is(r.err, io.ErrUnexpectedEOF) {
				t.Errorf("got %v", r.err)
			}
		}
		f.do(request{body: strings.Repeat("x", 1001)}).want(t, 413, CodeRequestTooLarge)
		f.do(request{reader: io.LimitReader(zeroes{}, 1001)}).want(t, 413, CodeRequestTooLarge)
		if len(f.mem.records) != 0 {
			t.Error("a record was made")
		}
		f.wantExecutions(0)
		f.do(request{body: strings.Repeat("x", 1000)}).wantBody(t, 200, "execution 1", false)
	})
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { return len(p), nil }
