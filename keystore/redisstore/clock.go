package redisstore

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// clock is the server's clock, as far as it is known here. All gateways of one
// server judge leases and expiries by it.
type clock struct {
	sample atomic.Pointer[clockSample]
}

// clockSample says that the server's clock showed server when the local
// monotonic clock was at local. Steps of the local wall clock don't matter.
type clockSample struct {
	server time.Time
	local  time.Time
}

// now is the present instant of the server's clock. Before the first sample it
// is taken to be that of the local one.
func (c *clock) now() time.Time {
	s := c.sample.Load()
	if s == nil {
		return time.Now()
	}
	return s.server.Add(time.Since(s.local))
}

// Now returns the present instant of the server's clock, which is asked for in
// the background. As long as the server has not been reached it is the local
// clock's.
func (s *Store) Now() keystore.Time { return keystore.TimeOf(s.clock.now()) }

// ClockOffset returns how far the server's clock is ahead of the local one, and
// whether the server has been asked yet.
func (s *Store) ClockOffset() (offset time.Duration, known bool) {
	if s.clock.sample.Load() == nil {
		return 0, false
	}
	now := time.Now().Round(0) // the wall clock's reading
	return s.clock.now().Round(0).Sub(now), true
}

const (
	sampleEvery      = 10 * time.Second
	sampleFirstEvery = time.Second // until the server has been reached once
)

// keepTime samples the server's clock until the store is closed.
func (s *Store) keepTime() {
	for {
		pause := sampleEvery
		if s.sampleClock(context.Background()) != nil && s.clock.sample.Load() == nil {
			pause = sampleFirstEvery
		}
		select {
		case <-time.After(pause):
		case <-s.done:
			return
		}
	}
}

// sampleClock asks for the server's time, or for that of all masters of a cluster,
// of which it takes the one in the middle.
func (s *Store) sampleClock(ctx context.Context) error {
	masters, err := s.masters(ctx, "ask for the time")
	if err != nil {
		return err
	}
	var samples []*clockSample
	for _, n := range masters {
		if err = n.admit(); err != nil {
			continue
		}
		var sample *clockSample
		if sample, err = s.sampleOf(ctx, n); err == nil {
			samples = append(samples, sample)
		}
	}
	if len(samples) == 0 {
		return cmp.Or(err, errNoReply)
	}
	slices.SortFunc(samples, func(a, b *clockSample) int { return cmp.Compare(a.ahead(), b.ahead()) })
	s.clock.sample.Store(samples[len(samples)/2])
	return nil
}

// ahead is how far the server's clock is ahead of the local one.
func (c *clockSample) ahead() time.Duration { return c.server.Sub(c.local.Round(0)) }

// sampleOf asks a server for its time. It looks at its clock somewhere between
// question and answer, so the quickest of a few answers is the most exact one; the
// first can include connecting.
func (s *Store) sampleOf(ctx context.Context, n *node) (best *clockSample, err error) {
	const goodEnough = 20 * time.Millisecond
	quickest := time.Duration(math.MaxInt64)
	for range 3 {
		asked := time.Now()
		server, err := s.askTime(ctx, n)
		if err != nil {
			return nil, err
		}
		took := time.Since(asked)
		if took < quickest {
			quickest = took
			best = &clockSample{server: server, local: asked.Add(took / 2)}
		}
		if took <= goodEnough {
			break
		}
	}
	return best, nil
}

func (s *Store) askTime(ctx context.Context, n *node) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	began := time.Now()
	server, err := n.Time(ctx).Result()
	s.note(ctx, n, began, err)
	return server, err
}
