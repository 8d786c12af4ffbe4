package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// protocol is a version of HTTP on the wire.
type protocol string

// The protocols that both sides of a gateway speak. That h2c is spoken is known
// beforehand.
const (
	h1  protocol = "h1"
	h2c protocol = "h2c"
	h2  protocol = "h2"
	h3  protocol = "h3"
)

var protocols = []protocol{h1, h2c, h2, h3}

// encrypted reports whether the protocol runs over TLS here.
func (p protocol) encrypted() bool { return p == h2 || p == h3 }

// reply is what an upstream is to answer.
type reply struct {
	status  int
	early   []int   // the statuses of early answers
	hints   []field // of each of them
	fields  []field
	body    []byte
	framing string // length, unannounced, or none at all
	trailer []field
	quiet   bool // the trailer is not announced
}

// mirror is an upstream that speaks all protocols, answers as it is told, and
// keeps what it has seen.
type mirror struct {
	t    *testing.T
	addr map[protocol]string

	mu      sync.Mutex
	replies map[string]reply
	seen    map[string][]message
}

// caseHeader names the reply that a request is to get.
const caseHeader = "X-Case"

func startMirror(t *testing.T, certificate tls.Certificate) *mirror {
	t.Helper()
	m := &mirror{t: t, addr: make(map[protocol]string), replies: make(map[string]reply), seen: make(map[string][]message)}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("mirror: listen: %v", err)
		}
		return l
	}
	m.serveByHand(listen())
	quiet := log.New(io.Discard, "", 0)
	for _, p := range []protocol{h2c, h2} {
		l := listen()
		s := &http.Server{Handler: m, ErrorLog: quiet, Protocols: new(http.Protocols)}
		if p == h2 {
			s.Protocols.SetHTTP2(true)
			s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
			go func() { _ = s.ServeTLS(l, "", "") }()
		} else {
			s.Protocols.SetUnencryptedHTTP2(true)
			go func() { _ = s.Serve(l) }()
		}
		t.Cleanup(func() { s.Close() })
		m.addr[p] = l.Addr().String()
	}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("mirror: listen: %v", err)
	}
	s := &http3.Server{
		Handler: m, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}}),
		QUICConfig: &quic.Config{MaxIdleTimeout: 10 * patience},
	}
	go func() { _ = s.Serve(conn) }()
	t.Cleanup(func() { s.Close(); conn.Close() })
	m.addr[h3] = conn.LocalAddr().String()
	return m
}

// tell says what to answer to the requests of a case.
func (m *mirror) tell(name string, r reply) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replies[name] = r
}

// take returns what was seen of a case since it was last asked.
func (m *mirror) take(name string) []message {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := m.seen[name]
	delete(m.seen, name)
	return seen
}

func (m *mirror) saw(seen message) reply {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := seen.value("header " + caseHeader)
	m.seen[name] = append(m.seen[name], seen)
	return m.replies[name]
}

// ServeHTTP answers over HTTP/2 and HTTP/3.
func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := make(message)
	seen.set("method", r.Method)
	seen.set("target", r.RequestURI)
	seen.set("host", r.Host)
	seen.head(lines(r.Header))
	seen.announce(names(r.Trailer))
	_, announced := r.Header["Content-Length"]
	body, err := io.ReadAll(r.Body)
	if err != nil {
		seen.set("error", err.Error())
	}
	seen.framed(r.ContentLength, announced, len(body) == 0)
	seen.body(body)
	seen.trailer(lines(r.Trailer))
	answer := m.saw(seen)

	h := w.Header()
	for _, status := range answer.early {
		for _, f := range answer.hints {
			h.Add(f.name, f.value)
		}
		w.WriteHeader(status)
		clear(h)
	}
	h["Content-Type"] = nil // so that none is guessed
	for _, f := range answer.fields {
		name := http.CanonicalHeaderKey(f.name)
		if name != "Connection" && name != "Keep-Alive" && name != "X-Hop" { // there is nothing to say about a connection
			h[name] = append(h[name], f.value)
		}
	}
	if answer.framing == "length" {
		h.Set("Content-Length", strconv.Itoa(len(answer.body)))
	}
	if len(answer.trailer) > 0 && !answer.quiet {
		h.Set("Trailer", announcement(answer.trailer))
	}
	w.WriteHeader(answer.status)
	if answer.framing != "length" { // otherwise a length is announced where one can be seen
		_ = http.NewResponseController(w).Flush()
	}
	if r.Method == http.MethodHead || answer.framing == "none" {
		return
	}
	_, _ = w.Write(answer.body)
	if len(answer.trailer) > 0 {
		_ = http.NewResponseController(w).Flush() // what is in the header now is sent as it was
	}
	for _, f := range answer.trailer {
		delete(h, http.CanonicalHeaderKey(f.name))
	}
	for _, f := range answer.trailer {
		h.Add(http.TrailerPrefix+f.name, f.value)
	}
}

