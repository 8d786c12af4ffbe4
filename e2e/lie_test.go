package e2e

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// mortal is an upstream that takes each request whole, and then dies over it: its
// connection ends without an answer, or, of those that carry several requests, what
// they call a stream, for a case whose name begins with aborts.
type mortal struct {
	addr  map[protocol]string
	mu    sync.Mutex
	taken map[string]int
}

func (m *mortal) take(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken[name]++
}

func (m *mortal) want(t *testing.T, name string, n int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[name] != n {
		t.Errorf("%q was executed %d times, want %d", name, m.taken[name], n)
	}
}

// fastCGI is no version of HTTP, but an upstream can be spoken to in it too.
const fastCGI protocol = "fastcgi"

type dieKey struct{}

func (m *mortal) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	m.take(r.Header.Get("Up-Case"))
	if !strings.HasPrefix(r.Header.Get("Up-Case"), "aborts") {
		r.Context().Value(dieKey{}).(func())()
	}
	panic(http.ErrAbortHandler)
}

func startMortal(t *testing.T, certificate tls.Certificate) *mortal {
	t.Helper()
	m := &mortal{addr: make(map[protocol]string), taken: make(map[string]int)}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("mortal upstream: listen: %v", err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	for _, p := range []protocol{h1, h2c, h2} {
		l := listen()
		s := &http.Server{
			Handler: m, ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols),
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return context.WithValue(ctx, dieKey{}, func() { c.Close() })
			},
		}
		switch p {
		case h1:
			s.Protocols.SetHTTP1(true)
		case h2c:
			s.Protocols.SetUnencryptedHTTP2(true)
		case h2:
			s.Protocols.SetHTTP2(true)
			s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
		}
		go func() {
			if p == h2 {
				_ = s.ServeTLS(l, "", "")
			} else {
				_ = s.Serve(l)
			}
		}()
		t.Cleanup(func() { s.Close() })
		m.addr[p] = l.Addr().String()
	}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("mortal upstream: listen: %v", err)
	}
	s := &http3.Server{
		Handler: m, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}}),
		ConnContext: func(ctx context.Context, c *quic.Conn) context.Context {
			return context.WithValue(ctx, dieKey{}, func() { _ = c.CloseWithError(0, "") })
		},
	}
	go func() { _ = s.Serve(conn) }()
	t.Cleanup(func() { s.Close(); conn.Close() })
	m.addr[h3] = conn.LocalAddr().String()

	l := listen()
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { m.serveFastCGI(c) })
		}
	})
	m.addr[fastCGI] = l.Addr().String()
	return m
}

// serveFastCGI reads a request to the end of its body, which is an empty record.
func (m *mortal) serveFastCGI(c net.Conn) {
	defer c.Close()
	const stdin = 5
	var params strings.Builder
	for {
		var head [8]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		length := int(head[4])<<8 | int(head[5])
		content := make([]byte, length+int(head[6]))
		if _, err := io.ReadFull(c, content); err != nil {
			return
		}
		switch {
		case head[1] != stdin:
			params.Write(content)
		case length == 0:
			_, rest, _ := strings.Cut(params.String(), "HTTP_UP_CASE")
			name, _, _ := strings.Cut(rest, ".")
			m.take(name + ".")
			return
		}
	}
}

// phpOf returns what php_fastcgi is for a site that is there, by its server's address.
func phpOf(t *testing.T) func(addr string) (directives string) {
	t.Helper()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "index.php"), []byte("<?php"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(addr string) string {
		return "route {\nroot * " + root + "\nphp_fastcgi " + addr + "\n}\n"
	}
}

// startDeaf starts a server that hangs up on whoever connects.
func startDeaf(t *testing.T) (addr string) {
	t.Helper()
	return eachConnection(t, func(c net.Conn) { c.Close() })
}

// speaking is a reverse_proxy that speaks a protocol to an upstream, and doesn't
// mind its certificate.
func speaking(p protocol, addr string) string {
	transport := map[protocol]string{
		h1:      "http {\nversions 1.1\n}",
		h2c:     "http {\nversions h2c\n}",
		h2:      "http {\nversions 2\ntls_insecure_skip_verify\n}",
		h3:      "http {\nversions 3\ntls_insecure_skip_verify\n}",
		fastCGI: "fastcgi",
	}[p]
	if p.encrypted() {
		addr = "https://" + addr
	}
	return "reverse_proxy " + addr + " {\ntransport " + transport + "\n}\n"
}

