package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// answerTime bounds how long an answer that has come from the upstream is held
// back while the store can't record it.
const answerTime = time.Second

// wholeTime is how long the store is tried with the whole of an answer only. After that
// one on which a try was spent in vain is tried without its body, too: a store that takes
// that has no outage, but takes too long for the body, and would never record anything.
// What is refused sooner than slowRefusal is refused for another reason, such as that the
// store is known to be down; and bodies of less than slowBody take no store that long, so
// that an outage, which may end between the two tries, costs none of them.
const (
	wholeTime   = 10 * time.Second
	slowRefusal = 100 * time.Millisecond
	slowBody    = 64 << 10
)

// conclude writes down what an attempt's end proves, and tells the client.
func (a *attempt) conclude(seen observation) {
	v := classify(seen, a.route.Outcomes).under(a.route.Contract, seen.answer).among(seen, a.route.Outcomes)
	jobID := a.lastSeen().ID
	report := keystore.Report{
		Token: a.token, Outcome: v.outcome, Reason: v.reason,
		Evidence: a.trace.evidence(), At: a.g.store.Now(),
	}
	report.Evidence.Status = v.status
	if seen.answer != nil {
		report.Evidence.Status = seen.answer.Status
		report.Evidence.Size = seen.answer.Size
	}
	if v.violation != nil {
		report.Violation = v.violation
		report.Kept = a.route.Keyring.SealResponse(jobID, storable(seen.answer, a.route.KeepHeaders...))
		a.incident(IncidentViolation)
		a.log().Warn("an answer breaks the contract", slog.String("path", v.violation.Path),
			slog.String("expected", v.violation.Expected), slog.String("found", v.violation.Found))
	}
	if v.outcome == keystore.OutcomeFinal {
		report.Response = a.route.Keyring.SealResponse(jobID, storable(seen.answer, a.route.KeepHeaders...))
	}
	if report.Evidence.Resent() {
		a.incident(IncidentResent)
		a.log().Warn("something below the gateway sent the request again", slog.Int("connections", report.Evidence.Connected))
	}
	word := outcomeWord(v.outcome)
	if errors.Is(seen.ended, errLostRace) {
		word = "discarded" // nobody has to look into it
	}
	a.outcome(word)

	a.endSpan(word)
	span := a.beginSpan(SpanCommit)
	seen.recording = time.Now()
	if v.outcome == keystore.OutcomeFailed && a.failOver(seen, v, report) {
		endSpan(span, nil)
		return
	}
	unrecorded := time.AfterFunc(answerTime, func() {
		a.log().Error("the store does not record an attempt's end; going on trying", slog.String("outcome", outcomeWord(v.outcome)))
		a.g.observer.Incident(IncidentUnrecorded)
		a.tell(seen, v, keystore.Settlement{}, false)
	})
	settled, err := a.insist(report)
	unrecorded.Stop()
	endSpan(span, err)
	if err != nil {
		a.log().Error("an attempt's end could not be recorded", slog.String("outcome", outcomeWord(v.outcome)), slog.String("reason", v.reason), slog.Any("error", err))
	}
	if settled.Effect == keystore.EffectWon && a.route.Race > 0 {
		a.g.cancelLosers(a.lastSeen())
	}
	if err == nil || inDoubt(err) { // what is certainly not recorded is not told either
		a.logEnd(report, settled)
	}
	a.tell(seen, v, settled, err == nil && settled.Effect != keystore.EffectLost)
}

// insist reports until the store has taken it, or there is no sense in it any more. If the
// store has no room for an answer, or takes it too slowly for long, that is kept without
// its body. After a first failure it takes its turn with the other writes that have yet to
// become definite.
func (a *attempt) insist(report keystore.Report) (keystore.Settlement, error) {
	pause := backoff{}
	began := time.Now()
	giveUp := a.began.Add(a.route.Retention)
	if report.Outcome == keystore.OutcomeUnknown {
		giveUp = a.began.Add(a.route.Lease) // the end of the lease says the same
	}
	for first := true; ; first = false {
		if !first {
			a.g.slots <- struct{}{}
		}
		tried := time.Now()
		settled, err := a.report(a.g.ends.context(), report, 1)
		full := errors.Is(err, keystore.ErrFull)
		slow := errors.Is(err, keystore.ErrNotApplied) && time.Since(tried) > slowRefusal && tried.Sub(began) > wholeTime
		if full || slow {
			if lean, spared := withoutBodies(report); full && spared > 0 || spared >= slowBody {
				if settled, err = a.report(a.g.ends.context(), lean, 1); err == nil {
					a.logLean(full)
				}
			}
		}
		if !first {
			<-a.g.slots
		}
		if err == nil || definite(err) || time.Now().After(giveUp) || !pause.wait(a.g.ctx) {
			return settled, err
		}
	}
}

// logLean says why an answer is kept without its body.
func (a *attempt) logLean(full bool) {
	if full {
		a.log().Warn("the store is full: an answer is kept without its body, so that repetitions are told that it was executed, and no more")
	} else {
		a.log().Warn("the store takes the body of an answer too slowly: the answer is kept without it, so that repetitions are told that it was executed, and no more")
	}
}

