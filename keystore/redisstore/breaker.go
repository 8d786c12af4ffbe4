package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// tripAfter is how many calls in a row have to find a server down before the
	// others are no longer made to find out for themselves; fewer, where there are
	// not as many connections on which to wait for it.
	tripAfter = 5
	// probeEvery is how often a server that was found down is looked at, about.
	probeEvery = 100 * time.Millisecond
	// probeTimeout bounds such a look.
	probeTimeout = 500 * time.Millisecond
)

// openError is what a call gets of a server that was found down. Nothing was
// sent.
type openError struct{ why string }

func (e *openError) Error() string { return "the server was found down: " + e.why }

// breaker spares calls of a server that is down their waiting for it. It opens
// after some failures with no answer to anybody meanwhile; as long as it is open one
// goroutine looks at the server, and the first answer closes it. No call is ever
// spent on finding out, and none waits, so that nothing has piled up when the
// server is back.
type breaker struct {
	// probe asks the server for something.
	probe func() error
	// wait lets some time pass between two probes. It reports whether to go on.
	wait func() bool
	// watch runs the probing in the background. It reports false if there is no
	// background any more.
	watch func(func()) bool

	trip     int // how many failures open it
	mu       sync.Mutex
	heard    time.Time // when the last answer came
	failures int       // since then
	open     bool
	why      string
}

// admit returns an error instead of letting a call through to a server that is
// down.
func (b *breaker) admit() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		return &openError{b.why}
	}
	return nil
}

// answered notes that the server does what it is there for.
func (b *breaker) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard, b.failures, b.open = time.Now(), 0, false
}

// failed notes that a call which began then has found it down. If somebody else had
// an answer meanwhile the server is only slow.
func (b *breaker) failed(began time.Time, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard.After(began) {
		return
	}
	b.why = why
	if b.failures++; b.failures < b.trip || b.open {
		return
	}
	b.open = b.watch(b.look)
}

// look probes the server until it answers.
func (b *breaker) look() {
	for b.wait() {
		err := b.probe()
		if errors.Is(err, redis.ErrClosed) || !b.isOpen() {
			// The client has given this server up, or a call that was still waiting
			// got its answer.
			b.answered()
			return
		}
		if err != nil {
			f := fateOf(err)
			if f.down {
				b.mu.Lock()
				b.why = f.text
				b.mu.Unlock()
				continue
			}
		}
		b.answered()
		return
	}
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// newBreaker returns the breaker of a server, or of whatever else probe asks.
func (s *Store) newBreaker(probe func(context.Context) error) *breaker {
	return &breaker{
		trip: min(tripAfter, s.poolSize),
		probe: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), min(s.timeout, probeTimeout))
			defer cancel()
			return probe(ctx)
		},
		wait: func() bool {
			select {
			case <-time.After(probeEvery/2 + rand.N(probeEvery)):
				return true
			case <-s.done:
				return false
			}
		},
		watch: s.goBackground,
	}
}

// routeError is a failure to find the server that has a key. Nothing was sent.
type routeError struct{ err error }

func (e *routeError) Error() string { return fmt.Sprintf("find the server: %v", e.err) }
func (e *routeError) Unwrap() error { return e.err }
