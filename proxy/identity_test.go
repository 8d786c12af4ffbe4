package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestCallerOf(t *testing.T) {
	t.Parallel()
	caller := keystore.Caller{Number: 12, Mark: keystore.NewToken().Mark()}
	if got := callerOf(http.Header{HeaderAttempt: {attemptHeader(caller)}}); got != caller {
		t.Errorf("read %v, want %v", got, caller)
	}
	const good = `1;token="00112233445566ff"`
	for _, lines := range [][]string{
		nil,
		{""},
		{"1"},
		{"9"},
		{`;token="00112233445566ff"`},
		{`one;token="00112233445566ff"`},
		{`1;token="00112233445566"`},
		{`1;token="00112233445566ff00"`},
		{`1;token="00112233445566xx"`},
		{`1;token="00112233445566ff`},
		{`1;token=00112233445566ff`},
		{good + " "},
		{good, good},
	} {
		if got := callerOf(http.Header{HeaderAttempt: lines}); got != (keystore.Caller{}) {
			t.Errorf("%q names %v", lines, got)
		}
	}
}

// What a gateway tells its upstream is nothing that a client could tell a
// gateway: an API that trusts it would be told by anybody.
func TestSEC09MarkersOfAClientHaveNoEffect(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	var seen []http.Header
	f.serve = func(_ http.ResponseWriter, r *http.Request) error {
		seen = append(seen, r.Header)
		return nil
	}
	forged := http.Header{}
	for _, name := range ownHeaders {
		forged.Set(name, "forged")
	}
	forged.Set(HeaderAttempt, `1;token="00112233445566ff"`)
	f.do(request{header: forged}).wantBody(t, 200, "", false)
	f.do(request{header: forged}).wantBody(t, 200, "", true)
	f.do(request{header: forged, key: "none"})
	f.do(request{header: forged, method: http.MethodGet})
	if len(seen) != 3 {
		t.Fatalf("%d requests came, want 3", len(seen))
	}
	for i, h := range seen {
		for _, name := range ownHeaders {
			protected := i == 0 && (name == HeaderJob || name == HeaderAttempt)
			if got := h.Get(name); strings.Contains(got, "forged") || (got != "") != protected {
				t.Errorf("request %d: the upstream sees %s: %q", i, name, got)
			}
		}
		if protected := i == 0; !protected && len(h) > 2 {
			t.Errorf("request %d: the upstream sees %v", i, h)
		}
	}
}

// Two gateways in a row that share a space would wait for each other. The inner
// one knows its caller again, at once and however the request was rewritten.
func TestLoopIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	outer := newFixture(t, Config{})
	inner := newFixtureOn(t, outer.store, Config{})
	outer.serve = func(w http.ResponseWriter, r *http.Request) error {
		header := http.Header{HeaderAttempt: {r.Header.Get(HeaderAttempt)}}
		for _, url := range []string{"", "http://other.example/pay"} {
			res := inner.do(request{url: url, header: header}).want(t, 508, CodeLoop)
			if !strings.Contains(res.Body.String(), "a space of its own") || !strings.Contains(res.Body.String(), `"fix-request"`) {
				t.Errorf("no remedy in %s", res.Body)
			}
		}
		return inner.deliver(w, request{header: header})
	}
	if res := outer.do(request{}); res.Code != 508 || res.code() != CodeLoop {
		t.Errorf("got %d %s", res.Code, res.Body)
	}
	if a := outer.mem.job().LastAttempt(); a.State != keystore.AttemptFailed {
		t.Errorf("attempt is %s: %s", a.State, a.Reason)
	}
	inner.wantExecutions(0)
}

// A provider that takes keys from a header of its own gets one that belongs to
// the job, so that two owners' equal keys don't meet in one account.
func TestSendKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{SendKey: "paypal-request-id"})
	var seen []http.Header
	f.serve = func(w http.ResponseWriter, r *http.Request) error {
		seen = append(seen, r.Header)
		if len(seen) < 3 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		return nil
	}
	own := http.Header{"Paypal-Request-Id": {"the client's", "twice"}}
	for _, owner := range []string{"alice", "alice", "alice", "bob"} {
		f.do(request{owner: owner, header: own})
	}
	uuidV8 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	keys := make(map[string]int)
	for _, h := range seen {
		if len(h["Paypal-Request-Id"]) != 1 || !uuidV8.MatchString(h.Get("Paypal-Request-Id")) || h.Get("Idempotency-Key") != "k1" {
			t.Errorf("the upstream got %v", h)
		}
		keys[h.Get("Paypal-Request-Id")]++
	}
	if len(seen) != 4 || len(keys) != 2 || keys[seen[0].Get("Paypal-Request-Id")] != 3 {
		t.Errorf("two jobs with three and one attempts were sent with %v", keys)
	}
	if got := SentKey("0c84.02799a45"); got != "182afaf5-048c-8d5e-b032-56fec93d657b" {
		t.Errorf("the key of a job has changed to %s: providers would take its next attempt for another request", got)
	}
}