// withoutBodies returns a report without the bodies of answers, and how many bytes that
// spares.
func withoutBodies(report keystore.Report) (lean keystore.Report, spared int) {
	for _, resp := range []**keystore.Response{&report.Response, &report.Kept} {
		if *resp != nil && len((*resp).Body) > 0 {
			spared += len((*resp).Body)
			*resp = (*resp).WithoutBody()
		}
	}
	return report, spared
}

// report writes what there is to say of the attempt.
func (a *attempt) report(ctx context.Context, report keystore.Report, tries int) (settled keystore.Settlement, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if report.Outcome == keystore.OutcomeUnknown {
		// In the index first: a job that is unknown and not to be found there
		// would be seen by nobody.
		if err := a.g.store.Index(ctx, keystore.IndexEntryOf(a.job)); err != nil {
			return settled, err
		}
	}
	// A write that may be there is looked for: to write all again would leave another
	// body behind each time.
	known := !a.g.doubted.has(a.name)
	job, err := a.g.update(ctx, a.name, a.job, known, tries, func(present *keystore.Job) (*keystore.Job, bool) {
		if present != nil && present.Attempt(a.token) != nil {
			settled = present.Report(report)
		} else {
			settled = keystore.Recover(present, a.job, report)
		}
		return settled.Next, settled.Recreates
	})
	if err != nil {
		return settled, err
	}
	if job != nil && job.Attempt(a.token) != nil {
		a.job = job
	}
	if settled.Recovers || (settled.Effect == keystore.EffectLost && !a.lost.Swap(true)) {
		a.g.observer.Incident(IncidentClaimLost)
		a.g.observer.Event(Event{Name: EventClaimLost, Job: a.job, Attempt: a.number, Reason: "the store had forgotten it"})
		a.log().Error("the store has lost a claim that it had acknowledged", slog.Bool("restored", settled.Recovers))
	}
	return settled, nil
}

// logEnd says once how an attempt ended.
func (a *attempt) logEnd(report keystore.Report, settled keystore.Settlement) {
	attrs := func() []any {
		return []any{
			slog.String("outcome", outcomeWord(report.Outcome)),
			slog.String("effect", settled.Effect.String()),
			slog.String("reason", report.Reason),
			slog.Int("status", report.Evidence.Status),
			slog.Duration("duration", time.Since(a.began)),
		}
	}
	late := a.lingers() || settled.Before == keystore.AttemptUnknown
	switch {
	case settled.Contradicts:
		a.incident(IncidentContradicted)
		a.tellEvent(EventContradicted, report.Reason)
		a.log().Error("an attempt's end contradicts how it was resolved", attrs()...)
	case settled.Effect == keystore.EffectDiscarded, settled.Effect == keystore.EffectEvidence:
		a.incident(IncidentDiscarded)
		a.log().Warn("an attempt came too late and was discarded", attrs()...)
	case late && settled.Effect == keystore.EffectWon:
		a.incident(IncidentLateResult)
		a.tellEvent(EventLateResult, report.Reason)
		a.log().Info("a late result took the result slot", attrs()...)
	case report.Outcome == keystore.OutcomeUnknown:
		if settled.Before == keystore.AttemptStarting {
			a.tellEvent(EventOutcomeUnknown, report.Reason)
		}
		a.log().Warn("it is unknown whether an attempt was executed", attrs()...)
	case report.Outcome == keystore.OutcomeFailed:
		if heldBack, ok := a.g.sampled.noEffect.Lets(); ok {
			a.log().Info("an attempt certainly had no effect", append(attrs(), heldBack)...)
		}
	case a.g.log.Enabled(a.g.ctx, slog.LevelDebug):
		a.log().Debug("attempt ended", attrs()...)
	}
}

// tellEvent tells of an event of this attempt.
func (a *attempt) tellEvent(name EventName, reason string) {
	a.mu.Lock()
	job := a.job
	a.mu.Unlock()
	own := job.Attempt(a.token)
	a.g.observer.Event(Event{Name: name, Job: job, Attempt: own.Number, Reason: reason})
}

// tell replies to the request that started the attempt.
func (a *attempt) tell(seen observation, v verdict, settled keystore.Settlement, recorded bool) {
	r := reply{job: a.snapshot(), recorded: recorded, outcome: v.outcome, stored: time.Since(seen.recording)}
	won := settled.Effect == keystore.EffectWon || settled.Effect == keystore.EffectAlreadyWon
	completed := r.job != nil && !r.job.CompletedBy.IsZero()
	switch {
	case recorded && !won && (completed || v.outcome == keystore.OutcomeFinal):
		r.superseded = true
	case v.outcome == keystore.OutcomeUnknown,
		v.outcome == keystore.OutcomeFinal && !recorded && a.route.commitsFirst():
		r.refusal = a.route.refuseUnknown()
	case v.outcome == keystore.OutcomeFailed && errors.Is(seen.ended, errTooLate):
		r.refusal = refuseStore(errTooLate)
	case v.outcome == keystore.OutcomeFailed && (v.violation != nil || seen.answer == nil && seen.err == nil):
		r.refusal = refuseNotExecuted(r.job)
	case v.outcome == keystore.OutcomeFailed && seen.answer == nil:
		r.err, r.errHeader = seen.err, seen.header
	default:
		r.answer = seen.answer
	}
	a.replyWith(r)
	if r.answer != nil {
		a.endPassing(io.EOF)
	} else {
		// What was passed on is not the job's answer, or not the whole of it.
		a.endPassing(errCut)
	}
}
