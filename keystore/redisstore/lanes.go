package redisstore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxLanes is how many round trips of shared commands are under way at once, to
	// one server. More of them make it rarer that a command waits for one to end, and
	// let fewer commands share one: four took 208 µs of the gateway's CPU for a fresh
	// request where two took 195.
	maxLanes = 2
	// maxShared bounds how large a record may be whose write shares its round trip
	// with others: they would wait for a large one.
	maxShared = 16 << 10
	// sharedCommands and sharedBytes bound a round trip, and so what is in doubt when
	// the connection breaks.
	sharedCommands = 256
	sharedBytes    = 128 << 10
)

// lanes let commands of requests that run at the same time share round trips, and
// the writing and reading that goes with one. A command that finds a lane free goes
// at once and alone; those that come while all are under way go together, when the
// first of them is back. So nothing waits where there is nothing to share.
type lanes struct {
	s     *Store
	to    *node
	ready chan struct{} // a lane is to look

	mu      sync.Mutex
	ended   bool     // with the store
	started int      // lanes that there are
	idle    int      // lanes that wait to be told to look
	waiting []*order // commands
}

// order is a command that waits for its lane.
type order struct {
	cmd  redis.Cmder
	size int
	// done gets a value when the command has its reply, or its error.
	done chan struct{}
	// left says that whoever sent it does not wait for that any more.
	left atomic.Bool
}

// withdrawnError is what a command comes back with that was given up before it was
// sent.
type withdrawnError struct{ why error }

func (e *withdrawnError) Error() string { return "no longer waited for: " + e.why.Error() }
func (e *withdrawnError) Unwrap() error { return e.why }

// abandonedError is what a command comes back with that was given up after it was
// sent, or while it was.
type abandonedError struct{ why error }

func (e *abandonedError) Error() string { return "no longer waited for: " + e.why.Error() }
func (e *abandonedError) Unwrap() error { return e.why }

func newLanes(s *Store, to *node) *lanes {
	return &lanes{s: s, to: to, ready: make(chan struct{}, maxLanes)}
}

// sizeOf returns about how large a command is, in bytes.
func sizeOf(cmd redis.Cmder) (size int) {
	for _, arg := range cmd.Args() {
		switch arg := arg.(type) {
		case string:
			size += len(arg)
		case []byte:
			size += len(arg)
		default:
			size += 8
		}
	}
	return size
}

var orders = sync.Pool{New: func() any { return &order{done: make(chan struct{}, 1)} }}

// do has a command sent, and waits for its reply or for the context's end.
func (l *lanes) do(ctx context.Context, cmd redis.Cmder, size int) error {
	if err := ctx.Err(); err != nil {
		return &withdrawnError{err}
	}
	o := orders.Get().(*order)
	o.cmd, o.size = cmd, size
	if !l.put(o) {
		return redis.ErrClosed
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		if l.withdraw(o) {
			return &withdrawnError{ctx.Err()}
		}
		o.left.Store(true) // the lane has it still
		return &abandonedError{ctx.Err()}
	}
	o.cmd = nil
	orders.Put(o)
	return cmd.Err()
}

// put queues a command. It reports false if the store is closed.
func (l *lanes) put(o *order) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	if l.idle == 0 && l.started < maxLanes {
		if !l.s.goBackground(l.run) {
			return false
		}
		l.started++
	}
	l.waiting = append(l.waiting, o)
	select {
	case l.ready <- struct{}{}:
	default: // every lane is about to look
	}
	return true
}

// withdraw takes a command back that no lane has taken yet.
func (l *lanes) withdraw(o *order) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == o {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// take returns what is to go next, appended to some.
func (l *lanes) take(some []*order) []*order {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes := 0
	n := 0
	for n < len(l.waiting) && n < sharedCommands && (n == 0 || bytes+l.waiting[n].size <= sharedBytes) {
		bytes += l.waiting[n].size
		n++
	}
	some = append(some, l.waiting[:n]...)
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	return some
}

// run is a lane. It ends with the store, and leaves nobody waiting.
func (l *lanes) run() {
	var some []*order
	for open := true; open; {
		l.rest(+1)
		select {
		case <-l.ready:
		case <-l.s.done:
			open = false
		}
		l.rest(-1)
		if !open {
			l.end()
		}
		for some = l.take(some[:0]); len(some) > 0; some = l.take(some[:0]) {
			l.send(some)
			clear(some)
			// Those that have just been answered are about to send their next
			// commands: they are let run first.
			runtime.Gosched()
		}
	}
}

func (l *lanes) rest(more int) {
	l.mu.Lock()
	l.idle += more
	l.mu.Unlock()
}

// end lets nothing be queued any more.
func (l *lanes) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
}

// send makes one round trip.
func (l *lanes) send(some []*order) {
	if err := l.to.admit(); err != nil { // found down while they waited
		for _, o := range some {
			o.cmd.SetErr(err)
			o.done <- struct{}{}
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.s.timeout)
	defer cancel()
	began := time.Now()
	if len(some) == 1 {
		_ = l.to.via.Process(ctx, some[0].cmd)
	} else {
		pipe := l.to.via.Pipeline()
		for _, o := range some {
			o.cmd.SetErr(errNoReply)
			_ = pipe.Process(ctx, o.cmd)
		}
		_, err := pipe.Exec(ctx)
		for _, o := range some {
			// Every command has its own error. Of a handshake that the server refuses
			// the client tells none of them: without a reply it must not look like one
			// that has succeeded.
			if err != nil && errors.Is(o.cmd.Err(), errNoReply) {
				o.cmd.SetErr(err)
			}
			// What goes together is written in several pieces, and the connection can
			// have become too old between two of them.
			if errors.Is(o.cmd.Err(), errRetired) {
				o.cmd.SetErr(errRetiredMidway)
			}
		}
	}
	for _, o := range some {
		if o.left.Load() { // somebody has to hear what it says of the server
			l.s.note(ctx, l.to, began, o.cmd.Err())
		}
		o.done <- struct{}{}
	}
}
