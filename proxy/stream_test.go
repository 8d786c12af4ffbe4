package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

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

// client is a connection to a client that takes nothing any more from some
// instant on: it has gone, or it stands still until it is woken.
type client struct {
	*httptest.ResponseRecorder
	until time.Time
	wake  <-chan struct{} // nil: it has gone
}

func (c *client) Write(p []byte) (int, error) {
	if time.Now().Before(c.until) {
		return c.ResponseRecorder.Write(p)
	}
	if c.wake == nil {
		return 0, errors.New("broken pipe")
	}
	<-c.wake
	return c.ResponseRecorder.Write(p)
}

// drip is an upstream that sends 30 parts of a large answer at an interval, ends
// with its context as reverse_proxy does, and says how long it was held up.
func drip(interval time.Duration, held *atomic.Int64) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		for range 30 {
			select {
			case <-time.After(interval):
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
			started := time.Now()
			if _, err := w.Write(make([]byte, 100)); err != nil {
				return err
			}
			held.Add(int64(time.Since(started)))
		}
		return nil
	}
}

// A client that leaves, before a large answer or in the middle, neither ends the
// attempt nor slows its upstream down: what became of it is to be recorded.
func TestGoneClientDoesNotTouchALargeAnswer(t *testing.T) {
	for name, after := range map[string]time.Duration{"before the answer": 0, "in the middle": 35 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{MaxResponseBody: 10, Timeout: 30 * time.Second, StreamIdle: 30 * time.Second}, func(t *testing.T, f *fixture) {
				var held atomic.Int64
				f.serve = drip(10*time.Second, &held)
				gone := &client{ResponseRecorder: httptest.NewRecorder(), until: time.Now().Add(after)}
				if err := f.deliver(gone, request{}); err != nil {
					t.Errorf("got %v", err)
				}
				time.Sleep(10 * time.Minute)
				if took := time.Duration(held.Load()); took != 0 {
					t.Errorf("the upstream was held up for %v", took)
				}
				f.do(request{}).want(t, 410, CodeResultNotKept)
				f.wantExecutions(1)
			})
		})
	}
}

// A client that takes nothing holds the upstream up for stream_idle, and is then
// left behind. The time in which it is waited for is not the upstream's silence.
func TestStalledClientIsLeftBehind(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 10, StreamIdle: 15 * time.Second}, func(t *testing.T, f *fixture) {
		var held atomic.Int64
		f.serve = drip(10*time.Second, &held)
		wake := make(chan struct{})
		stalled := &client{ResponseRecorder: httptest.NewRecorder(), until: time.Now().Add(35 * time.Second), wake: wake}
		broken := make(chan bool, 1)
		go func() {
			defer func() { broken <- isAbort(recover()) }()
			_ = f.deliver(stalled, request{})
		}()
		time.Sleep(10 * time.Minute)
		if took := time.Duration(held.Load()); took != 15*time.Second {
			t.Errorf("the upstream was held up for %v", took)
		}
		f.do(request{}).want(t, 410, CodeResultNotKept)
		f.wantExecutions(1)
		close(wake)
		if !<-broken {
			t.Error("a client that missed most of the answer sees a clean end")
		}
	})
}

// The whole answer is there; that its end can't be recorded is no reason to keep
// the client waiting for it.
func TestEndOfALargeAnswerDoesNotWaitForTheStore(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 10}, func(t *testing.T, f *fixture) {
		large := strings.Repeat("x", 100)
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			f.mem.fail(func(string) error { return errInjected }, nil)
			_, err := io.WriteString(w, large)
			return err
		}
		time.AfterFunc(time.Hour, func() { f.mem.fail(nil, nil) })
		started := time.Now()
		defer func() {
			if isAbort(recover()) {
				t.Errorf("the answer was cut after %v", time.Since(started))
			}
		}()
		f.do(request{}).wantBody(t, 200, large, false)
		if took := time.Since(started); took > answerTime {
			t.Errorf("the answer ended after %v", took)
		}
		time.Sleep(2 * time.Hour)
		f.do(request{}).want(t, 410, CodeResultNotKept)
		f.wantExecutions(1)
	})
}

// A handler that hangs in the middle of a large answer, deaf to its context,
// must not keep the job running nor the client waiting.
func TestHangingLargeAnswerIsUnknownAndBrokenForTheClient(t *testing.T) {
	bubble(t, Config{MaxResponseBody: 10, StreamIdle: 5 * time.Second, Lease: 20 * time.Second}, func(t *testing.T, f *fixture) {
		hang := make(chan struct{})
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			_, err := w.Write(make([]byte, 100))
			<-hang
			return err
		}
		broken := make(chan bool, 1)
		go func() {
			defer func() { broken <- isAbort(recover()) }()
			f.do(request{})
		}()
		time.Sleep(5*time.Second + 2*answerTime)
		select {
		case b := <-broken:
			if !b {
				t.Error("the client sees a clean end")
			}
		default:
			t.Error("the client still waits")
		}
		for range 2 {
			if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptUnknown || a.Reason != errStreamIdle.Error() {
				t.Errorf("attempt is %s: %s", a.State, a.Reason)
			}
			f.do(request{}).want(t, 504, CodeOutcomeUnknown)
			time.Sleep(time.Hour)
		}
		close(hang) // it returns as if nothing were wrong, without having said how long its answer is
		time.Sleep(time.Second)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
	})
}
