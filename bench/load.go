package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// load is what is sent to a target in one round.
type load struct {
	addr, path string
	size       int
	conns      int
	rate       float64 // requests per second; zero: as fast as answers come
	keys       keys
	static     bool          // answers are the same for all, and no key is in them
	replays    bool          // what is sent again is to be answered by a replay
	status     int           // what is expected; zero: 200
	count      *atomic.Int64 // how many requests are left to be sent; nil: any number
}

// keys chooses the key of the next request, and says which requests are replays.
type keys interface {
	next() (k key, replay expectation)
}

// expectation is whether an answer has to be a replay.
type expectation int

const (
	either expectation = iota
	first
	replay
)

// measured is what one round has shown.
type measured struct {
	requests int64
	took     time.Duration
	latency  histogram
	wrong    int64
	why      string // the first answer that was wrong
}

func (m *measured) rate() float64 { return float64(m.requests) / m.took.Seconds() }

// send sends a load for some time, or until its keys have all been sent.
func send(ctx context.Context, l load, d time.Duration) (*measured, error) {
	clients, err := newClients(l.conns, l.addr, l.path)
	defer closeAll(clients)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	var tickets chan time.Time
	if l.rate > 0 {
		tickets = make(chan time.Time, 1<<16)
		go pace(tickets, l.rate, d)
	}
	results := make([]measured, l.conns)
	errs := make([]error, l.conns)
	began := time.Now()
	var all sync.WaitGroup
	for i, c := range clients {
		_ = c.conn.SetDeadline(began.Add(d + answerTime))
		all.Go(func() {
			if tickets != nil {
				errs[i] = l.open(c, tickets, &results[i])
			} else {
				errs[i] = l.closed(c, &stop, &results[i])
			}
			if errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	total := &measured{took: time.Since(began)}
	for i := range results {
		r := &results[i]
		total.requests += r.requests
		total.wrong += r.wrong
		if total.why == "" {
			total.why = r.why
		}
		total.latency.merge(&r.latency)
	}
	return total, errors.Join(errs...)
}

// closed sends the next request when the last one is answered.
func (l load) closed(c *client, stop *atomic.Bool, m *measured) error {
	for !stop.Load() && (l.count == nil || l.count.Add(-1) >= 0) {
		began := time.Now()
		if err := l.one(c, began, m); err != nil {
			return err
		}
	}
	return nil
}

// open sends requests when it is their time. A request that has to wait for a
// connection has waited: its latency counts from when it should have been sent.
func (l load) open(c *client, tickets <-chan time.Time, m *measured) error {
	for due := range tickets {
		if err := l.one(c, due, m); err != nil {
			return err
		}
	}
	return nil
}

func (l load) one(c *client, began time.Time, m *measured) error {
	k, expected := l.keys.next()
	a, err := c.do(&k)
	if err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	m.latency.add(time.Since(began))
	m.requests++
	if why := l.wrong(a, expected); why != "" {
		m.wrong++
		m.why = why
	}
	return nil
}

// wrong says what is wrong with an answer.
func (l load) wrong(a answered, expected expectation) string {
	want := l.status
	if want == 0 {
		want = 200
	}
	switch {
	case a.status != want:
		return fmt.Sprintf("status %d", a.status)
	case want != 200:
		return ""
	case a.size != int64(l.size):
		return fmt.Sprintf("%d bytes", a.size)
	case l.static:
		return ""
	case !a.ours:
		return "another job's answer"
	case l.replays && expected == replay && !a.replayed:
		return "not a replay"
	case expected == first && a.replayed:
		return "a replay"
	}
	return ""
}

// pace hands out the times at which requests are due, when they are. It has a thread
// for itself: the runtime's timers are not fine enough.
func pace(tickets chan<- time.Time, rate float64, d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(tickets)
	began := time.Now()
	for i := 0; ; i++ {
		after := time.Duration(float64(i) / rate * float64(time.Second))
		if after > d {
			return
		}
		if wait := after - time.Since(began); wait > 0 {
			ts := syscall.NsecToTimespec(wait.Nanoseconds())
			_ = syscall.Nanosleep(&ts, nil)
		}
		tickets <- began.Add(after)
	}
}
