package cutter_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/cutter"
)

const patience = 30 * time.Second

// echo is a server that counts the lines it gets and sends each of them back.
type echo struct {
	net.Listener
	lines atomic.Int64
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	e := &echo{Listener: l}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					e.lines.Add(1)
					_, _ = io.WriteString(c, line)
				}
			}()
		}
	}()
	return e
}

// caller is a connection to the server through the cutter.
type caller struct {
	net.Conn
	in *bufio.Reader
}

func call(t *testing.T, c *cutter.Cutter) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", c.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &caller{conn, bufio.NewReader(conn)}
}

// say sends a line and waits that long for it to come back.
func (c *caller) say(line string, patience time.Duration) (string, error) {
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	return c.hear(patience)
}

func (c *caller) hear(patience time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	line, err := c.in.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (c *caller) want(t *testing.T, line string) {
	t.Helper()
	if got, err := c.say(line, patience); got != line || err != nil {
		t.Fatalf("said %q, heard %q, %v", line, got, err)
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	server := startEcho(t)
	c := cutter.New(t, server.Addr().String(), 1)
	a := call(t, c)
	a.want(t, "one")

	c.Set(cutter.Fault{Do: cutter.CutBefore})
	if got, err := a.say("never", patience); err == nil {
		t.Fatalf("a connection that is cut answers %q", got)
	}
	if n := server.lines.Load(); n != 1 {
		t.Errorf("what was cut before has arrived: %d lines", n)
	}

	c.Set(cutter.Fault{Do: cutter.CutAfter})
	a = call(t, c)
	if got, err := a.say("two", patience); err == nil {
		t.Fatalf("a connection that is cut answers %q", got)
	}
	if n := server.lines.Load(); n != 2 {
		t.Errorf("what was cut after has not arrived: %d lines", n)
	}

	c.Set(cutter.Fault{Do: cutter.Delay, Delay: 20 * time.Millisecond})
	a = call(t, c)
	began := time.Now()
	a.want(t, "three")
	if took := time.Since(began); took < 40*time.Millisecond { // there and back
		t.Errorf("delayed by %s", took)
	}

	c.Set(cutter.Fault{Do: cutter.Drip, Delay: 5 * time.Millisecond})
	began = time.Now()
	a.want(t, strings.Repeat("x", 500))
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("500 bytes came within %s", took)
	}

	before := server.lines.Load()
	c.Set(cutter.Fault{Do: cutter.BlackHole})
	if got, err := a.say("four", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("out of a black hole came %q, %v", got, err)
	}
	if n := server.lines.Load(); n != before {
		t.Errorf("what went into a black hole has arrived: %d lines", n)
	}
	c.Set()
	if got, err := a.hear(patience); got != "four" || err != nil {
		t.Errorf("after the black hole came %q, %v", got, err)
	}
	for _, action := range []cutter.Action{cutter.CutBefore, cutter.CutAfter, cutter.Delay, cutter.Drip, cutter.BlackHole} {
		if c.Hits(action) == 0 {
			t.Errorf("action %d has hit nothing", action)
		}
	}
}

// A fault can be one of some connections only, known by what they say first.
func TestSomeConnectionsOnly(t *testing.T) {
	t.Parallel()
	server := startEcho(t)
	c := cutter.New(t, server.Addr().String(), 1)
	c.Set(cutter.Fault{Do: cutter.CutBefore, Of: "alice"})
	a, b := call(t, c), call(t, c)
	b.want(t, "I am bob")
	if got, err := a.say("I am alice", patience); err == nil {
		t.Errorf("alice hears %q", got)
	}
	b.want(t, "so is nobody else")

	c.Set()
	c.Cut("bob")
	if got, err := b.say("bob is gone", patience); err == nil {
		t.Errorf("bob hears %q", got)
	}
}

// Draws are repeatable.
func TestChance(t *testing.T) {
	t.Parallel()
	server := startEcho(t)
	run := func(seed uint64) (pattern string) {
		c := cutter.New(t, server.Addr().String(), seed)
		c.Set(cutter.Fault{Do: cutter.CutBefore, Chance: 0.3})
		for range 30 {
			if _, err := call(t, c).say("x", patience); err != nil {
				pattern += "x"
			} else {
				pattern += "."
			}
		}
		return pattern
	}
	first, again, other := run(7), run(7), run(8)
	if first != again || first == other {
		t.Errorf("got %s and %s by one seed, %s by another", first, again, other)
	}
	if n := strings.Count(first, "x"); n == 0 || n == len(first) {
		t.Errorf("%d of %d were hit", n, len(first))
	}
}

// What one side has ended, the other side may go on answering; and all is cut at once.
func TestEnds(t *testing.T) {
	t.Parallel()
	server := startEcho(t)
	c := cutter.New(t, server.Addr().String(), 1)
	a, b := call(t, c), call(t, c)
	b.want(t, "there")
	if _, err := io.WriteString(a, "bye\n"); err != nil {
		t.Fatal(err)
	}
	if err := a.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := a.hear(patience); got != "bye" || err != nil {
		t.Errorf("heard %q, %v", got, err)
	}
	c.Cut("")
	if got, err := b.hear(patience); err == nil {
		t.Errorf("a connection that was cut says %q", got)
	}
	server.Close()
	gone := call(t, c)
	if got, err := gone.say("anybody", patience); err == nil {
		t.Errorf("a server that is gone says %q", got)
	}
}
