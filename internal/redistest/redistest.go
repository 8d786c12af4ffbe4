// Package redistest runs real Redis servers for tests: processes on free ports
// of the loopback, with a data directory each, that are gone at the test's end.
package redistest

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// patience is how long a server may take to start or to stop. It is reached
// only when something is broken.
const patience = 30 * time.Second

// Server is one server process. Create it with [Start].
type Server struct {
	t    testing.TB
	kind string // server or sentinel
	port string
	dir  string
	args []string
	with Setup

	// front is where others reach the server (host:port).
	front string

	once     sync.Once
	arranger *redis.Client

	mu   sync.Mutex
	cmd  *exec.Cmd
	gone chan struct{}

	out output // of all its processes
}

// output is what a server prints: the end of it, as much as anybody would read.
type output struct {
	mu   sync.Mutex
	text []byte
}

const outputKept = 64 << 10

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	if len(o.text) > 2*outputKept {
		o.text = slices.Clone(o.text[len(o.text)-outputKept:])
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// Output returns the end of what the server has printed.
func (s *Server) Output() string { return s.out.String() }

// Start runs a redis-server without persistence, on a free port. The arguments
// are configuration directives as on its command line, such as
// "--appendonly", "yes"; they come last and so win.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartWith(t, Setup{Args: args})
}

// Setup says how servers are run.
type Setup struct {
	// Args are configuration directives, as for [Start].
	Args []string
	// Clock is the servers' wall clock; nil: the machine's.
	Clock *Clock
	// Front is asked for what stands in front of each server, at whose address the
	// others and the clients are told to reach it; nil: nothing does.
	Front func(s *Server) (addr string)
}

// StartWith is [Start] with all that can be said.
func StartWith(t testing.TB, with Setup) *Server {
	t.Helper()
	return start(t, server, with, func(*Server) []string { return with.Args })
}

// program is what servers are run with: redis-server, or what REDIS_SERVER names, such as
// a valkey-server.
func program() string { return cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server") }

// The kinds of servers.
const (
	server   = "redis-server"
	sentinel = "redis-sentinel"
)

// start runs a server of this kind; args returns its arguments, for the port that
// it has got.
func start(t testing.TB, kind string, with Setup, args func(*Server) []string) *Server {
	t.Helper()
	if _, err := exec.LookPath(program()); err != nil {
		t.Fatalf("redistest: there is no %s on this machine: install the package redis-server (Debian, Ubuntu) or redis (others)", program())
	}
	// Its own directory rather than t.TempDir: the path of a unix socket has to
	// be short, and test names are not.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatalf("redistest: make a data directory: %v", err)
	}
	s := &Server{t: t, kind: kind, dir: dir, with: with}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	// Programs that know nothing of these ports can take one all the same. Then
	// there is another one.
	for range 5 {
		s.port = testport.Take(t)
		if s.front = s.Addr(); with.Front != nil {
			s.front = with.Front(s)
		}
		s.args = args(s)
		if err = s.start(); err == nil {
			return s
		}
	}
	t.Fatalf("redistest: start %s: %v", kind, err)
	return nil
}

// start starts the process, with more arguments than its own for this time.
func (s *Server) start(more ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	args := slices.Concat(s.args, []string{"--sentinel"})
	if s.kind == server {
		args = append([]string{
			"--bind", "127.0.0.1", "--port", s.port, "--dir", s.dir,
			"--unixsocket", s.Socket(),
			"--save", "", "--appendonly", "no", "--daemonize", "no",
		}, slices.Concat(s.args, more)...)
	}
	s.cmd = exec.Command(program(), args...)
	if s.with.Clock != nil {
		s.cmd.Env = s.with.Clock.environment()
	}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		return err
	}
	gone := make(chan struct{})
	s.gone = gone
	cmd := s.cmd
	go func() {
		_ = cmd.Wait()
		close(gone)
	}()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case <-gone:
			return fmt.Errorf("it ended at once: %s", lastLines(s.out.String(), 5))
		default:
		}
		if s.ready() {
			return nil
		}
	}
	_ = s.cmd.Process.Kill()
	<-gone
	return fmt.Errorf("it did not answer within %s: %s", patience, lastLines(s.out.String(), 5))
}

// ready reports whether our own process answers: another one on the same port
// has another process id.
func (s *Server) ready() bool {
	c, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprint(c, "INFO server\r\n"); err != nil {
		return false
	}
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "-LOADING"):
			return false
		case strings.HasPrefix(line, "-"):
			return true // it wants a password; that is an answer too
		case strings.HasPrefix(line, "process_id:"):
			return line == fmt.Sprintf("process_id:%d", s.cmd.Process.Pid)
		}
	}
	return false
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// Addr is where the server listens (host:port).
func (s *Server) Addr() string { return "127.0.0.1:" + s.port }

// Front is where others reach the server (host:port).
func (s *Server) Front() string { return s.front }

func (s *Server) frontPort() string {
	_, port, _ := net.SplitHostPort(s.front)
	return port
}

// Socket is the path of the server's unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "s") }

// URL is the server's URL without credentials.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Stop ends the server in good order, so that it saves what it is configured to
// save.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

// Kill ends the server with SIGKILL. It does no harm to kill it twice.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

func (s *Server) end(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT) // a frozen process does not end by SIGTERM
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.gone:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		<-s.gone
	}
	s.cmd = nil
}

// Restart starts the server again, on the same port and data. A server that is
// still running is killed first.
func (s *Server) Restart() {
	s.t.Helper()
	s.restart()
}

func (s *Server) restart(more ...string) {
	s.t.Helper()
	s.Kill()
	if err := s.start(more...); err != nil {
		s.t.Fatalf("redistest: restart %s: %v", s.kind, err)
	}
}

// Freeze stops the process in its tracks, as a stalled machine would.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatalf("redistest: signal %v: the server is not running", sig)
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("redistest: signal %v: %v", sig, err)
	}
}
