package proxy

import (
	"context"
	"log/slog"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// commitsFirst reports whether an answer may be given out only once it has taken
// the result slot, since until then it may yet turn out not to be the one.
func (rt *Route) commitsFirst() bool { return rt.Race > 0 || rt.Contract != nil }

// race says when a request of a racing route starts another attempt, and notices
// when one of somebody else's has won.
type race struct {
	f       *fulfilment
	timer   *time.Timer
	due     <-chan time.Time // when the next attempt is to start; nil: never
	room    *room
	changed <-chan struct{} // the job may have changed
	leave   func()
}

// startRace is called when the first attempt starts. The caller ends it with stop.
func (f *fulfilment) startRace() (r *race, stop func()) {
	r = &race{f: f, leave: func() {}}
	if f.Race == 0 {
		return r, func() {}
	}
	r.timer = time.NewTimer(f.Race)
	r.due = r.timer.C
	return r, func() {
		r.timer.Stop()
		r.leave()
	}
}

// next sets when the attempt after the one that was started is due, or when the start
// is tried again, and looks from now on at what others do about the job.
func (r *race) next(started, again bool) {
	if r.room == nil {
		rm, changed, leave, err := r.f.g.enter(r.f.job, r.f.WaitersPerJob, r.f.Waiters)
		if err == nil { // otherwise the end of the own attempts has to do
			r.room, r.changed, r.leave = rm, changed, leave
		}
	}
	switch {
	case started:
		r.timer.Reset(r.f.Race)
	case again:
		r.timer.Reset(min(r.f.Race, raceAgain))
	default:
		r.due = nil
	}
}

// raceAgain is when a start is tried again at the latest that the store did not take.
const raceAgain = time.Second

// look ends the own attempts if another one has won: by its answer, or because
// somebody has decided so, which may be one of their own.
func (r *race) look() {
	j, _, changed, err := r.f.g.look(r.room)
	r.changed = changed
	if err == nil && j != nil && !j.CompletedBy.IsZero() {
		r.f.g.cancelLosers(j)
	}
}

// startSibling starts another attempt beside those of this request that are
// running or unknown, if the route races and there is room for one. Again says that
// only the store was in the way, and that nothing was written.
func (f *fulfilment) startSibling() (started, again bool) {
	if f.Race == 0 || f.g.stopping() || time.Since(f.began) >= f.Timeout {
		return false, false
	}
	last := f.job.Attempt(f.tokens[len(f.tokens)-1])
	provider := f.choose(f.job, last.Provider)
	if provider == "" {
		return false, false
	}
	n := f.newAttempt(keystore.NewToken(), provider)
	sent := time.Now()
	var claim keystore.AbortedClaim
	var before *keystore.Job
	ctx, cancel := context.WithTimeout(f.g.ctx, answerTime)
	defer cancel()
	span := f.beginSpan(SpanClaim)
	written, err := f.g.update(ctx, f.job.Name, f.job, false, 1, func(present *keystore.Job) (*keystore.Job, bool) {
		if present == nil || present.ID != f.job.ID {
			claim = keystore.AbortedClaim{}
			return nil, false
		}
		if present.Attempt(n.Token) != nil { // an earlier send has landed
			return nil, false
		}
		for _, own := range f.tokens {
			if next := present.StartSibling(own, n, f.MaxAttempts); next != nil {
				before = present
				claim = keystore.AbortedClaim{Token: n.Token, Written: next, Expected: present.WriteID}
				return next, false
			}
		}
		claim = keystore.AbortedClaim{}
		return nil, false
	})
	endSpan(span, err)
	switch {
	case err != nil:
		f.g.log.Error("a sibling could not be claimed", slog.String("job", f.job.ID), slog.Any("error", err))
		switch {
		case claim.Written != nil && inDoubt(err):
			f.g.abort(claim, false)
		case !definite(err):
			f.untry(provider)
			return false, true
		}
		return false, false
	case claim.Written == nil:
		return false, false
	case written.Attempt(n.Token) == nil || keystore.Judge(written, keystore.Claim{Token: n.Token}, f.g.store.Now()) != keystore.Own:
		f.g.abort(claim, false)
		return false, false
	}
	f.g.tellLapsed(before, written)
	if heldBack, ok := f.g.sampled.racing.Lets(); ok {
		f.g.log.Info("racing", slog.String("job", f.job.ID), slog.String("provider", provider), slog.Int("attempt", written.Attempt(n.Token).Number), heldBack)
	}
	f.start(claimed{job: written, token: n.Token, sent: sent})
	return true, false
}

// cancelLosers ends the attempts of a completed job that run on this gateway and
// have not won. The write that completed it has discarded them.
func (g *Gateway) cancelLosers(j *keystore.Job) {
	if len(j.Attempts) < 2 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for a := range g.attempts {
		if own := j.Attempt(a.token); a.name == j.Name && own != nil && own.State == keystore.AttemptDiscarded {
			a.cancel(errLostRace)
		}
	}
}

// endLosers ends the attempts that only listen for a late result of jobs that another
// gateway has completed meanwhile: nobody here has been told of that, and each of them
// goes on costing.
func (g *Gateway) endLosers() error {
	listening := make(map[keystore.Name]bool)
	g.mu.Lock()
	for a := range g.attempts {
		if a.route.Race > 0 && a.onlyListens() {
			listening[a.name] = true
		}
	}
	g.mu.Unlock()
	for name := range listening {
		j, err := g.store.Get(g.storeContext(), name)
		if err != nil {
			return err
		}
		if j != nil && !j.CompletedBy.IsZero() {
			g.cancelLosers(j)
		}
	}
	return nil
}

// siblingProvider is the provider of the attempt that a fresh request may start
// beside those of a job that is unknown; empty if the route does not race, or
// has no provider left for it.
func (rt *Route) siblingProvider(j *keystore.Job) string {
	if rt.Race == 0 || j == nil || j.State(rt.gateway.store.Now()) != keystore.JobUnknown {
		return ""
	}
	busy := j.Busy()
	if len(busy) == 0 {
		return ""
	}
	return rt.otherProvider(j, busy[len(busy)-1], busy)
}
