package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// diesAfter answers PUT, on a connection that is kept, and reads everything else
// whole and hangs up.
func diesAfter(_ int32, head string, conn net.Conn) bool {
	return strings.HasPrefix(head, "PUT ") && ok(conn, "warm")
}

// net/http sends a request without a body again by itself when a reused
// connection dies, if it carries a key or has a safe method. One execution is
// what the key is for.
func TestOUT12BodylessRequestIsNotSentAgain(t *testing.T) {
	t.Parallel()
	wires := map[string]func(*testing.T, func(int32, string, net.Conn) bool) *wire{"plain": newWire, "TLS": newTLSWire}
	for security, start := range wires {
		for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key", "X-Own-Key"} {
			for _, method := range []string{"POST", "DELETE", "GET", "OPTIONS"} {
				t.Run(security+" "+method+" "+header, func(t *testing.T) {
					t.Parallel()
					u := start(t, diesAfter)
					f := newFixture(t, Config{KeyHeader: header, Methods: []string{"PUT", method}})
					f.through(u.url())
					f.do(request{method: "PUT", url: "http://a.example/warm", key: "warm"}).wantBody(t, 200, "warm", false)
					for range 2 {
						f.do(request{method: method, reader: http.NoBody, key: "Key-1"}).want(t, 504, CodeOutcomeUnknown)
					}
					if n := u.executions.Load(); n != 2 {
						t.Errorf("%d requests arrived, want the warm-up and one", n)
					}
					if head := u.last(); !strings.Contains(strings.ToLower(head), strings.ToLower(header)+": key-1\r\n") {
						t.Errorf("upstream saw %q", head)
					}
				})
			}
		}
	}
}

// Handlers on the way rewrite the header map, so that the guard must not depend
// on how the key is spelled in it.
func TestOUT12RewrittenHeaderIsNotSentAgain(t *testing.T) {
	t.Parallel()
	u := newWire(t, diesAfter)
	f := newFixture(t, Config{})
	f.through(u.url())
	pass := f.serve
	f.serve = func(w http.ResponseWriter, r *http.Request) error {
		header := make(http.Header)
		for name, values := range r.Header {
			header[http.CanonicalHeaderKey(name)] = values
		}
		header.Set("X-Idempotency-Key", "another's")
		r.Header = header
		return pass(w, r)
	}
	f.do(request{method: "PUT", key: "warm"}).wantBody(t, 200, "warm", false)
	f.do(request{reader: http.NoBody}).want(t, 504, CodeOutcomeUnknown)
	if n := u.executions.Load(); n != 2 {
		t.Errorf("%d requests arrived, want the warm-up and one", n)
	}
	j, err := f.store.Get(t.Context(), keystore.NameOf(f.route.Space, "alice", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	if a := j.LastAttempt(); a.Reason != errSentAgain.Error() || a.Evidence.Connected != 1 {
		t.Errorf("attempt is %s: %s, %+v", a.State, a.Reason, a.Evidence)
	}
}

// A handler on the way may leave the body out, as reverse_proxy does where it makes a
// GET of the request. What the transport is given has none then, whatever came.
func TestOUT12RequestWhoseBodyIsLeftOutIsNotSentAgain(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "POST"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			u := newWire(t, diesAfter)
			f := newFixture(t, Config{})
			f.through(u.url())
			pass := f.serve
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				if r.Method != http.MethodPut {
					r.Method, r.Body, r.ContentLength = method, nil, 0
				}
				return pass(w, r)
			}
			f.do(request{method: "PUT", key: "warm"}).wantBody(t, 200, "warm", false)
			for range 2 {
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
			}
			if n := u.executions.Load(); n != 2 {
				t.Errorf("%d requests arrived, want the warm-up and one", n)
			}
		})
	}
}

// fetch makes a request without a body, as a part of the attempt of r.
func fetch(transport http.RoundTripper, r *http.Request, url string) (string, error) {
	out, err := http.NewRequestWithContext(r.Context(), r.Method, url, nil)
	if err != nil {
		return "", err
	}
	out.Header = r.Header
	resp, err := transport.RoundTrip(out)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// A chain may ask somebody first, such as an authorizer, before it passes the
// request on: two requests are not one that is sent again.
func TestTwoRequestsInARowOfOneAttempt(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]bool{"one connection": true, "a connection each": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newWire(t, func(n int32, _ string, conn net.Conn) bool {
				if keep {
					return ok(conn, fmt.Sprint("answer ", n))
				}
				body := fmt.Sprint("answer ", n)
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				return false
			})
			f := newFixture(t, Config{})
			transport := f.through(u.url())
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				for i := range 3 {
					answer, err := fetch(transport, r, u.url())
					if want := fmt.Sprint("answer ", i+1); err != nil || answer != want {
						t.Errorf("got %q, error %v; want %q", answer, err, want)
					}
				}
				_, _ = io.WriteString(w, "all")
				return nil
			}
			f.do(request{reader: http.NoBody}).wantBody(t, 200, "all", false)
		})
	}
}

// The second of two requests in parallel gets its connection while the first has
// no answer yet, but its connection lives.
func TestTwoRequestsInParallelOfOneAttempt(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, func(int32, string, net.Conn) bool) *wire{"plain": newWire, "TLS": newTLSWire} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both := make(chan struct{})
			u := start(t, func(n int32, _ string, conn net.Conn) bool {
				switch n {
				case 1:
				case 2:
					close(both)
				}
				select {
				case <-both:
				case <-t.Context().Done(): // the second was hindered
				}
				return ok(conn, "answer")
			})
			f := newFixture(t, Config{})
			transport := f.through(u.url())
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				var all sync.WaitGroup
				var errs [2]error
				for i := range errs {
					all.Go(func() { _, errs[i] = fetch(transport, r, u.url()) })
				}
				all.Wait()
				_, _ = io.WriteString(w, "both")
				return errors.Join(errs[:]...)
			}
			f.do(request{reader: http.NoBody}).wantBody(t, 200, "both", false)
		})
	}
}

// What was never sent may be sent to somebody else.
func TestRefusedDialIsTriedElsewhere(t *testing.T) {
	t.Parallel()
	for name, warm := range map[string]bool{"new connection": false, "reused connection": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nobody := listen(t)
			nobody.Close()
			u := newWire(t, func(_ int32, _ string, conn net.Conn) bool { return ok(conn, "done") })
			f := newFixture(t, Config{})
			transport := f.through(u.url())
			if warm {
				f.do(request{key: "warm"}).wantBody(t, 200, "done", false)
			}
			elsewhere := f.serve
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				if _, err := fetch(transport, r, "http://"+nobody.Addr().String()); err == nil {
					t.Error("somebody listens where nobody should")
				}
				return elsewhere(w, r)
			}
			f.do(request{reader: http.NoBody}).wantBody(t, 200, "done", false)
		})
	}
}
