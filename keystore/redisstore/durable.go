package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// DefaultDurabilityTimeout is how long a write waits for acknowledgements, where
// [Durability.Timeout] says nothing else.
const DefaultDurabilityTimeout = 100 * time.Millisecond

// Durability says what Create and Swap wait for before they say that a write was
// done. Where that does not come in time their error is [keystore.ErrNotDurable].
// The zero value waits for nothing.
type Durability struct {
	// Replicas is how many replicas have to have the write in their memory.
	Replicas int
	// Fsync says that it has to be on the disk of the server that took it. Servers
	// before Redis 7.2 can't be asked for that: they have to do it before every
	// answer, by their setting appendfsync always.
	Fsync bool
	// Timeout is how long to wait for that, at most half of [Options.Timeout].
	// Default [DefaultDurabilityTimeout].
	Timeout time.Duration
}

func (d Durability) on() bool { return d.Replicas > 0 || d.Fsync }

func (d Durability) withDefaults(timeout time.Duration) Durability {
	if d.Timeout <= 0 {
		d.Timeout = min(DefaultDurabilityTimeout, timeout/2)
	}
	return d
}

func (d Durability) check(timeout time.Duration) error {
	switch {
	case d.Replicas < 0:
		return errors.New("the number of replicas to wait for is negative")
	case d.Timeout < time.Millisecond && d.on():
		return errors.New("the time to wait for acknowledgements has to be at least a millisecond")
	case 2*d.Timeout > timeout:
		// A wait that outlives the try would look like a write without an answer.
		return fmt.Errorf("the time to wait for acknowledgements, %s, is more than half the timeout of a try, %s", d.Timeout, timeout)
	}
	return nil
}

// Durable implements [keystore.DurableStore].
func (s *Store) Durable() bool { return s.durability.on() }

// ackError says why a write, which was done, is not known to be durable.
type ackError struct {
	text string
	err  error
}

// errShort: the server has said that it is not, or not yet.
var errShort = errors.New("too few acknowledgements")

func short(text string) error { return &ackError{text, errShort} }

func (e *ackError) Error() string { return e.text }
func (e *ackError) Unwrap() error { return e.err }

// writer returns the node as a durable write has to talk to it: a server counts
// acknowledgements of what was written on the same connection.
func (s *Store) writer(n *node) (w *node, release func()) {
	if !s.durability.on() {
		return n, func() {}
	}
	conn := n.Conn()
	p := *n
	p.via, p.lanes = conn, nil
	return &p, func() { _ = conn.Close() }
}

// acknowledged waits until what this connection has written last is as durable as
// it has to be. It must have written something: without that some servers say at
// once that everything is acknowledged.
func (s *Store) acknowledged(ctx context.Context, n *node) error {
	d := s.durability
	if !d.on() {
		return nil
	}
	ms := max(d.Timeout.Milliseconds(), 1)
	if d.Replicas > 0 {
		wait := redis.NewIntCmd(ctx, "wait", d.Replicas, ms)
		if err := n.via.Process(ctx, wait); err != nil {
			return &ackError{"ask for acknowledgements: " + fateOf(err).text, err}
		}
		if got := wait.Val(); got < int64(d.Replicas) {
			return short(fmt.Sprintf("acknowledged by %d replicas of %d", got, d.Replicas))
		}
	}
	if d.Fsync {
		return s.fsynced(ctx, n, ms)
	}
	return nil
}

func (s *Store) fsynced(ctx context.Context, n *node, ms int64) error {
	if s.noWaitAOF.Load() {
		return s.alwaysFsyncs(ctx, n)
	}
	wait := redis.NewIntSliceCmd(ctx, "waitaof", 1, 0, ms)
	err := n.via.Process(ctx, wait)
	switch {
	case isUnknownCommand(err):
		s.noWaitAOF.Store(true)
		return s.alwaysFsyncs(ctx, n)
	case err != nil && strings.Contains(err.Error(), "appendonly is disabled"):
		return short("the server keeps no append-only file")
	case err != nil:
		return &ackError{"ask whether it is on the disk: " + fateOf(err).text, err}
	case len(wait.Val()) == 0 || wait.Val()[0] < 1:
		return short("not on the disk in time")
	}
	return nil
}

func isUnknownCommand(err error) bool {
	return err != nil && strings.Contains(err.Error(), "unknown command")
}

// fsyncs remembers of a server whether it answers only what is on its disk.
type fsyncs struct {
	mu    sync.Mutex
	asked time.Time
	why   string // empty: it does
}

// fsyncsFor is how long that is believed.
const fsyncsFor = 10 * time.Second

// alwaysFsyncs fails unless the server answers only what is on its disk.
func (s *Store) alwaysFsyncs(ctx context.Context, n *node) error {
	f := n.fsyncs
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked.IsZero() || time.Since(f.asked) > fsyncsFor {
		why, err := asksFsyncs(ctx, n)
		if err != nil {
			return &ackError{"ask how the server writes to its disk: " + fateOf(err).text, err}
		}
		f.asked, f.why = time.Now(), why
	}
	if f.why != "" {
		return short(f.why)
	}
	return nil
}

func asksFsyncs(ctx context.Context, n *node) (why string, err error) {
	const want = "; a server before Redis 7.2 has to have the settings appendonly yes and appendfsync always"
	for _, setting := range [][2]string{{"appendonly", "yes"}, {"appendfsync", "always"}} {
		cmd := redis.NewMapStringStringCmd(ctx, "config", "get", setting[0])
		err := n.via.Process(ctx, cmd)
		switch got := cmd.Val()[setting[0]]; {
		case errors.As(err, new(redis.Error)):
			return "the server does not tell how it writes to its disk" + want, nil
		case err != nil:
			return "", err
		case got != setting[1]:
			return "the server's " + setting[0] + " is not " + setting[1] + want, nil
		}
	}
	return "", nil
}

// confirm makes sure that the record is as durable as a write: by a write that
// changes nothing. A record that is another one by then is confirmed instead.
func (s *Store) confirm(ctx context.Context, n *node, key string, name keystore.Name, record []byte) error {
	for range 10 {
		args := []any{keystore.WriteID{}.String(), record, 0, s.channel(), name.String()}
		reply, err := n.run(ctx, swapScript, key, args...)
		if isFull(err) {
			reply, err = n.runFull(ctx, err, swapScript, key, args...)
		}
		if err != nil {
			return &ackError{"ask for acknowledgements: " + fateOf(err).text, err}
		}
		switch now, err := swappedBy(reply, false, false); {
		case err != nil:
			return err
		case now.done:
			return s.acknowledged(ctx, n)
		case now.found == nil:
			return nil // there is nothing left to be lost
		default:
			record = now.found
		}
	}
	return short("the record changes faster than it can be confirmed")
}
