package redisstore

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// errRetired is what a connection says to a command that it is too old to send.
var errRetired = errors.New("connection was retired")

// dialError is a failure to connect. Nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return "connect: " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialer makes connections that can be retired together. A server that has
// become read-only is one that a name no longer points to: the client would go
// on using its open connections, for as long as that server lives.
type dialer struct {
	dial       func(ctx context.Context, network, addr string) (net.Conn, error)
	generation atomic.Uint64
}

// newDialer puts itself into the options of a client.
func newDialer(opt *redis.Options) *dialer {
	d := &dialer{dial: redis.NewDialer(opt)}
	opt.Dialer = d.connect
	return d
}

func (d *dialer) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	generation := d.generation.Load()
	nc, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, &dialError{err}
	}
	c := conn{Conn: nc, dialer: d, generation: generation}
	if raw, ok := nc.(syscall.Conn); ok {
		return &rawConn{conn: c, raw: raw}, nil
	}
	return &c, nil
}

// retire ends the use of all connections of this generation. What was sent on
// them is still answered.
func (d *dialer) retire(generation uint64) {
	d.generation.CompareAndSwap(generation, generation+1)
}

// conn is a connection that sends nothing any more once it is retired.
type conn struct {
	net.Conn
	dialer     *dialer
	generation uint64
}

func (c *conn) retired() bool { return c.generation != c.dialer.generation.Load() }

func (c *conn) Write(b []byte) (int, error) {
	if c.retired() {
		return 0, errRetired
	}
	return c.Conn.Write(b)
}

// rawConn lets the pool look whether an idle connection is still good, which it
// does to those that have a file descriptor to look at.
type rawConn struct {
	conn
	raw syscall.Conn
}

func (c *rawConn) SyscallConn() (syscall.RawConn, error) {
	if c.retired() {
		return nil, errRetired
	}
	return c.raw.SyscallConn()
}