// distrusting is a reverse_proxy that does mind, so that there is no handshake
// with an upstream whose certificate nobody knows.
func distrusting(version, addr string) string {
	return "reverse_proxy https://" + addr + " {\ntransport http {\nversions " + version + "\n}\n}\n"
}

// What a chain has come to in the end says nothing about what it did before. A
// provider whose own handlers ask a second upstream, which can't be reached, or says
// that it is busy, after the first has taken the request and died, is unknown, in
// whatever protocol both are spoken to: nothing is failed over, nothing is executed
// again.
//
// That no connection was made is proof in each of them, and failed over.
func TestFailoverIsProofAgainstErrorsThatLie(t *testing.T) {
	t.Parallel()
	pair, _ := certificate(t)
	first, fallback, redis := startMortal(t, pair), newUpstream(t), startRedis(t)
	refusing := newRefusingUpstream(t)
	tlsUp := startMortal(t, pair)
	inTurn := func(handlers ...string) string { return "in_turn {\n" + strings.Join(handlers, "") + "}" }
	http1 := distrusting("1.1", tlsUp.addr[h2])
	busy := "reverse_proxy " + newUpstream(t).addr + " {\nheader_up Up-Status 429\n}\n"

	type provider struct {
		directives string
		executed   bool
	}
	providers := map[string]provider{
		"refuses":         {speaking(h1, refusing.addr), false},
		"refuses-h2c":     {speaking(h2c, refusing.addr), false},
		"refuses-h2":      {speaking(h2, refusing.addr), false},
		"refuses-fastcgi": {speaking(fastCGI, refusing.addr), false},
		"handshake-h1":    {http1, false},
		"handshake-h2":    {distrusting("2", tlsUp.addr[h2]), false},
		"handshake-h3":    {distrusting("3", tlsUp.addr[h3]), false},
		"no-tls-there":    {distrusting("2", startDeaf(t)), false},
		"both-refuse":     {inTurn(speaking(h1, refusing.addr), http1), false},
		"fastcgi-then-h1": {inTurn(speaking(fastCGI, first.addr[fastCGI]), speaking(h1, refusing.addr)), true},
		"h1-then-fastcgi": {inTurn(speaking(h1, first.addr[h1]), speaking(fastCGI, refusing.addr)), true},
	}
	php := phpOf(t)
	maps.Copy(providers, map[string]provider{
		"refuses-php":  {php(refusing.addr), false},
		"dies-php":     {php(first.addr[fastCGI]), true},
		"lies-php":     {inTurn(php(first.addr[fastCGI]), speaking(h1, refusing.addr)), true},
		"lies-php-php": {inTurn(php(first.addr[fastCGI]), php(refusing.addr)), true},
		"denies-php":   {inTurn(php(first.addr[fastCGI]), busy), true},
		"h1-then-php":  {inTurn(speaking(h1, first.addr[h1]), php(refusing.addr)), true},
	})
	for _, p := range append([]protocol{fastCGI}, protocols...) {
		second := speaking(p, refusing.addr)
		if p == h3 { // where nobody listens, QUIC takes long to give up
			second = distrusting("3", tlsUp.addr[h3])
		}
		providers["dies-"+string(p)] = provider{speaking(p, first.addr[p]), true}
		providers["lies-"+string(p)] = provider{inTurn(speaking(p, first.addr[p]), second), true}
		providers["denies-"+string(p)] = provider{inTurn(speaking(p, first.addr[p]), busy), true}
		if p == h2 || p == h2c || p == h3 {
			providers["aborts-"+string(p)] = provider{inTurn(speaking(p, first.addr[p]), second), true}
			providers["aborts-denies-"+string(p)] = provider{inTurn(speaking(p, first.addr[p]), busy), true}
		}
	}
	var sites []site
	var names []string
	for name, p := range providers {
		names = append(names, name)
		sites = append(sites, between("store "+redis.store()+"\n"+unproven, named{name: "one", before: p.directives}, named{name: "two", up: fallback}))
	}
	g := startGatewayWith(t, "", sites...)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			// FastCGI has no end of a header, but for this dot.
			key, c := name+".", g.clientOf(i)
			c.t = t
			a := c.do(post(key))
			if providers[name].executed {
				wantUnknown(t, a)
				wantUnknown(t, c.do(post(key)))
				first.want(t, key, 1)
				fallback.want(key, 0)
				g.wantAttempts(a, "one unknown")
				return
			}
			wantExecuted(t, a)
			wantReplay(t, a, c.do(post(key)))
			first.want(t, key, 0)
			tlsUp.want(t, key, 0)
			fallback.want(key, 1)
			g.wantAttempts(a, "one failed", "two succeeded")
		})
	}
}
