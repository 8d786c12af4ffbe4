package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// A handler that ends its goroutine ends no more than that: its caller is told, and the
// record says that nobody knows.
func TestEndedGoroutineIsUnknown(t *testing.T) {
	for name, written := range map[string]string{"before an answer": "", "after one": "done"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.serve = func(w http.ResponseWriter, _ *http.Request) error {
					_, _ = io.WriteString(w, written)
					runtime.Goexit()
					return nil
				}
				began := time.Now()
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				if took := time.Since(began); took > 0 {
					t.Errorf("told after %v", took)
				}
				if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptUnknown {
					t.Errorf("the attempt is %s: %s", a.State, a.Reason)
				}
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.serve = nil
				f.do(request{key: "k2"}).wantBody(t, 200, "execution 2", false)
				synctest.Wait()
				if attempts, _ := f.gateway.Busy(); attempts != 0 {
					t.Errorf("%d attempts are still running", attempts)
				}
			})
		})
	}
}

// heldBodies collects the bodies of the attempts that are running.
func (f *fixture) heldBodies() (bodies []*requestBody) {
	f.gateway.mu.Lock()
	defer f.gateway.mu.Unlock()
	for a := range f.gateway.attempts {
		bodies = append(bodies, a.body)
	}
	return bodies
}

func wantLetGo(t *testing.T, bodies []*requestBody) {
	t.Helper()
	if len(bodies) == 0 {
		t.Error("no attempt had a body")
	}
	for _, b := range bodies {
		b.mu.Lock()
		if b.users != 0 || b.file != nil {
			t.Errorf("%d still hold the request's body", b.users)
		}
		b.mu.Unlock()
	}
}

// badClose is a body that can't be closed.
type badClose struct{ io.Reader }

func (badClose) Close() error { panic("closed") }

// A handler may do with its request's body what it likes: what the gateway has of it is
// let go of all the same.
func TestHandlersMayReplaceTheBody(t *testing.T) {
	for name, replace := range map[string]func(r *http.Request){
		"by nothing":                    func(r *http.Request) { r.Body = nil },
		"by another one":                func(r *http.Request) { r.Body = http.NoBody },
		"by one that can't be closed":   func(r *http.Request) { r.Body = badClose{r.Body} },
		"after it was closed":           func(r *http.Request) { r.Body.Close(); r.Body = nil },
		"not at all, and not read it":   func(*http.Request) {},
		"not at all, but read and keep": func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Buffer: 10}, func(t *testing.T, f *fixture) {
				var held []*requestBody
				f.serve = func(_ http.ResponseWriter, r *http.Request) error {
					held = f.heldBodies()
					replace(r)
					return nil
				}
				f.do(request{body: strings.Repeat("x", 100)}).wantBody(t, 200, "", false)
				synctest.Wait()
				wantLetGo(t, held)
			})
		})
	}
}

// The same where nothing was sent.
func TestBodyOfWhatIsNeverDispatchedIsLetGo(t *testing.T) {
	bubble(t, Config{Buffer: 10, Lease: 10 * time.Second}, func(t *testing.T, f *fixture) {
		var held []*requestBody
		f.mem.fail(func(op string) error {
			if op == "swap" {
				held = f.heldBodies()
			}
			return nil
		}, func(op string) error {
			if op == "create" {
				time.Sleep(6 * time.Second)
			}
			return nil
		})
		f.do(request{body: strings.Repeat("x", 100)}).want(t, 503, CodeStoreUnavailable)
		synctest.Wait()
		wantLetGo(t, held)
		f.wantExecutions(0)
	})
}

// A request that has claimed its job, and for which there is no provider then, was
// never sent.
func TestPanicForAProviderIsNeverDispatched(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example/pay", strings.NewReader(`{"amount":1}`))
		r.Header.Set(f.route.KeyHeader, "k1")
		r.Header.Set("Content-Type", "application/json")
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = f.route.Serve(httptest.NewRecorder(), r, Exchange{
				Owner:    func() string { return "alice" },
				Provider: func(string) Provider { panic("no provider") },
			})
		}()
		synctest.Wait()
		if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptFailed {
			t.Errorf("the attempt is %s: %s", a.State, a.Reason)
		}
		f.do(request{}).wantBody(t, 200, "execution 1", false)
	})
}

// A handler that has ended its goroutine is not waited for.
func TestAskOfWhoEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	answer, err := Ask(func(http.ResponseWriter, *http.Request) error {
		runtime.Goexit()
		return nil
	}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), 10)
	if answer != nil || !errors.Is(err, ErrLookupCut) {
		t.Errorf("got %+v, %v", answer, err)
	}
}
