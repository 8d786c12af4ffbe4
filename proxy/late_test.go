package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

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

// The client has been told by then that the outcome is unknown. What it then
// hears of the job must not be that it was executed afterwards.
func TestNothingIsDispatchedAfterTheDeadline(t *testing.T) {
	bubble(t, Config{Timeout: time.Second}, func(t *testing.T, f *fixture) {
		f.mem.fail(nil, func(op string) error {
			if op == "create" {
				time.Sleep(2 * time.Second) // within half the lease
			}
			return nil
		})
		if r := f.do(request{}); r.Code != 503 && r.Code != 504 {
			t.Errorf("got %d %s", r.Code, r.Body)
		}
		time.Sleep(time.Minute)
		f.wantExecutions(0)
		f.mem.fail(nil, nil)
		f.do(request{}).wantBody(t, 200, "execution 1", false)
	})
}

// age makes the attempt of a request older than half its lease, as if the
// machine had stood still. To be called where the attempt is run.
func (f *fixture) age(r *http.Request) {
	f.gateway.mu.Lock()
	defer f.gateway.mu.Unlock()
	for a := range f.gateway.attempts {
		if a.job.ID == r.Header.Get(HeaderJob) {
			a.sent = a.sent.Add(-a.route.Lease)
		}
	}
}

// moments are the last ones at which nothing has been sent yet, each with a hook
// that ages the attempt there. Hooks that are put into a context later come first.
func (f *fixture) moments() map[string]func(r *http.Request) *http.Request {
	at := func(hooks func(age func()) *httptrace.ClientTrace) func(r *http.Request) *http.Request {
		return func(r *http.Request) *http.Request {
			return r.WithContext(httptrace.WithClientTrace(r.Context(), hooks(func() { f.age(r) })))
		}
	}
	return map[string]func(r *http.Request) *http.Request{
		"in the handler": func(r *http.Request) *http.Request {
			f.age(r)
			return r
		},
		"when a connection is sought": at(func(age func()) *httptrace.ClientTrace {
			return &httptrace.ClientTrace{GetConn: func(string) { age() }}
		}),
		"when one is obtained": at(func(age func()) *httptrace.ClientTrace {
			return &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { age() }}
		}),
	}
}

// A gateway that stood still until it had a connection closes that unused.
func TestTooLateAtTheConnection(t *testing.T) {
	t.Parallel()
	for security, start := range map[string]func(*testing.T, func(int32, string, net.Conn) bool) *wire{"plain": newWire, "TLS": newTLSWire} {
		for name, warm := range map[string]int32{"new connection": 0, "reused connection": 1} {
			for moment := range new(fixture).moments() {
				t.Run(security+", "+name+", "+moment, func(t *testing.T) {
					t.Parallel()
					u := start(t, func(_ int32, _ string, conn net.Conn) bool { return ok(conn, "done") })
					f := newFixture(t, Config{})
					f.through(u.url())
					if warm > 0 {
						f.do(request{key: "warm"}).wantBody(t, 200, "done", false)
					}
					inTime := f.serve
					f.serve = func(w http.ResponseWriter, r *http.Request) error {
						return inTime(w, f.moments()[moment](r))
					}
					f.do(request{}).want(t, 503, CodeStoreUnavailable)
					if n := u.executions.Load(); n != warm {
						t.Errorf("%d requests arrived, want %d", n, warm)
					}
					f.serve = inTime
					f.do(request{}).wantBody(t, 200, "done", false)
				})
			}
		}
	}
}

// A context that has ended does not always keep HTTP/1 from writing, which is a
// matter of which goroutine comes first. A closed connection does.
func TestTooLateShutsTheConnection(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"plain": func(conn net.Conn) net.Conn { return conn },
		"TLS":   func(conn net.Conn) net.Conn { return tls.Client(conn, new(tls.Config)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := net.Dial("tcp", listen(t).Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { raw.Close() })
			conn := wrap(raw)
			var cause error
			watch := &trace{tooLate: func() bool { return true }, abandon: func(err error) { cause = err }}
			httptrace.ContextClientTrace(watch.with(t.Context())).GotConn(httptrace.GotConnInfo{Conn: conn})
			if !isClosed(conn) || watch.usable() != 0 {
				t.Errorf("closed: %t, usable: %d", isClosed(conn), watch.usable())
			}
			if !errors.Is(cause, errTooLate) {
				t.Errorf("the attempt is ended for %v", cause)
			}
		})
	}
}

// On HTTP/2 the connection is everybody's: a late attempt sends nothing on it,
// and cuts nobody off.
func TestTooLateOnASharedConnection(t *testing.T) {
	t.Parallel()
	for moment := range new(fixture).moments() {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			entered, release := make(chan struct{}), make(chan struct{})
			var late atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.Header.Get("Idempotency-Key") {
				case "other":
					close(entered)
					<-release
				case "late":
					late.Add(1)
				}
				if r.ProtoMajor != 2 {
					t.Errorf("spoken to in %s", r.Proto)
				}
				_, _ = io.WriteString(w, "done")
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			transport := server.Client().Transport.(*http.Transport)
			t.Cleanup(transport.CloseIdleConnections)

			f := newFixture(t, Config{})
			inTime := roundTrip(transport, server.URL)
			f.serve = inTime
			f.do(request{key: "warm"}).wantBody(t, 200, "done", false)
			other := make(chan result, 1)
			go func() { other <- f.do(request{key: "other"}) }()
			<-entered

			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				return inTime(w, f.moments()[moment](r))
			}
			f.do(request{key: "late"}).want(t, 503, CodeStoreUnavailable)
			close(release)
			(<-other).wantBody(t, 200, "done", false)
			if n := late.Load(); n != 0 {
				t.Errorf("the late one arrived %d times", n)
			}
			f.serve = inTime
			f.do(request{key: "late"}).wantBody(t, 200, "done", false)
		})
	}
}