// The provider's header can be the one that clients send keys in.
func TestSendKeyInPlaceOfTheClients(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{SendKey: "idempotency-key"})
	f.serve = func(_ http.ResponseWriter, r *http.Request) error {
		if got := r.Header["Idempotency-Key"]; len(got) != 1 || got[0] != SentKey(f.mem.job().ID) {
			t.Errorf("the upstream got %q", got)
		}
		return nil
	}
	f.do(request{})
	f.do(request{}).wantBody(t, 200, "", true)
	f.wantExecutions(1)
}

// A client says in Connection which fields are about its connection, and proxies
// drop those. By that it can't keep the identity of its request from the upstream.
func TestSEC09ConnectionHidesNoIdentity(t *testing.T) {
	t.Parallel()
	var seen http.Header
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header }))
	t.Cleanup(upstream.Close)
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, Config{SendKey: "PayPal-Request-Id"})
	f.serve = func(w http.ResponseWriter, r *http.Request) error {
		httputil.NewSingleHostReverseProxy(to).ServeHTTP(w, r)
		return nil
	}
	f.do(request{header: http.Header{
		"Connection": {"close, x-hop, idempotency-key , Idempotency-Job", "Idempotency-Attempt", "paypal-request-id,X-Other"},
		"X-Hop":      {"1"}, "X-Other": {"1"}, "X-End": {"1"},
	}}).wantBody(t, 200, "", false)
	for name, want := range map[string]bool{
		"Idempotency-Key": true, HeaderJob: true, HeaderAttempt: true, "Paypal-Request-Id": true,
		"X-End": true, "X-Hop": false, "X-Other": false,
	} {
		if got := seen.Get(name); (got != "") != want {
			t.Errorf("the upstream sees %s: %q", name, got)
		}
	}
}

// Nor does it name another identity after its body.
func TestSEC09TrailersNameNoIdentity(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{SendKey: "X-Provider-Key"})
	var seen http.Header
	f.serve = func(_ http.ResponseWriter, r *http.Request) error {
		seen = r.Trailer
		return nil
	}
	r := httptest.NewRequest(http.MethodPost, "http://api.example/pay", strings.NewReader("1"))
	r.Header.Set("Idempotency-Key", "k1")
	r.Trailer = http.Header{"Idempotency-Key": {"k2"}, HeaderJob: {"j"}, HeaderAttempt: {"1"}, "X-Provider-Key": {"k2"}, "X-Sum": {"abc"}}
	if err := f.route.Serve(httptest.NewRecorder(), r, Exchange{Owner: func() string { return "alice" }, Provider: f.provider}); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen.Get("X-Sum") != "abc" {
		t.Errorf("the upstream sees the trailer %v", seen)
	}
}

// That holds for a request too that passes unprotected, to an API that may trust what
// it is told.
func TestSEC09TrailersOfWhatPassesNameNoIdentity(t *testing.T) {
	t.Parallel()
	var seen http.Header
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen = r.Trailer
	}))
	t.Cleanup(upstream.Close)
	f := newFixture(t, Config{})
	// As Caddy's reverse proxy does, and that of the standard library does not, this
	// one sends the trailer on that there is at the end.
	proxy := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		out := r.WithContext(r.Context())
		out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", upstream.Listener.Addr().String()
		res, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			t.Error(err)
			return
		}
		res.Body.Close()
	})
	gateway := httptest.NewServer(f.route.Middleware(func(*http.Request) string { return "alice" }, proxy))
	t.Cleanup(gateway.Close)
	for _, announced := range []string{"X-Sum", "Idempotency-Job, X-Sum"} {
		conn, err := net.Dial("tcp", gateway.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "POST /pay HTTP/1.1\r\nHost: a.example\r\nTrailer: %s\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"+
			"1\r\na\r\n0\r\nIdempotency-Job: forged\r\nX-Sum: abc\r\n\r\n", announced)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			t.Fatalf("got %q, %v", answer, err)
		}
		if seen.Get(HeaderJob) != "" || seen.Get("X-Sum") != "abc" {
			t.Errorf("announced as %s, the upstream sees the trailer %v", announced, seen)
		}
	}
}
