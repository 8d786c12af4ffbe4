package proxy

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// sweepEvery is how often lapsed leases are looked for in the index. With
	// several gateways on one store each does so, at times of its own; who
	// comes second finds nothing left to do.
	sweepEvery = 5 * time.Second
	// scanEvery is how often the whole store is looked through, for jobs whose
	// gateway died before it had entered them into the index. A client's retry
	// finds such a job at once.
	scanEvery = time.Hour
	// sweepPage is how many jobs are looked at in one go.
	sweepPage = 200
	// maxSkew is how far the local clock may be off the store's.
	maxSkew = 5 * time.Second
)

// sweep finds leases that have ended without anybody asking for their jobs.
func (g *Gateway) sweep() {
	scanned, warned := time.Now(), time.Time{}
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(jitter(sweepEvery)):
		}
		if err := g.sweepOnce(); err != nil && !errors.Is(err, keystore.ErrClosed) {
			g.log.Warn("lapsed leases could not be looked for", slog.Any("error", err))
		} else if err := g.endLosers(); err != nil {
			g.log.Debug("it could not be seen whether races are over", slog.Any("error", err))
		}
		if time.Since(scanned) > scanEvery+rand.N(scanEvery/2) {
			scanned = time.Now()
			if err := g.scanOnce(); err != nil && !errors.Is(err, keystore.ErrClosed) {
				g.log.Warn("the store could not be looked through for lapsed leases", slog.Any("error", err))
			}
		}
		if skew := g.skew(); skew.Abs() > maxSkew && time.Since(warned) > scanEvery {
			warned = time.Now()
			g.log.Warn("this machine's clock is off the store's; leases and expiries are judged by the store's, but have both clocks set by NTP",
				slog.Duration("ahead", -skew))
		}
	}
}

// sweepOnce goes through the index of unresolved jobs, and counts them.
func (g *Gateway) sweepOnce() error {
	counted := Census{At: time.Now()}
	err := g.pages(g.store.List, func(j *keystore.Job) error {
		j, err := g.lapse(j)
		if err == nil && j != nil {
			counted.count(j, g.store.Now())
		}
		return err
	})
	if err == nil && g.ctx.Err() == nil {
		g.census.Store(&counted)
	}
	return err
}

// scanOnce goes through all jobs, and enters into the index what belongs there.
func (g *Gateway) scanOnce() error {
	return g.pages(g.store.Scan, func(j *keystore.Job) error {
		if !j.Unresolved() {
			return nil
		}
		if err := g.store.Index(g.storeContext(), keystore.IndexEntryOf(j)); err != nil {
			return err
		}
		_, err := g.lapse(j)
		return err
	})
}

// pages calls a function for each job of a listing.
func (g *Gateway) pages(list func(context.Context, string, int) ([]*keystore.Job, string, error), each func(*keystore.Job) error) error {
	cursor := ""
	for g.ctx.Err() == nil {
		page, next, err := list(g.storeContext(), cursor, sweepPage)
		if err != nil {
			return err
		}
		for _, j := range page {
			if err := each(j); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		cursor = next
	}
	return nil
}

// lapse writes down that leases have ended, and returns the record as it is then.
func (g *Gateway) lapse(present *keystore.Job) (*keystore.Job, error) {
	if present.Lapse(g.store.Now()) == nil {
		return present, nil
	}
	ctx := g.storeContext()
	if err := g.indexLapsed(ctx, present); err != nil {
		return nil, err
	}
	var before, wrote *keystore.Job
	j, err := g.update(ctx, present.Name, present, true, 2, func(found *keystore.Job) (*keystore.Job, bool) {
		before, wrote = found, nil
		if found != nil {
			wrote = found.Lapse(g.store.Now())
		}
		return wrote, false
	})
	if err != nil || wrote == nil {
		return j, err
	}
	g.tellLapsed(before, j)
	return j, nil
}

// indexLapsed is called before a write that will say of leases of the job that they
// have ended, alone or with the start of another attempt. In the index first: a job
// that is unknown and not to be found there would be seen by nobody.
func (g *Gateway) indexLapsed(ctx context.Context, j *keystore.Job) error {
	if j.Lapse(g.store.Now()) == nil {
		return nil
	}
	return g.store.Index(ctx, keystore.IndexEntryOf(j))
}

// tellLapsed tells of the leases that a write of this gateway's was the first to call
// ended.
func (g *Gateway) tellLapsed(before, written *keystore.Job) {
	for i := range written.Attempts {
		a := &written.Attempts[i]
		was := before.Attempt(a.Token)
		if was == nil || was.State != keystore.AttemptStarting || a.State != keystore.AttemptUnknown {
			continue
		}
		g.observer.Incident(IncidentLapsed)
		g.log.Warn("a lease lapsed: it is unknown whether its attempt was executed",
			slog.String("job", written.ID), slog.Int("attempt", a.Number))
		g.observer.Event(Event{Name: EventOutcomeUnknown, Job: written, Attempt: a.Number, Reason: a.Reason})
	}
}

// skew is how far the store's clock is ahead of the local one, where the store
// has a clock of its own.
func (g *Gateway) skew() time.Duration {
	if s, ok := g.store.(interface{ ClockOffset() (time.Duration, bool) }); ok {
		offset, _ := s.ClockOffset()
		return offset
	}
	return 0
}
