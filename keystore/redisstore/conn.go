package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// errRetired is what a connection says to a command that it is too old to send.
var errRetired = errors.New("connection was retired")

// errRetiredMidway is the same where some of what was sent may have left before.
var errRetiredMidway = errors.New("connection was retired while it was written to")

// dialError is a failure to connect. Nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return "connect: " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialer makes connections that can be retired together. A server that has
// become read-only is one that a name no longer points to: the client would go
// on using its open connections, for as long as that server lives.
type dialer struct {
	generation atomic.Uint64
	wrap       func(net.Conn) net.Conn // nil but in tests
}

// attach lets a client make its connections here.
func (d *dialer) attach(c *redis.Client) { c.AddHook(d) }

// DialHook implements [redis.Hook].
func (d *dialer) DialHook(dial redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		generation := d.generation.Load()
		nc, err := dial(ctx, network, addr)
		if err != nil {
			// The client counts its failures to connect, and after some of them it
			// refuses to connect for a second at a time. Our own breakers know
			// better when to try again; so it is handed what can't be used.
			return deadConn{unconnected(err)}, nil
		}
		if d.wrap != nil {
			nc = d.wrap(nc)
		}
		c := &conn{Conn: nc, dialer: d, generation: generation}
		if raw, ok := nc.(syscall.Conn); ok {
			return &rawConn{conn: c, raw: raw}, nil
		}
		return c, nil
	}
}

// ProcessHook implements [redis.Hook].
func (d *dialer) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (d *dialer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// retire ends the use of all connections of this generation. What was sent on
// them is still answered.
func (d *dialer) retire(generation uint64) {
	d.generation.CompareAndSwap(generation, generation+1)
}

// unconnected returns the error of a connection that could not be made. Of the error
// that a new one ends in the client takes off the outermost layer, which therefore is
// one that nobody misses.
func unconnected(err error) error { return fmt.Errorf("no connection: %w", &dialError{err}) }

// conn is a connection that sends nothing any more once it is retired.
type conn struct {
	net.Conn
	dialer     *dialer
	generation uint64
	// heard says that the server has said something. Before that nothing was sent
	// but the client's greeting: whoever has accepted the connection may have no
	// server behind it.
	heard atomic.Bool
}

func (c *conn) retired() bool { return c.generation != c.dialer.generation.Load() }

func (c *conn) Write(b []byte) (int, error) {
	if c.retired() {
		return 0, errRetired
	}
	n, err := c.Conn.Write(b)
	return n, c.judge(err)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
	}
	return n, c.judge(err)
}

func (c *conn) judge(err error) error {
	if err == nil || c.heard.Load() {
		return err
	}
	return unconnected(err)
}

// rawConn lets the pool look whether an idle connection is still good, which it
// does to those that have a file descriptor to look at.
type rawConn struct {
	*conn
	raw syscall.Conn
}

func (c *rawConn) SyscallConn() (syscall.RawConn, error) {
	if c.retired() {
		return nil, errRetired
	}
	return c.raw.SyscallConn()
}

// deadConn is a connection that could not be made.
type deadConn struct{ why error }

func (c deadConn) Read([]byte) (int, error)         { return 0, c.why }
func (c deadConn) Write([]byte) (int, error)        { return 0, c.why }
func (c deadConn) Close() error                     { return nil }
func (c deadConn) LocalAddr() net.Addr              { return nowhere{} }
func (c deadConn) RemoteAddr() net.Addr             { return nowhere{} }
func (c deadConn) SetDeadline(time.Time) error      { return nil }
func (c deadConn) SetReadDeadline(time.Time) error  { return nil }
func (c deadConn) SetWriteDeadline(time.Time) error { return nil }

type nowhere struct{}

func (nowhere) Network() string { return "none" }
func (nowhere) String() string  { return "none" }

var _ redis.Hook = (*dialer)(nil)
