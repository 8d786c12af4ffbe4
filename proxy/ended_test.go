package proxy

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestTimeoutIsUnknownAndTheLateResultWins(t *testing.T) {
	bubble(t, Config{Timeout: time.Second}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(5*time.Second, f)
		started := time.Now()
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		if took := time.Since(started); took != time.Second {
			t.Errorf("answered after %v", took)
		}
		synctest.Wait()
		if s := f.mem.job().State(f.store.Now()); s != keystore.JobUnknown {
			t.Errorf("job is %s", s)
		}
		if len(f.mem.index) != 1 {
			t.Error("the unknown job is not in the index")
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
		time.Sleep(5 * time.Second)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
		if f.incs.of(IncidentLateResult) != 1 {
			t.Error("the late result was not counted")
		}
	})
}

func TestLingerEnds(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
		f.serve = func(_ http.ResponseWriter, r *http.Request) error {
			<-r.Context().Done()
			return context.Cause(r.Context())
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(2 * time.Minute)
		a := f.mem.job().LastAttempt()
		if a.State != keystore.AttemptUnknown || a.Ended.IsZero() || a.Reason != errLingerOver.Error() {
			t.Errorf("attempt is %s, ended %v: %s", a.State, a.Ended, a.Reason)
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
	})
}

// answersAfter is an upstream that does not look at its context: it answers after
// that time, with or without having said how long the answer is.
func answersAfter(after time.Duration, declared bool) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		time.Sleep(after)
		if declared {
			w.Header().Set("Content-Length", "4")
		}
		_, err := io.WriteString(w, "done")
		return err
	}
}

// An attempt that we have ended may have its answer all the same. One that has
// said how long it is and is that long is whole. Any other may be what a handler
// makes of the end of its context, and proves nothing.
func TestWholeAnswerAfterTheEndOfLingerWins(t *testing.T) {
	for name, declared := range map[string]bool{"with Content-Length": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Timeout: time.Second, Linger: time.Second}, func(t *testing.T, f *fixture) {
				f.serve = answersAfter(2500*time.Millisecond, declared)
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				time.Sleep(time.Minute)
				if again := f.do(request{}); declared {
					again.wantBody(t, 200, "done", true)
				} else {
					again.want(t, 504, CodeOutcomeUnknown)
				}
				f.wantExecutions(1)
			})
		})
	}
}

func TestWholeAnswerAfterTheCutWins(t *testing.T) {
	for name, declared := range map[string]bool{"with Content-Length": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.serve = answersAfter(800*time.Millisecond, declared)
				first := make(chan result, 1)
				go func() { first <- f.do(request{}) }()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				f.gateway.Drain(ctx) // cuts after half a second, and waits for what the cut ends
				a := f.mem.job().LastAttempt()
				if declared {
					(<-first).wantBody(t, 200, "done", false)
					if a.State != keystore.AttemptSucceeded {
						t.Errorf("attempt is %s: %s", a.State, a.Reason)
					}
					return
				}
				(<-first).want(t, 504, CodeOutcomeUnknown)
				if a.State != keystore.AttemptUnknown || a.Reason != errStopped.Error() {
					t.Errorf("attempt is %s: %s", a.State, a.Reason)
				}
			})
		})
	}
}
