package proxy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// failOver records that the attempt certainly had no effect, and claims the one
// that follows it in the same write. It reports whether the attempt is settled by
// that; otherwise it is still to be recorded.
func (a *attempt) failOver(seen observation, v verdict, report keystore.Report) (settled bool) {
	if a.lingers() {
		return false // its client was told
	}
	n, ok := a.follow(a)
	if !ok {
		return false
	}
	sent := time.Now()
	written, claim, err := a.claimNext(report, n)
	switch {
	case claim.Written == nil: // nothing may follow, or the store has lost the attempt
		return false
	case errors.Is(err, keystore.ErrNotApplied), err != nil && definite(err):
		return false
	case err != nil:
		// The write may have landed. What it says of this attempt is true, and
		// comes to be recorded together with the end of the other one.
		a.log().Error("a failover could not be claimed", slog.Any("error", err))
		a.g.abort(claim, false)
		a.tell(seen, v, keystore.Settlement{}, false)
		return true
	}
	a.logEnd(report, keystore.Settlement{Effect: keystore.EffectFailed, Before: keystore.AttemptStarting})
	now := a.g.store.Now()
	if written.Attempt(n.Token) == nil || keystore.Judge(written, keystore.Claim{Token: n.Token}, now) != keystore.Own {
		a.g.abort(claim, false)
		a.tell(seen, v, keystore.Settlement{Effect: keystore.EffectFailed}, true)
		return true
	}
	if heldBack, ok := a.g.sampled.failingOver.Lets(); ok {
		a.log().Info("failing over", slog.String("to", n.Provider), slog.Int("next", written.Attempt(n.Token).Number), heldBack)
	}
	r := reply{
		job: written, answer: seen.answer, recorded: true, outcome: v.outcome,
		next:   &claimed{job: written, token: n.Token, sent: sent},
		stored: time.Since(seen.recording),
	}
	switch {
	case v.violation != nil:
		r.answer = nil
	case r.answer == nil:
		r.err, r.errHeader = seen.err, seen.header
	}
	if !a.replyWith(r) { // the client was told something else meanwhile
		a.g.abort(claim, false)
	}
	return true
}

// claimNext writes that the attempt has failed and the next one starts, unless
// the record as it is lets nothing follow. The claim is of the write that was
// last sent; with an error nobody can say whether it landed.
func (a *attempt) claimNext(report keystore.Report, n keystore.NewAttempt) (written *keystore.Job, claim keystore.AbortedClaim, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx, cancel := context.WithTimeout(a.g.ctx, answerTime)
	defer cancel()
	span := a.beginSpan(SpanClaim)
	defer func() { endSpan(span, err) }()
	var before *keystore.Job
	written, err = a.g.update(ctx, a.name, a.job, true, 1, func(present *keystore.Job) (*keystore.Job, bool) {
		switch {
		case present == nil || present.Attempt(a.token) == nil:
			claim = keystore.AbortedClaim{}
			return nil, false
		case present.Attempt(n.Token) != nil: // an earlier send has landed
			return nil, false
		}
		settled := present.FailOver(report, n, a.route.siblings())
		if !settled.Starts {
			claim = keystore.AbortedClaim{}
			return nil, false
		}
		before = present
		claim = keystore.AbortedClaim{Token: n.Token, Written: settled.Next, Expected: present.WriteID}
		return settled.Next, false
	})
	if err == nil && written != nil && written.Attempt(a.token) != nil {
		a.job = written
	}
	if err == nil && claim.Written != nil {
		a.g.tellLapsed(before, written)
	}
	return written, claim, err
}
