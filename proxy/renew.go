package proxy

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// renewTick is how often the gateway looks through its attempts.
	renewTick = 200 * time.Millisecond
	// indexAge is the age at which an attempt enters the index of unresolved
	// jobs. Most attempts end before, and cost the store nothing more.
	indexAge = 2 * time.Second
	// renewals bounds how many leases are renewed at once that can't be renewed
	// together.
	renewals = 16
	// renewedTogether is how many leases are renewed in one call to the store.
	renewedTogether = 1000
)

// renewLeases keeps the leases of this gateway's attempts alive, and enters
// those that take longer into the index of unresolved jobs. It stands apart from
// the requests' way: an ordinary attempt ends before it is ever looked at.
func (g *Gateway) renewLeases() {
	tick := time.NewTicker(renewTick)
	defer tick.Stop()
	var indexAgain time.Time // after a failure, when to try again
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
		}
		var old, due, soon []*attempt
		now := g.store.Now()
		g.mu.Lock()
		for a := range g.attempts {
			if a.lost.Load() || a.lingers() || a.concluding.Load() {
				continue
			}
			if !a.indexed.Load() && time.Since(a.began) > indexAge {
				old = append(old, a)
			}
			end, known := a.leaseEnd()
			if !known || time.Now().Before(a.renewAgain) {
				continue
			}
			switch left := end.Sub(now); {
			case left < a.route.Lease/3:
				due = append(due, a)
			case left < a.route.Lease/3+a.route.Lease/4:
				soon = append(soon, a)
			}
		}
		g.mu.Unlock()
		if len(due) > 0 {
			due = append(due, soon...) // in the same round trips
		}
		if time.Now().After(indexAgain) && !g.enterIndex(old) {
			indexAgain = time.Now().Add(indexAge)
		}
		g.renew(due)
	}
}

// leaseEnd is when the attempt's lease ends; not known while a write is under way.
func (a *attempt) leaseEnd() (keystore.Time, bool) {
	if !a.mu.TryLock() {
		return 0, false
	}
	defer a.mu.Unlock()
	own := a.job.Attempt(a.token)
	return own.Lease, own.State == keystore.AttemptStarting
}

// enterIndex reports whether it could.
func (g *Gateway) enterIndex(attempts []*attempt) bool {
	entries := make([]keystore.IndexEntry, 0, len(attempts))
	var entered []*attempt
	for _, a := range attempts {
		if j := a.snapshot(); j != nil {
			entries = append(entries, keystore.IndexEntryOf(j))
			entered = append(entered, a)
		}
	}
	if len(entries) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(g.ctx, storeTime)
	defer cancel()
	if err := g.store.Index(ctx, entries...); err != nil {
		g.log.Warn("running attempts could not be indexed", slog.Int("attempts", len(entries)), slog.Any("error", err))
		return false
	}
	for _, a := range entered {
		a.indexed.Store(true)
	}
	return true
}

// renew extends leases, with as few round trips to the store as it lets them
// share.
func (g *Gateway) renew(due []*attempt) {
	var overtaken []*attempt
	for chunk := range slices.Chunk(due, renewedTogether) {
		overtaken = append(overtaken, g.renewTogether(chunk)...)
	}
	g.renewSingly(overtaken)
}

// renewTogether returns the attempts whose record has moved on in another way
// than by a write of this gateway's.
func (g *Gateway) renewTogether(due []*attempt) (overtaken []*attempt) {
	ctx, cancel := context.WithTimeout(g.ctx, storeTime)
	defer cancel()
	now := g.store.Now()
	var locked []*attempt
	var swaps []keystore.Swap
	for _, a := range due {
		// A write that is under way says more than that the attempt goes on.
		if !a.mu.TryLock() {
			continue
		}
		s := a.job.Report(a.goesOn(now))
		if s.Next == nil {
			a.mu.Unlock()
			continue
		}
		s.Next.WriteID = keystore.NewWriteID()
		locked = append(locked, a)
		swaps = append(swaps, keystore.Swap{Expected: a.job.WriteID, Job: s.Next})
	}
	for i, r := range g.store.SwapMany(ctx, swaps) {
		a := locked[i]
		switch {
		case r.Err != nil:
			a.renewFailed(r.Err)
		case r.Swapped:
			a.job = swaps[i].Job
			g.observer.Incident(IncidentRenewed)
		case a.goesOnIn(r.Present):
			// An earlier renewal, whose reply was lost. If that was long ago, the
			// next round renews it again.
			a.job = r.Present
		default:
			overtaken = append(overtaken, a)
		}
		a.mu.Unlock()
	}
	return overtaken
}

// renewSingly renews the leases of attempts whose record is not the one that
// this gateway wrote last.
func (g *Gateway) renewSingly(attempts []*attempt) {
	queue := make(chan *attempt)
	var workers sync.WaitGroup
	for range min(renewals, len(attempts)) {
		workers.Go(func() {
			for a := range queue {
				a.renew()
			}
		})
	}
	for _, a := range attempts {
		queue <- a
	}
	close(queue)
	workers.Wait()
}

func (a *attempt) renew() {
	ctx, cancel := context.WithTimeout(a.g.ctx, storeTime)
	defer cancel()
	settled, err := a.report(ctx, a.goesOn(a.g.store.Now()), 1)
	switch {
	case err != nil:
		a.renewFailed(err)
	case settled.Effect == keystore.EffectRenewed:
		a.g.observer.Incident(IncidentRenewed)
	}
}

// goesOnIn reports whether a record is of the attempt's job, and says that the
// attempt is running.
func (a *attempt) goesOnIn(j *keystore.Job) bool {
	if j == nil || j.ID != a.job.ID {
		return false
	}
	own := j.Attempt(a.token)
	return own != nil && own.State == keystore.AttemptStarting
}

// goesOn is the report of an attempt that is still running.
func (a *attempt) goesOn(now keystore.Time) keystore.Report {
	return keystore.Report{Token: a.token, Outcome: keystore.OutcomeRunning, At: now, Lease: now.Add(a.route.Lease)}
}

// renewFailed puts the next try off: there is a third of the lease left for it.
func (a *attempt) renewFailed(err error) {
	a.renewAgain = time.Now().Add(a.route.Lease / 10)
	if heldBack, ok := a.g.sampled.notRenewed.Lets(); ok {
		a.log().Warn("a lease could not be renewed", slog.Any("error", err), heldBack)
	}
}
