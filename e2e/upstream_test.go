package e2e

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// upstream is a server that does what the headers of a request tell it, and
// counts executions: an effect has taken place as soon as the whole request was
// read. It speaks HTTP/1.1 by hand, so that it can misbehave and can see the
// header lines as they were sent.
//
// The headers of its script:
//
//	Up-Case: <case>      what the execution is counted under
//	Up-Hold: <gate>      wait until the test opens the gate
//	Up-Sleep: <duration> wait that long
//	Up-Status: <status>  answer with this status
//	Up-Header: <line>    add this header line to the answer; repeatable
//	Up-Body: <bytes>     answer with a body of that size
//	Up-Bytes: <hex>      answer with these bytes
//	Up-Chunked: <chunks> send the body in so many chunks, without its length
//	Up-Events: <n>       answer with a stream of n events, in chunks
//	Up-Step: <gate>      before each event wait until the test opens <gate>-<event>, from 1
//	Up-Interval: <time>  or wait that long
//	Up-Hint: <line>      before all that, send 103 with this header line; repeatable
//	Up-Die: noreply      close the connection instead of answering
//	Up-Die: truncate     close it in the middle of the answer's body
//	Up-Once: <case>      obey the lines above only in the case's first execution
type upstream struct {
	t    *testing.T
	addr string
	fd   int // bound and not listening; -1 once it listens

	mu         sync.Mutex
	listener   net.Listener
	conns      map[net.Conn]struct{}
	executions map[string][]execution
	gates      map[string]chan struct{}
	closed     bool
	wg         sync.WaitGroup
}

// execution is what the upstream saw of one request.
type execution struct {
	number int      // of its case, from 1
	line   string   // the request line
	lines  []string // header lines as they were sent
	body   string
	conn   string // the connection that it came on
	nth    int    // which request on that connection it was, from 1
}

// header returns the values of a header's lines, in whatever spelling its name is.
func (e execution) header(name string) (values []string) {
	for _, line := range e.lines {
		if n, value, _ := strings.Cut(line, ":"); strings.EqualFold(n, name) {
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

// newUpstream starts an upstream.
func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := newRefusingUpstream(t)
	u.open()
	return u
}

// newRefusingUpstream returns an upstream that refuses connections until it is
// opened. Its port is bound, so that nobody else can take it meanwhile.
func newRefusingUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{
		t: t, conns: make(map[net.Conn]struct{}),
		executions: make(map[string][]execution), gates: make(map[string]chan struct{}),
	}
	var err error
	if u.fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err != nil {
		t.Fatalf("upstream: make a socket: %v", err)
	}
	if err = syscall.Bind(u.fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("upstream: bind: %v", err)
	}
	name, err := syscall.Getsockname(u.fd)
	if err != nil {
		t.Fatalf("upstream: find out the port: %v", err)
	}
	u.addr = fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	t.Cleanup(u.close)
	return u
}

// open makes the upstream accept connections.
func (u *upstream) open() {
	u.t.Helper()
	if err := syscall.Listen(u.fd, syscall.SOMAXCONN); err != nil {
		u.t.Fatalf("upstream: listen: %v", err)
	}
	file := os.NewFile(uintptr(u.fd), "upstream")
	listener, err := net.FileListener(file)
	file.Close()
	if err != nil {
		u.t.Fatalf("upstream: listen: %v", err)
	}
	u.mu.Lock()
	u.fd, u.listener = -1, listener
	u.mu.Unlock()
	u.wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			u.mu.Lock()
			if u.closed {
				u.mu.Unlock()
				c.Close()
				return
			}
			u.conns[c] = struct{}{}
			u.mu.Unlock()
			u.wg.Go(func() { u.serve(c) })
		}
	})
}

func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	if u.fd >= 0 {
		_ = syscall.Close(u.fd)
	} else {
		u.listener.Close()
	}
	for c := range u.conns {
		c.Close()
	}
	for _, gate := range u.gates {
		select {
		case <-gate:
		default:
			close(gate)
		}
	}
	u.mu.Unlock()
	u.wg.Wait()
}

// gate returns the gate with this name.
func (u *upstream) gate(name string) chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gates[name] == nil {
		u.gates[name] = make(chan struct{})
		if u.closed {
			close(u.gates[name])
		}
	}
	return u.gates[name]
}

// release opens a gate: requests held there are answered, later ones not held.
func (u *upstream) release(name string) { close(u.gate(name)) }

