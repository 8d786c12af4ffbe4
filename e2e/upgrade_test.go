package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// echoUpstream accepts web sockets and says back whatever comes. It speaks no
// more of the protocol than gateways look at.
func echoUpstream(t *testing.T) (addr string) {
	t.Helper()
	return eachConnection(t, func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		if _, h, err := readRequest(in); err != nil || !strings.EqualFold(h.Get("Upgrade"), "websocket") {
			_, _ = io.WriteString(c, "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
		_, _ = io.Copy(c, in)
	})
}

// upgrade asks for a web socket, and returns the connection and the answer's head.
func upgrade(t *testing.T, g *gateway, extra string) (c net.Conn, in *bufio.Reader, head string) {
	t.Helper()
	c, err := net.Dial("tcp", "127.0.0.1:"+g.ports[0])
	if err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: shop.example\r\nX-Owner: alice\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n", extra)
	in = bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("upgrade: after %q: %v", head, err)
		}
		if head += line; line == "\r\n" {
			return c, in, head
		}
	}
}

// REP-14: a web socket passes through the gateway, with an access log around it
// and without, also where a key is required; with a key it is refused.
func TestREP14WebSocketPasses(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]string{"without an access log": "", "with an access log": "log\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, site{
				options: options{"key": "required"},
				handler: log + "reverse_proxy " + echoUpstream(t),
			})
			c, in, head := upgrade(t, g, "")
			if !strings.HasPrefix(head, "HTTP/1.1 101 ") {
				t.Fatalf("answered with %s", head)
			}
			// A text frame with a mask, as clients send it; several, in both directions by turns.
			for range 3 {
				const frame = "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"
				if _, err := io.WriteString(c, frame); err != nil {
					t.Fatal(err)
				}
				echo := make([]byte, len(frame))
				if _, err := io.ReadFull(in, echo); err != nil || string(echo) != frame {
					t.Fatalf("echo %q, %v", echo, err)
				}
			}
			if _, _, head := upgrade(t, g, "Idempotency-Key: ws\r\n"); !strings.HasPrefix(head, "HTTP/1.1 400 ") ||
				!strings.Contains(head, "application/problem+json") {
				t.Errorf("with a key it was answered with %s", head)
			}
		})
	}
}
