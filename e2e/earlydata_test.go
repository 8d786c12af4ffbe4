package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// recording is a client's socket that keeps what it has sent, and hears nothing until
// it may: its handshakes don't end before that, so that all it sends is early data.
type recording struct {
	net.PacketConn

	mu   sync.Mutex
	sent [][]byte
	may  chan struct{}
}

func newRecording(t *testing.T) *recording {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &recording{PacketConn: conn, may: make(chan struct{})}
}

// WriteTo implements net.PacketConn.
func (r *recording) WriteTo(p []byte, addr net.Addr) (int, error) {
	r.mu.Lock()
	select {
	case <-r.may:
	default:
		r.sent = append(r.sent, bytes.Clone(p))
	}
	r.mu.Unlock()
	return r.PacketConn.WriteTo(p, addr)
}

// ReadFrom implements net.PacketConn.
func (r *recording) ReadFrom(p []byte) (int, net.Addr, error) {
	<-r.may
	return r.PacketConn.ReadFrom(p)
}

func (r *recording) hear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.may:
	default:
		close(r.may)
	}
}

// replay sends what was sent before anything was heard, from an address of its own.
func (r *recording) replay(t *testing.T, to net.Addr) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, datagram := range r.sent {
		if _, err := conn.WriteTo(datagram, to); err != nil {
			t.Fatal(err)
		}
	}
}

// earlyClient is a client of HTTP/3 that sends its requests before the handshake is over.
type earlyClient struct {
	t    *testing.T
	addr *net.UDPAddr
	tls  *tls.Config
}

// newEarlyClient gets the ticket that early data needs.
func newEarlyClient(t *testing.T, addr string) *earlyClient {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan struct{}, 10)
	c := &earlyClient{t, to, &tls.Config{
		InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{http3.NextProtoH3},
		ClientSessionCache: tickets{tls.NewLRUClientSessionCache(1), got},
	}}
	first := &http3.Transport{TLSClientConfig: c.tls}
	defer first.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+"/_gateway", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := first.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	<-got
	return c
}

// tickets tells of each ticket that comes.
type tickets struct {
	tls.ClientSessionCache
	got chan<- struct{}
}

func (t tickets) Put(key string, state *tls.ClientSessionState) {
	t.ClientSessionCache.Put(key, state)
	if state != nil {
		t.got <- struct{}{}
	}
}

// post sends a request in early data, hears the answer once it may, and returns it with
// what whoever listens on the way has of the request.
func (c *earlyClient) post(key string, arrived func()) (status int, body string, heard *recording) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	heard = newRecording(c.t)
	transport := &quic.Transport{Conn: heard}
	defer transport.Close()
	defer heard.hear() // or it would never end
	conn, err := transport.DialEarly(ctx, c.addr, c.tls, &quic.Config{MaxIdleTimeout: patience})
	if err != nil {
		c.t.Fatalf("dial: %v", err)
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	stream, err := new(http3.Transport).NewClientConn(conn).OpenRequestStream(ctx)
	if err != nil {
		c.t.Fatalf("open a stream: %v", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://localhost/pay?amount=10", http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("X-Owner", "alice")
	req.Header.Set("Up-Case", "early")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if err := stream.SendRequestHeader(req); err != nil {
		c.t.Fatalf("send the header: %v", err)
	}
	stream.Close() // quic-go sends no body along with such a header
	arrived()
	heard.hear()
	resp, err := stream.ReadResponse()
	if err != nil {
		c.t.Fatalf("read the answer: %v", err)
	}
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("read the answer: %v", err)
	}
	if !conn.ConnectionState().Used0RTT {
		c.t.Error("nothing was sent in early data")
	}
	return resp.StatusCode, string(all), heard
}

// SEC-13: whoever has heard early data can send it again, as it is. With a key that is
// a repetition, and executes nothing; without one it is not executed in the first place.
func TestSEC13EarlyDataIsNotExecutedTwice(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	s := to(up)
	_, s.certificate = certificate(t)
	g := startGateway(t, s)
	verdicts := func(verdict string) int { return g.counts("caddy_idempotency_requests_total", "verdict")[verdict] }
	c := newEarlyClient(t, g.addr(0))

	status, body, heard := c.post("early-key", func() { up.reached("early", 1) })
	if status != http.StatusOK {
		t.Errorf("with a key: %d %s", status, body)
	}
	eventually(t, "what was heard comes again", func() bool {
		heard.replay(t, c.addr) // in vain, as long as the first connection is known
		return verdicts("replayed") > 0
	})
	up.want("early", 1)

	status, body, _ = c.post("", func() {
		eventually(t, "the request has arrived", func() bool { return verdicts("too_early") == 1 })
	})
	if status != http.StatusTooEarly || !strings.Contains(body, "urn:idempotency:too-early") {
		t.Errorf("without a key: %d %s", status, body)
	}
	up.want("early", 1)
}
