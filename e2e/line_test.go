package e2e

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
)

// line is what lies between clients and a server, and can be cut. It takes bytes
// from one to the other and understands none of them.
type line struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	status string // see before
	then   func()
}

// newLine starts a line to the server at an address.
func newLine(t *testing.T, to string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("line: listen: %v", err)
	}
	l := &line{listener: listener, conns: make(map[net.Conn]struct{})}
	l.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.connect(client, to) })
		}
	})
	t.Cleanup(l.close)
	return l
}

func (l *line) addr() string { return l.listener.Addr().String() }

func (l *line) connect(client net.Conn, to string) {
	defer client.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.take(client, server) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			to := io.Writer(way[0])
			if way[0] == client {
				to = &toClient{l, client}
			}
			_, _ = io.Copy(to, way[1])
			// Whoever has ended, the other one has to hear of it.
			way[0].Close()
			way[1].Close()
		})
	}
	both.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, client)
	delete(l.conns, server)
}

func (l *line) take(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		l.conns[c] = struct{}{}
	}
	return !l.closed
}

// cut ends every connection there is now. Later ones are not concerned.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

// before has a function called before the next answer with this status reaches
// its client.
func (l *line) before(status string, then func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status, l.then = status, then
}

// toClient is a line's way to one client.
type toClient struct {
	line   *line
	client net.Conn
}

func (w *toClient) Write(p []byte) (int, error) {
	w.line.mu.Lock()
	then := w.line.then
	if then != nil && bytes.HasPrefix(p, []byte("HTTP/1.1 "+w.line.status+" ")) {
		w.line.then = nil
	} else {
		then = nil
	}
	w.line.mu.Unlock()
	if then != nil {
		then()
	}
	return w.client.Write(p)
}

func (l *line) close() {
	l.listener.Close()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cut()
	l.wg.Wait()
}
