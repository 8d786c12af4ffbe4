package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// room is where the duplicates of one job wait on this gateway. One goroutine
// watches the job for all of them.
type room struct {
	name    keystore.Name
	leave   context.CancelFunc
	kick    chan struct{} // asks the watcher to look now
	waiters int

	// What was seen last, guarded by the gateway's mu; changed is closed and
	// replaced with each new look.
	job     *keystore.Job
	err     error
	asOf    time.Time // when that look began; what is seen was true then or later
	changed chan struct{}
}

var errTooManyWaiters = errors.New("too many waiters")

const (
	// lookInterval is how often a room looks by itself, in case that a hint was lost.
	lookInterval = 5 * time.Second
	// lookPause is the least time between two looks that no hint asked for.
	lookPause = 250 * time.Millisecond
)

// enter makes the caller wait in the job's room, for what is seen from now on. The
// caller must leave it by calling the returned function.
func (g *Gateway) enter(j *keystore.Job, perJob, total int) (rm *room, changed <-chan struct{}, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rm = g.rooms[j.Name]
	if g.waiters >= total || (rm != nil && rm.waiters >= perJob) {
		return nil, nil, nil, errTooManyWaiters
	}
	if rm == nil {
		ctx, cancel := context.WithCancel(g.ctx)
		rm = &room{name: j.Name, leave: cancel, kick: make(chan struct{}, 1), job: j, changed: make(chan struct{})}
		g.rooms[j.Name] = rm
		release := g.retain()
		go func() {
			defer release()
			g.watch(ctx, rm)
		}()
	} else if rm.job == nil || rm.job.WriteID != j.WriteID {
		// The caller knows another record than the room; which is newer, only
		// the store can tell.
		rm.lookAgain()
	}
	rm.waiters++
	g.waiters++
	return rm, rm.changed, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		rm.waiters--
		g.waiters--
		if rm.waiters == 0 {
			rm.leave()
			delete(g.rooms, rm.name)
		}
	}, nil
}

// lookAgain asks the watcher to look now.
func (rm *room) lookAgain() {
	select {
	case rm.kick <- struct{}{}:
	default:
	}
}

// look returns what the watcher saw last, when it began to look, and a channel that is
// closed when it has looked again.
func (g *Gateway) look(rm *room) (j *keystore.Job, asOf time.Time, changed <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return rm.job, rm.asOf, rm.changed, rm.err
}

// watch looks at a job whenever a hint, the end of its lease, or time asks for it.
func (g *Gateway) watch(ctx context.Context, rm *room) {
	seen := rm.job
	for {
		var id keystore.WriteID
		pause := lookPause
		if seen != nil {
			id = seen.WriteID
			pause = min(max(seen.LeaseEnd().Sub(g.store.Now())+time.Millisecond, lookPause), lookInterval)
		}
		hint, stop := g.store.Watch(ctx, rm.name, id)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-hint:
		case <-rm.kick:
		case <-timer.C:
		}
		timer.Stop()
		stop()
		if ctx.Err() != nil {
			return
		}
		asOf := time.Now()
		getCtx, cancel := context.WithTimeout(ctx, storeTime)
		j, err := g.store.Get(getCtx, rm.name)
		cancel()
		if ctx.Err() != nil {
			return
		}
		g.mu.Lock()
		rm.err = err
		if err == nil {
			rm.job, seen, rm.asOf = j, j, asOf
		}
		close(rm.changed)
		rm.changed = make(chan struct{})
		g.mu.Unlock()
		if err != nil || j == nil {
			seen = nil
			// Watching a record that is not there, or can't be read, gives a
			// hint at once.
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookPause):
			}
		}
	}
}

// wait waits until the job is no longer running. A client that has left is not
// waited for; should it have closed only its sending side, it gets an answer.
func (c *call) wait(present *keystore.Job) (*keystore.Job, error) {
	rm, changed, leave, err := c.g.enter(present, c.WaitersPerJob, c.Waiters)
	if err != nil {
		return nil, refuseWaiters().about(present, c.g.store.Now())
	}
	defer leave()
	began := time.Now()
	span := c.beginSpan(SpanWait)
	defer func() {
		endSpan(span, nil)
		took := time.Since(began)
		c.account.Wait += took
		c.g.observer.Waited(took)
	}()
	c.claim.First = false // whoever waits only reads
	timer := time.NewTimer(c.Wait)
	defer timer.Stop()
	var lookErr error
	for {
		select {
		case <-changed:
			var j *keystore.Job
			var asOf time.Time
			j, asOf, changed, lookErr = c.g.look(rm)
			switch {
			case lookErr != nil:
			case c.ask(j, c.g.store.Now()) == keystore.Wait:
				present = j
			case asOf.Before(c.began):
				// What was read before this request came may have been forgotten since.
				rm.lookAgain()
			default:
				c.account.Verdict = VerdictWaited
				return j, nil
			}
		case <-timer.C:
			if lookErr != nil {
				return nil, refuseStore(lookErr).about(present, c.g.store.Now())
			}
			return nil, refuseInFlight(present, c.g.store.Now()).about(present, c.g.store.Now())
		case <-c.g.draining:
			return nil, refuseInFlight(nil, 0).about(present, c.g.store.Now())
		case <-c.r.Context().Done():
			return nil, refuseInFlight(present, c.g.store.Now()).about(present, c.g.store.Now())
		}
	}
}
