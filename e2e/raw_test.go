package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// raw is a connection to a gateway on which a client speaks HTTP by hand.
type raw struct {
	t *testing.T
	*net.TCPConn
	in *bufio.Reader
}

func (g *gateway) dial(site int) *raw {
	g.t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+g.ports[site])
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return &raw{t: g.t, TCPConn: conn.(*net.TCPConn), in: bufio.NewReader(conn)}
}

// send writes lines, each ended as HTTP has it.
func (c *raw) send(lines ...string) {
	c.t.Helper()
	if _, err := io.WriteString(c, strings.Join(lines, "\r\n")+"\r\n"); err != nil {
		c.t.Fatal(err)
	}
}

// head sends a request's head with these lines in it, besides what every request has.
func (c *raw) head(key string, lines ...string) {
	c.t.Helper()
	c.headOf("HTTP/1.1", key, lines...)
}

func (c *raw) headOf(proto, key string, lines ...string) {
	c.t.Helper()
	c.send("POST /pay "+proto, "Host: shop.example", "Content-Type: application/json", "Idempotency-Key: "+key, "Up-Case: "+key)
	c.send(append(lines, "")...)
}

// status reads the first line of an answer, and returns its status.
func (c *raw) status() (status int) {
	c.t.Helper()
	line, err := c.in.ReadString('\n')
	if err != nil {
		c.t.Fatalf("no answer: %v; %q", err, line)
	}
	if _, err := fmt.Sscanf(line, "HTTP/1.1 %d", &status); err != nil {
		c.t.Fatalf("not an answer: %q", line)
	}
	return status
}

// answer reads an answer.
func (c *raw) answer() answer {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(body), err: err}
}

// CAD-05: a client that asks before it sends its body is told at once what can be
// told from the request's head alone. Otherwise its body is read, once.
func TestCAD05RefusalsThatNeedNoBodyComeBeforeIt(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up).with("key", "required"))
	const expect, owner, length = "Expect: 100-continue", "X-Owner: alice", "Content-Length: 4"
	for key, refused := range map[string]struct {
		status int
		lines  []string
	}{
		"too-large":  {413, []string{expect, owner, "Content-Length: 50000000"}},
		"no-owner":   {400, []string{expect, length}},
		"with space": {400, []string{expect, owner, length}},
		"":           {400, []string{expect, owner, length}},
	} {
		c := g.dial(0)
		c.head(key, refused.lines...)
		if got := c.status(); got != refused.status {
			t.Errorf("key %q: answered with %d, want %d", key, got, refused.status)
		}
		up.want(key, 0)
	}
	c := g.dial(0)
	c.head("asked", expect, owner, length)
	if got := c.status(); got != http.StatusContinue {
		t.Fatalf("answered with %d, want 100", got)
	}
	if line, err := c.in.ReadString('\n'); err != nil || line != "\r\n" {
		t.Fatalf("after the 100: %q, %v", line, err)
	}
	if _, err := io.WriteString(c, "body"); err != nil {
		t.Fatal(err)
	}
	wantExecuted(t, c.answer())
	up.want("asked", 1)
	if e := up.of("asked")[0]; e.body != "body" || e.header("Expect") != nil { // nothing is left to wait for
		t.Errorf("the upstream got %q with %q", e.body, e.lines)
	}
}

// A body in chunks is the same body: the upstream gets all of it, with its length,
// and a repetition that knows the length beforehand is a repetition.
func TestBodyInChunks(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up).with("buffer", "8B"))
	for key, chunks := range map[string][]string{"one": {"0123456"}, "edge": {"0123", "4567"}, "many": {"0", "12345678", "9"}} {
		body := strings.Join(chunks, "")
		c := g.dial(0)
		c.head(key, "X-Owner: alice", "Transfer-Encoding: chunked")
		for _, chunk := range chunks {
			c.send(fmt.Sprintf("%x;x=y", len(chunk)), chunk)
		}
		c.send("0", "X-Trailer: 1", "")
		a := c.answer()
		wantExecuted(t, a)
		wantReplay(t, a, g.client().do(post(key).as(func(r *request) { r.body = body })))
		up.want(key, 1)
		if e := up.of(key)[0]; e.body != body || e.header("Content-Length") == nil || e.header("Transfer-Encoding") != nil {
			t.Errorf("the upstream got %q with %q, want %q", e.body, e.lines, body)
		}
	}
}

// A client that has closed its sending side has not left.
func TestHalfClosedClientIsAnswered(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up))
	c := g.dial(0)
	c.head("half", "X-Owner: alice", "Content-Length: 4", "Up-Hold: gate")
	if _, err := io.WriteString(c, "body"); err != nil {
		t.Fatal(err)
	}
	up.reached("half", 1)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	up.release("gate")
	wantExecuted(t, c.answer())
	up.want("half", 1)
}

// eachConnection starts a server that does this with each connection it gets.
func eachConnection(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}
