package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// wire is an upstream that is spoken to over TCP, byte by byte: what a client
// library does behind our back can only be seen there.
type wire struct {
	net.Listener
	scheme     string
	executions atomic.Int32
	mu         sync.Mutex
	heads      []string
}

// newWire is newWireOn at an address of its own, without TLS.
func newWire(t *testing.T, answer func(n int32, head string, conn net.Conn) bool) *wire {
	t.Helper()
	return newWireOn(t, listen(t), "http", answer)
}

// newTLSWire is newWire with TLS, under a certificate that nobody knows.
func newTLSWire(t *testing.T, answer func(n int32, head string, conn net.Conn) bool) *wire {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	config := &tls.Config{Certificates: certified.TLS.Certificates}
	return newWireOn(t, tls.NewListener(listen(t), config), "https", answer)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// newWireOn starts an upstream that reads each request whole, counts it, and then
// does what answer says: write to the connection, and return whether to keep it.
func newWireOn(t *testing.T, l net.Listener, scheme string, answer func(n int32, head string, conn net.Conn) bool) *wire {
	t.Helper()
	u := &wire{Listener: l, scheme: scheme}
	var conns sync.WaitGroup
	t.Cleanup(func() { l.Close(); conns.Wait() })
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for {
					head := ""
					length := 0
					for {
						line, err := r.ReadString('\n')
						if err != nil {
							return
						}
						if line == "\r\n" {
							break
						}
						head += line
						_, _ = fmt.Sscanf(strings.ToLower(line), "content-length: %d", &length)
					}
					if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
						return
					}
					n := u.executions.Add(1)
					u.mu.Lock()
					u.heads = append(u.heads, head)
					u.mu.Unlock()
					if !answer(n, head, conn) {
						return
					}
				}
			})
		}
	})
	return u
}

// last is the head of the last request.
func (u *wire) last() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.heads[len(u.heads)-1]
}

func (u *wire) url() string { return u.scheme + "://" + u.Addr().String() }

func ok(conn net.Conn, body string) bool {
	_, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return err == nil
}

// through makes the fixture's upstream a round trip to this address over its own
// transport.
func (f *fixture) through(url string) *http.Transport {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	f.t.Cleanup(transport.CloseIdleConnections)
	f.serve = roundTrip(transport, url)
	return transport
}

func roundTrip(transport *http.Transport, url string) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		out, err := http.NewRequestWithContext(r.Context(), r.Method, url+r.URL.Path, r.Body)
		if err != nil {
			return err
		}
		out.Header, out.ContentLength = r.Header, r.ContentLength
		if r.ContentLength == 0 {
			out.Body = nil
		}
		resp, err := transport.RoundTrip(out)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		if _, err := io.Copy(w, resp.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
}

func TestOUT04ConnectionDiesAfterTheRequest(t *testing.T) {
	t.Parallel()
	u := newWire(t, func(int32, string, net.Conn) bool { return false })
	f := newFixture(t, Config{})
	f.through(u.url())
	for range 2 {
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
	}
	if n := u.executions.Load(); n != 1 {
		t.Errorf("%d executions", n)
	}
	e := f.mem.job().LastAttempt().Evidence
	if !e.Hooked || e.Asked != 1 || e.Connected != 1 || e.Wrote != 1 || e.Upstream != u.Addr().String() {
		t.Errorf("evidence %+v", e)
	}
}

func TestRefusedConnectionIsNeverSent(t *testing.T) {
	t.Parallel()
	u := newWire(t, func(_ int32, _ string, conn net.Conn) bool { return ok(conn, "done") })
	url := u.url()
	u.Close()
	f := newFixture(t, Config{})
	f.through(url)
	if r := f.do(request{}); r.err == nil {
		t.Errorf("got %d", r.Code)
	}
	if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptFailed {
		t.Errorf("attempt is %s: %s", a.State, a.Reason)
	}
}

// The timeout passes while the connection is still being sought: nothing was
// sent, and that is certain.
func TestTimeoutWithoutConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{Timeout: 50 * time.Millisecond})
	dialing := make(chan struct{})
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		<-dialing
		return nil, errors.New("late refusal")
	}}
	t.Cleanup(func() { close(dialing) })
	f.serve = roundTrip(transport, "http://a.example")
	r := f.do(request{})
	if !errors.Is(r.err, errNoConnection) {
		t.Errorf("got %d %s, error %v", r.Code, r.Body, r.err)
	}
	if a := f.mem.job().LastAttempt(); a.State != keystore.AttemptFailed {
		t.Errorf("attempt is %s: %s", a.State, a.Reason)
	}
}

// Each attempt tells its upstream which job and which attempt it is, so that
// layers below can honour the same identity.
func TestOUT11IdentityTravelsOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	var seen []http.Header
	f.serve = func(w http.ResponseWriter, r *http.Request) error {
		seen = append(seen, r.Header)
		w.Header().Set(HeaderReplayed, "forged")
		if len(seen) == 1 {
			w.WriteHeader(429)
		}
		return nil
	}
	forged := http.Header{HeaderJob: {"forged"}, HeaderAttempt: {"forged"}, HeaderReplayed: {"true"}}
	for range 2 {
		if r := f.do(request{header: forged}); r.Header().Get(HeaderReplayed) != "" {
			t.Error("an upstream's forged marker reached the client")
		}
	}
	id := f.mem.job().ID
	for i, h := range seen {
		if h.Get(HeaderJob) != id || !strings.HasPrefix(h.Get(HeaderAttempt), fmt.Sprintf(`%d;token="`, i+1)) || h.Get(HeaderReplayed) != "" {
			t.Errorf("attempt %d: %v", i+1, h)
		}
		if h.Get("Accept-Encoding") != "" {
			t.Error("the upstream is asked for an encoding of this client's")
		}
	}
	if seen[0].Get(HeaderAttempt)[1:] == seen[1].Get(HeaderAttempt)[1:] {
		t.Error("two attempts have one token")
	}
}

func TestMiddleware(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{KeyRequired: true})
	var executions atomic.Int32
	server := httptest.NewServer(f.route.Middleware(
		func(r *http.Request) string { return r.Header.Get("X-Owner") },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Add("Link", "</1>; rel=a")
			w.Header().Add("Link", "</2>; rel=b")
			w.Header().Set("Set-Cookie", "s=1")
			w.Header().Set("Connection", "X-Hop")
			w.Header().Set("X-Hop", "1")
			w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
			w.WriteHeader(201)
			fmt.Fprintf(w, "%s %d", body, executions.Add(1))
		})))
	t.Cleanup(server.Close)
	post := func(owner string) (*http.Response, string) {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("hi"))
		r.Header.Set("Idempotency-Key", "k")
		if owner != "" {
			r.Header.Set("X-Owner", owner)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
	for i := range 3 {
		resp, body := post("alice")
		if resp.StatusCode != 201 || body != "hi 1" || len(resp.Header["Link"]) != 2 || resp.Trailer.Get("X-Sum") != "42" {
			t.Errorf("%d: %d %q %v, trailer %v", i, resp.StatusCode, body, resp.Header, resp.Trailer)
		}
		if resp.Header.Get("X-Hop") != "" || (resp.Header.Get("Set-Cookie") != "") != (i == 0) {
			t.Errorf("%d: %v", i, resp.Header)
		}
	}
	if resp, _ := post(""); resp.StatusCode != 400 || resp.Header.Get("Content-Type") != problemType {
		t.Errorf("without an owner: %d %v", resp.StatusCode, resp.Header)
	}
}
