package proxy

import (
	"context"
	"log/slog"
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
	// renewals bounds how many leases are renewed at once.
	renewals = 16
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
		var old, due []*attempt
		now := g.store.Now()
		g.mu.Lock()
		for a := range g.attempts {
			if a.lost.Load() || a.lingers() || a.concluding.Load() {
				continue
			}
			if !a.indexed.Load() && time.Since(a.began) > indexAge {
				old = append(old, a)
			}
			if end, known := a.leaseEnd(); known && end.Sub(now) < a.route.Lease/3 && time.Now().After(a.renewAgain) {
				due = append(due, a)
			}
		}
		g.mu.Unlock()
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

func (g *Gateway) renew(due []*attempt) {
	if len(due) == 0 {
		return
	}
	queue := make(chan *attempt)
	var workers sync.WaitGroup
	for range min(renewals, len(due)) {
		workers.Go(func() {
			for a := range queue {
				a.renew()
			}
		})
	}
	for _, a := range due {
		queue <- a
	}
	close(queue)
	workers.Wait()
}

// renew extends the attempt's lease.
func (a *attempt) renew() {
	ctx, cancel := context.WithTimeout(a.g.ctx, storeTime)
	defer cancel()
	now := a.g.store.Now()
	settled, err := a.report(ctx, keystore.Report{
		Token: a.token, Outcome: keystore.OutcomeRunning, At: now, Lease: now.Add(a.route.Lease),
	}, 1)
	switch {
	case err != nil:
		// There is a third of the lease left to try again in.
		a.renewAgain = time.Now().Add(a.route.Lease / 10)
		a.log.Warn("a lease could not be renewed", slog.Any("error", err))
	case settled.Effect == keystore.EffectRenewed:
		a.g.observer.Incident(IncidentRenewed)
	}
}
