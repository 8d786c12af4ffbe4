package caddymodule

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// newDying starts an upstream that answers PUT, on a connection that is kept, and
// reads every other request whole, counts it, and hangs up.
func newDying(t *testing.T, secure bool) (address string, executions *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	if secure {
		certified := httptest.NewTLSServer(nil)
		certified.Close()
		l = tls.NewListener(l, &tls.Config{Certificates: certified.TLS.Certificates})
	}
	t.Cleanup(func() { l.Close() })
	executions = new(atomic.Int32)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveDying(conn, executions)
		}
	}()
	return address, executions
}

func serveDying(conn net.Conn, executions *atomic.Int32) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		if req.Method != http.MethodPut {
			executions.Add(1)
			return
		}
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwarm")
	}
}

// bodyless sends a request without a body.
func bodyless(t *testing.T, method, key string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	return once(t, req)
}

// reverse_proxy sends through net/http, which sends a request without a body
// again by itself when a reused connection dies, if it carries a key or has a
// safe method. Options of reverse_proxy rebuild the header map and wrap the
// connection; none of that may make it two executions.
func TestOUT12ReverseProxySendsNothingAgain(t *testing.T) {
	for name, c := range map[string]struct {
		options string
		secure  bool
	}{
		"plain":               {"", false},
		"header_up":           {"header_up X-Foo bar", false},
		"header_up of a key":  {"header_up X-Idempotency-Key abc", false},
		"TLS":                 {"transport http {\ntls_insecure_skip_verify\n}", true},
		"TLS and header_up":   {"header_up X-Foo bar\ntransport http {\ntls_insecure_skip_verify\n}", true},
		"read_timeout":        {"transport http {\nread_timeout 1m\n}", false},
		"read_timeout of TLS": {"transport http {\ntls_insecure_skip_verify\nread_timeout 1m\n}", true},
	} {
		t.Run(name, func(t *testing.T) {
			upstream, executions := newDying(t, c.secure)
			load(t, site(t, "idempotency {\nowner shared\nmethods PUT POST DELETE GET\n}\nreverse_proxy "+upstream+" {\n"+c.options+"\n}"))
			for i, method := range []string{"POST", "DELETE", "GET"} {
				if a := bodyless(t, "PUT", "warm-"+method); a.body != "warm" {
					t.Errorf("%s: %+v", method, a)
				}
				for range 2 {
					if a := bodyless(t, method, "key-"+method); a.status != 504 || a.code() != "outcome-unknown" {
						t.Errorf("%s: %+v", method, a)
					}
				}
				if n := executions.Load(); n != int32(i+1) {
					t.Fatalf("%s: %d executions of %d requests", method, n, i+1)
				}
			}
		})
	}
}

// What was never sent is tried elsewhere, as reverse_proxy was told to.
func TestOUT12RefusedDialIsTriedElsewhere(t *testing.T) {
	u := newUpstream(t)
	nobody := "127.0.0.1:" + testport.Take(t)
	load(t, site(t, fmt.Sprintf(`
	idempotency {
		owner shared
	}
	reverse_proxy %s %s {
		lb_policy first
		lb_retries 3
		fail_duration 1m
	}`, nobody, u.Listener.Addr())))
	if a := bodyless(t, http.MethodPost, "k"); a.status != 200 || a.body != "k /x execution 1" {
		t.Errorf("got %+v", a)
	}
}