func (u *upstream) serve(c net.Conn) {
	defer func() {
		c.Close()
		u.mu.Lock()
		delete(u.conns, c)
		u.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	for nth := 1; ; nth++ {
		e, script, err := readRequest(in)
		if err != nil {
			return
		}
		e.conn, e.nth = c.RemoteAddr().String(), nth
		name := script.Get("Up-Case")
		u.mu.Lock()
		e.number = len(u.executions[name]) + 1
		u.executions[name] = append(u.executions[name], e)
		u.mu.Unlock()
		if script.Get("Up-Once") != "" && e.number > 1 {
			script = http.Header{}
		}
		if !u.perform(c, name, e, script) {
			return
		}
	}
}

// readRequest reads one request with its whole body.
func readRequest(in *bufio.Reader) (e execution, h http.Header, err error) {
	h = http.Header{}
	if e.line, err = readLine(in); err != nil {
		return e, h, err
	}
	for {
		line, err := readLine(in)
		if err != nil {
			return e, h, err
		}
		if line == "" {
			break
		}
		e.lines = append(e.lines, line)
		name, value, _ := strings.Cut(line, ":")
		h.Add(name, strings.TrimSpace(value))
	}
	var body []byte
	if strings.EqualFold(h.Get("Transfer-Encoding"), "chunked") {
		body, err = readChunks(in)
	} else if n, _ := strconv.Atoi(h.Get("Content-Length")); n > 0 {
		body = make([]byte, n)
		_, err = io.ReadFull(in, body)
	}
	e.body = string(body)
	return e, h, err
}

func readLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

func readChunks(in *bufio.Reader) (body []byte, err error) {
	for {
		line, err := readLine(in)
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(line, ";")
		n, err := strconv.ParseInt(size, 16, 32)
		if err != nil {
			return nil, fmt.Errorf("length of a chunk: %w", err)
		}
		chunk := make([]byte, n)
		if _, err = io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		if _, err = readLine(in); err != nil {
			return nil, err
		}
		if n == 0 {
			return body, nil
		}
		body = append(body, chunk...)
	}
}

// perform does what the script says. It reports whether the connection goes on.
func (u *upstream) perform(c net.Conn, name string, e execution, script http.Header) bool {
	for _, line := range script.Values("Up-Hint") {
		_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n"+line+"\r\n\r\n")
	}
	if gate := script.Get("Up-Hold"); gate != "" {
		<-u.gate(gate)
	}
	if d, err := time.ParseDuration(script.Get("Up-Sleep")); err == nil {
		time.Sleep(d)
	}
	if script.Get("Up-Die") == "noreply" {
		return false
	}
	status := 200
	if s, err := strconv.Atoi(script.Get("Up-Status")); err == nil {
		status = s
	}
	// No two executions answer the same.
	body := fmt.Sprintf(`{"case":%q,"execution":%d,"at":%d}`, name, e.number, time.Now().UnixNano())
	if n, err := strconv.Atoi(script.Get("Up-Body")); err == nil {
		body = strings.Repeat("z", n)
	}
	if b, err := hex.DecodeString(script.Get("Up-Bytes")); err == nil && len(b) > 0 {
		body = string(b)
	}
	chunks := u.chunks(body, script)
	length := fmt.Sprintf("Content-Length: %d", len(body))
	if chunks != nil {
		length = "Transfer-Encoding: chunked"
	}
	var head strings.Builder
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\n%s\r\n", status, http.StatusText(status), length)
	for _, line := range script.Values("Up-Header") {
		head.WriteString(line + "\r\n")
	}
	head.WriteString("\r\n")
	if chunks != nil {
		return sendChunks(c, head.String(), chunks, script.Get("Up-Die") == "truncate")
	}
	if script.Get("Up-Die") == "truncate" {
		_, _ = io.WriteString(c, head.String()+body[:len(body)/2])
		return false
	}
	if strings.HasPrefix(e.line, "HEAD ") {
		body = ""
	}
	_, err := io.WriteString(c, head.String()+body)
	return err == nil
}

// of returns the executions of a case up to now.
func (u *upstream) of(name string) []execution {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]execution(nil), u.executions[name]...)
}

// reached waits until a case has been executed n times.
func (u *upstream) reached(name string, n int) {
	u.t.Helper()
	eventually(u.t, fmt.Sprintf("execution %d of %q", n, name), func() bool { return len(u.of(name)) >= n })
}

// want checks how often a case was executed.
func (u *upstream) want(name string, n int) {
	u.t.Helper()
	if got := len(u.of(name)); got != n {
		u.t.Errorf("%q was executed %d times, want %d", name, got, n)
	}
}
