package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

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

// A request that was still sending its body when draining began comes to the
// claim when everybody thinks that nothing runs any more.
func TestNoAttemptStartsWhoseBodyCameAfterDrain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		body, upload := io.Pipe()
		late := make(chan result, 1)
		go func() { late <- f.do(request{reader: body}) }()
		synctest.Wait()
		f.gateway.Drain(t.Context())
		_, _ = io.WriteString(upload, "late")
		upload.Close()
		(<-late).want(t, 503, CodeStoreUnavailable)
		f.wantExecutions(0)
		if len(f.mem.ops) != 0 {
			t.Errorf("the store was asked: %v", f.mem.ops)
		}
	})
}

// The same for one whose claim was under way. The key must be free afterwards.
func TestNoAttemptStartsWhoseClaimCameAfterDrain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, func(op string) error {
			if op == "create" {
				f.gateway.Drain(t.Context())
			}
			return nil
		})
		f.do(request{}).want(t, 503, CodeStoreUnavailable)
		f.wantExecutions(0)
		f.mem.fail(nil, nil)
		if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptFailed || !strings.Contains(a.Reason, errStopped.Error()) {
			t.Errorf("attempt is %s: %s", a.State, a.Reason)
		}
		other := newFixtureOn(t, f.store, f.route.Config)
		other.do(request{}).wantBody(t, 200, "execution 1", false)
		other.gateway.Close()
	})
}