// serveByHand answers over HTTP/1.1, and sees what was sent byte by byte.
func (m *mirror) serveByHand(l net.Listener) {
	m.addr[h1] = l.Addr().String()
	var mu sync.Mutex
	var all sync.WaitGroup
	conns := make(map[net.Conn]struct{})
	m.t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = struct{}{}
			mu.Unlock()
			all.Go(func() {
				defer c.Close()
				for in := bufio.NewReader(c); m.exchange(c, in); {
				}
			})
		}
	})
}

// exchange serves one request, and reports whether the connection goes on.
func (m *mirror) exchange(c net.Conn, in *bufio.Reader) bool {
	start, head, err := readHead(in)
	if err != nil {
		return false
	}
	seen := make(message)
	method, rest, _ := strings.Cut(start, " ")
	target, _, _ := strings.Cut(rest, " ")
	seen.set("method", method)
	seen.set("target", target)
	seen.head(head)
	seen.spell(head)
	for _, f := range head {
		switch {
		case strings.EqualFold(f.name, "Host"):
			seen.set("host", f.value)
		case strings.EqualFold(f.name, "Expect"):
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		}
	}
	if err := readMessageBody(in, head, seen, false); err != nil {
		seen.set("error", err.Error())
	}
	answer := m.saw(seen)

	var w strings.Builder
	for _, status := range answer.early {
		fmt.Fprintf(&w, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
		writeFields(&w, answer.hints)
		w.WriteString("\r\n")
	}
	fmt.Fprintf(&w, "HTTP/1.1 %d %s\r\n", answer.status, http.StatusText(answer.status))
	writeFields(&w, answer.fields)
	closes := false
	for _, f := range answer.fields {
		closes = closes || strings.EqualFold(f.name, "Connection") && strings.Contains(f.value, "close")
	}
	chunked := false
	switch {
	case answer.framing == "length":
		fmt.Fprintf(&w, "Content-Length: %d\r\n", len(answer.body))
	case answer.framing == "unannounced" && !closes:
		w.WriteString("Transfer-Encoding: chunked\r\n")
		chunked = true
		if len(answer.trailer) > 0 && !answer.quiet {
			w.WriteString("Trailer: " + announcement(answer.trailer) + "\r\n")
		}
	}
	w.WriteString("\r\n")
	if method != http.MethodHead && answer.framing != "none" {
		if chunked {
			writeChunked(&w, answer.body, answer.trailer)
		} else {
			w.Write(answer.body)
		}
	}
	_, err = io.WriteString(c, w.String())
	return err == nil && !closes
}

// certificate makes a certificate for the loopback, also as files that a
// Caddyfile can name.
func certificate(t *testing.T) (pair tls.Certificate, files string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make a key: %v", err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "loopback"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatalf("make a certificate: %v", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("encode a key: %v", err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, content := range map[string][]byte{certFile: certPEM, keyFile: keyPEM} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatalf("load a certificate: %v", err)
	}
	return pair, certFile + " " + keyFile
}
