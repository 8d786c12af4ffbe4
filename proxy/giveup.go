package proxy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// startTimers sets when the client is no longer kept waiting, and when the
// attempt ends.
func (a *attempt) startTimers() {
	a.timers.Add(2)
	timeout := time.AfterFunc(time.Until(a.deadline), func() {
		defer a.timers.Done()
		a.timedOut()
	})
	a.stopTimeout = func() {
		if timeout.Stop() {
			a.timers.Done()
		}
	}
	a.end = time.AfterFunc(time.Until(a.deadline)+a.route.Linger, func() {
		defer a.timers.Done()
		a.ended()
	})
}

// ended ends the attempt, since its upstream has been silent for too long.
func (a *attempt) ended() {
	a.phase.Lock()
	passing := a.passing != nil
	a.phase.Unlock()
	if !passing {
		a.cancel(errLingerOver)
		return
	}
	a.cancel(errStreamIdle)
	select {
	case <-a.done:
	case <-time.After(answerTime): // its handler does not care
		a.giveUp(errStreamIdle)
		a.endPassing(errCut)
	}
}

// timedOut ends the client's wait. The attempt goes on listening.
func (a *attempt) timedOut() {
	if a.concluding.Load() {
		return
	}
	if a.trace.soughtInVain() {
		// Nothing was sent yet. Ended now, nothing will be; that is certain only
		// once the handler has returned, which a well-behaved one does at once.
		a.cancel(errNoConnection)
		select {
		case <-a.done:
			return
		case <-time.After(answerTime):
		}
	}
	a.giveUp(errTimedOut)
}

// giveUp writes down that the outcome is unknown, and says so. The attempt goes
// on listening.
func (a *attempt) giveUp(why error) {
	a.phase.Lock()
	if a.passing != nil && !errors.Is(why, errStreamIdle) {
		a.phase.Unlock()
		return // the answer has begun to come after all
	}
	a.gaveUp = true
	a.phase.Unlock()
	ctx, cancel := context.WithTimeout(a.g.ctx, answerTime)
	defer cancel()
	settled, err := a.report(ctx, keystore.Report{
		Token: a.token, Outcome: keystore.OutcomeUnknown, Listening: true, Reason: why.Error(),
		Evidence: a.trace.evidence(), At: a.g.store.Now(),
	}, 0)
	switch {
	case err != nil:
		// The end of the lease will say the same.
		a.log().Error("an attempt that timed out could not be recorded as unknown", slog.Any("error", err))
	case settled.Effect != keystore.EffectUnknown && a.concluding.Load():
		return // its end was recorded in the meantime, and is what there is to tell
	}
	if settled.Effect == keystore.EffectUnknown && (err == nil || inDoubt(err)) {
		a.tellEvent(EventOutcomeUnknown, why.Error())
	}
	if a.replyWith(reply{job: a.snapshot(), refusal: a.route.refuseUnknown()}) {
		a.log().Warn("an attempt timed out: it is unknown whether it was executed; listening on for a late result",
			slog.Duration("timeout", a.route.Timeout), slog.Duration("linger", a.route.Linger))
	}
}

// lingers reports whether the attempt was given up on.
func (a *attempt) lingers() bool {
	a.phase.Lock()
	defer a.phase.Unlock()
	return a.gaveUp
}

// onlyListens reports whether the attempt is unknown already and nothing but a
// late result can change that.
func (a *attempt) onlyListens() bool { return a.lingers() && !a.concluding.Load() }

// neverDispatched records that the attempt was given up before anything was sent.
func (a *attempt) neverDispatched(why error) {
	a.concluding.Store(true)
	if errors.Is(why, errTooLate) {
		a.log().Warn("an attempt was not dispatched: the lease was half over before anything was sent; is this machine overloaded, or was it suspended?")
	}
	a.mu.Lock()
	job := a.job
	a.mu.Unlock()
	a.g.abort(keystore.AbortedClaim{Token: a.token, Written: job, Reason: why.Error()}, true)
	a.replyWith(reply{job: job, refusal: refuseStore(why)})
}

// cut ends the attempt since the process is ending, and writes it down.
func (a *attempt) cut(ctx context.Context) {
	a.cancel(errStopped)
	select {
	case <-a.done:
		return
	case <-time.After(answerTime):
	case <-ctx.Done():
	}
	if a.concluding.Load() {
		select { // its end is known; only the store does not take it yet
		case <-a.done:
		case <-ctx.Done():
		}
		return
	}
	settled, err := a.report(ctx, keystore.Report{
		Token: a.token, Outcome: keystore.OutcomeUnknown, Reason: errStopped.Error(),
		Evidence: a.trace.evidence(), At: a.g.store.Now(),
	}, 0)
	if err != nil {
		a.log().Error("an attempt that was cut could not be recorded as unknown", slog.Any("error", err))
	} else if settled.Effect == keystore.EffectUnknown && settled.Before == keystore.AttemptStarting {
		a.tellEvent(EventOutcomeUnknown, errStopped.Error())
	}
	a.replyWith(reply{job: a.snapshot(), refusal: a.route.refuseUnknown()})
	a.endPassing(errCut)
}

// abort makes an attempt that was never dispatched be recorded as such: at once
// if that can be done in time, and in the background otherwise.
func (g *Gateway) abort(c keystore.AbortedClaim, now bool) {
	g.observer.Incident(IncidentAborted)
	told := false
	decide := func(present *keystore.Job) (*keystore.Job, bool) {
		if !told && c.Contradicts(present) {
			told = true
			g.observer.Incident(IncidentContradicted)
			g.log.Error("an attempt that was never dispatched was resolved as succeeded", slog.String("job", present.ID))
		}
		return c.Next(present, g.store.Now())
	}
	if now {
		ctx, cancel := context.WithTimeout(g.ctx, answerTime)
		_, err := g.update(ctx, c.Written.Name, c.Written, true, 1, decide)
		cancel()
		if err == nil {
			return
		}
	}
	g.background(func(ctx context.Context) {
		if _, err := g.insist(ctx, c.Written.Name, decide); err != nil {
			g.log.Error("a claim that was never dispatched could not be recorded as such",
				slog.String("job", c.Written.ID), slog.Any("error", err))
		}
	})
}
