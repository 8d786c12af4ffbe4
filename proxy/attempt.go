package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// attempt runs one attempt of a job, in a goroutine and a context of its own:
// whoever asked for it may leave.
type attempt struct {
	g     *Gateway
	route *Route
	log   *slog.Logger

	name     keystore.Name
	token    keystore.Token
	provider string
	sent     time.Time // when its claim was first sent
	began    time.Time

	body    *requestBody
	capture *capture
	trace   *trace

	ctx    context.Context
	cancel context.CancelCauseFunc

	deadline    time.Time
	stopTimeout func()         // stops the timer that gives up for the client's sake
	end         *time.Timer    // ends the attempt
	timers      sync.WaitGroup // timers that may fire, or are at it
	done        chan struct{}

	concluding atomic.Bool // the handler has returned
	indexed    atomic.Bool // the job is in the index of unresolved ones
	lost       atomic.Bool // the store has lost the attempt's claim for good
	renewAgain time.Time   // after a failure, when to renew the lease; only the renewer's

	// phase guards the choice between giving up on an answer and passing it on.
	phase   sync.Mutex
	gaveUp  bool           // the client has been told that the outcome is unknown
	passing *io.PipeWriter // where an answer that is too large goes

	replied sync.Once
	reply   chan reply // what the request that started the attempt is told

	// mu guards job, and keeps the attempt's writes one after the other.
	mu  sync.Mutex
	job *keystore.Job // as the attempt wrote or saw it last
}

// reply is what the request that started an attempt is told of it.
type reply struct {
	job *keystore.Job
	// answer is the upstream's; recorded says whether it could be kept in time.
	answer   *keystore.Response
	recorded bool
	// rest is where the answer's body goes on after what answer has of it.
	rest *io.PipeReader
	// trailer gives the answer's trailer once rest has ended.
	trailer func() http.Header
	// err is the error of an attempt that certainly had no effect.
	err error
	// refusal is the gateway's own answer.
	refusal *Refusal
	// superseded says that the attempt's answer came too late, so that the
	// record decides what to answer.
	superseded bool
}

// Causes of an attempt's end by our own hand.
var (
	errTimedOut     = endedError("no answer came within the timeout")
	errLingerOver   = endedError("no answer came within timeout and linger")
	errNoConnection = endedError("no connection was obtained within the timeout")
	errStopped      = endedError("gateway stopped")
	errStreamIdle   = endedError("the answer broke off: its upstream fell silent")
	errCut          = endedError("the answer was cut")
	errTooLate      = endedError("the lease was half over before anything was sent")
	errSentAgain    = endedError("the connection died before an answer came; it was kept from being sent again")
)

// endedError is a net.Error that timed out, so that handlers below answer 504
// and not 502.
type endedError string

func (e endedError) Error() string { return string(e) }
func (endedError) Timeout() bool   { return true }
func (endedError) Temporary() bool { return false }

// start begins the attempt whose claim is the given job's. The deadline is when
// the client is no longer kept waiting.
func (rt *Route) start(r *http.Request, job *keystore.Job, token keystore.Token, sent, deadline time.Time, body *requestBody, provider Provider) *attempt {
	g := rt.gateway
	a := &attempt{
		g: g, route: rt,
		name: job.Name, token: token, sent: sent, began: time.Now(), job: job,
		body:     body,
		capture:  newCapture(r.Method, rt.MaxResponseBody),
		trace:    new(trace),
		deadline: deadline,
		done:     make(chan struct{}),
		reply:    make(chan reply, 1),
	}
	number := job.Attempt(token).Number
	a.provider = job.Attempt(token).Provider
	a.log = g.log.With(slog.String("job", job.ID), slog.Int("attempt", number))
	a.ctx, a.cancel = context.WithCancelCause(context.WithoutCancel(r.Context()))
	a.trace.tooLate = a.tooLate
	a.trace.abandon = a.cancel
	a.trace.bodyless = body.size == 0
	a.capture.overflow = a.passOn
	a.capture.pass = a.pass

	body.retain()
	release := g.retain()
	a.startTimers()
	g.mu.Lock()
	g.attempts[a] = struct{}{}
	stopping := g.stopping()
	g.mu.Unlock()

	req := a.request(r, job, number)
	go func() {
		defer release()
		defer a.leave()
		switch {
		case stopping:
			body.release()
			a.neverDispatched(errStopped)
		case a.tooLate(), time.Now().After(deadline):
			body.release()
			a.neverDispatched(errTooLate)
		default:
			seen := a.run(req, provider)
			body.release() // recording the end can take as long as an outage
			a.conclude(seen)
		}
	}()
	return a
}

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

// leave takes the attempt off the gateway's list.
func (a *attempt) leave() {
	a.stopTimeout()
	if a.end.Stop() {
		a.timers.Done()
	}
	a.cancel(nil)
	a.g.mu.Lock()
	delete(a.g.attempts, a)
	a.g.mu.Unlock()
	close(a.done)
	a.timers.Wait()
}

// tooLate reports whether more than half the lease has passed since the claim
// was first sent. Both clocks are asked: the monotonic one stands still while a
// machine is suspended, and the other one can be set.
func (a *attempt) tooLate() bool {
	now := time.Now()
	passed := max(now.Sub(a.sent), now.Round(0).Sub(a.sent.Round(0)))
	return passed > a.route.Lease/2
}

// request is the request as this attempt sends it.
func (a *attempt) request(r *http.Request, job *keystore.Job, number int) *http.Request {
	req := r.Clone(a.trace.with(a.ctx))
	removeOwnHeaders(req.Header)
	// The answer is stored for clients that may understand other encodings.
	req.Header.Del("Accept-Encoding")
	req.Header[a.route.KeyHeader] = []string{job.KeySent}
	req.Header.Set(HeaderJob, job.ID)
	req.Header.Set(HeaderAttempt, attemptHeader(number, a.token))
	req.Body = a.body.open()
	req.ContentLength = a.body.size
	req.TransferEncoding = nil
	req.GetBody = nil
	req.Trailer = nil
	if strings.EqualFold(req.Header.Get("Upgrade"), "h2c") { // an offer to this hop only
		req.Header.Del("Upgrade")
		req.Header.Del("Http2-Settings")
	}
	return req
}

// attemptHeader tells an upstream which attempt this is, and lets a gateway
// recognise the job that its caller holds without being told the token.
func attemptHeader(number int, token keystore.Token) string {
	sum := sha256.Sum256(token[:])
	return strconv.Itoa(number) + `;token="` + hex.EncodeToString(sum[:8]) + `"`
}

// run calls the provider and returns what was seen. It recovers from panics:
// unrecovered in this goroutine they would end the process.
func (a *attempt) run(req *http.Request, provider Provider) (seen observation) {
	returned := false
	defer func() {
		a.concluding.Store(true)
		seen.trace = a.trace
		seen.ended = context.Cause(a.ctx)
		if p := recover(); p != nil {
			seen.panicked = p
			if !isAbort(p) {
				a.log.Error("attempt panicked", slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
			}
		}
		seen.answer, seen.complete = a.capture.finish(returned && seen.err == nil)
		if seen.answer != nil {
			seen.answer.Answered = a.g.store.Now()
		}
		req.Body.Close()
	}()
	seen.err = provider.ServeHTTP(a.capture, req)
	if seen.err != nil {
		seen.failure = provider.Inspect(seen.err)
	}
	returned = true
	return seen
}

// answerTime bounds how long an answer that has come from the upstream is held
// back while the store can't record it.
const answerTime = time.Second

// conclude writes down what an attempt's end proves, and tells the client.
func (a *attempt) conclude(seen observation) {
	v := classify(seen, a.route.Outcomes)
	report := keystore.Report{
		Token: a.token, Outcome: v.outcome, Reason: v.reason,
		Evidence: a.trace.evidence(), At: a.g.store.Now(),
	}
	report.Evidence.Status = v.status
	if seen.answer != nil {
		report.Evidence.Status = seen.answer.Status
		report.Evidence.Size = seen.answer.Size
		report.Evidence.Sum = a.capture.digest()
	}
	if v.outcome == keystore.OutcomeFinal {
		report.Response = storable(seen.answer)
	}
	if report.Evidence.Resent() {
		a.g.observer.Incident(IncidentResent)
		a.log.Warn("something below the gateway sent the request again", slog.Int("connections", report.Evidence.Connected))
	}
	a.g.observer.Attempt(a.provider, outcomeWord(v.outcome), time.Since(a.began))

	unrecorded := time.AfterFunc(answerTime, func() {
		a.log.Error("the store does not record an attempt's end; going on trying", slog.String("outcome", outcomeWord(v.outcome)))
		a.g.observer.Incident(IncidentUnrecorded)
		a.tell(seen, v, keystore.Settlement{}, false)
		a.endPassing(v.cut())
	})
	settled, err := a.insist(report)
	unrecorded.Stop()
	if err != nil {
		a.log.Error("an attempt's end could not be recorded", slog.String("outcome", outcomeWord(v.outcome)), slog.Any("error", err))
	}
	a.logEnd(report, settled)
	a.tell(seen, v, settled, err == nil && settled.Effect != keystore.EffectLost)
	a.endPassing(v.cut())
}

// cut is the error that a client sees to whom the answer was passed on.
func (v verdict) cut() error {
	if v.outcome == keystore.OutcomeUnknown {
		return errCut
	}
	return nil
}

// insist reports until the store has taken it, or there is no sense in it any
// more. After a first failure it takes its turn with the other writes that have
// yet to become definite.
func (a *attempt) insist(report keystore.Report) (keystore.Settlement, error) {
	pause := backoff{}
	giveUp := a.began.Add(a.route.Retention)
	if report.Outcome == keystore.OutcomeUnknown {
		giveUp = a.began.Add(a.route.Lease) // the end of the lease says the same
	}
	for first := true; ; first = false {
		if !first {
			a.g.slots <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(a.g.ctx, storeTime)
		settled, err := a.report(ctx, report, 1)
		cancel()
		if !first {
			<-a.g.slots
		}
		if err == nil || definite(err) || time.Now().After(giveUp) || !pause.wait(a.g.ctx) {
			return settled, err
		}
	}
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
	job, err := a.g.update(ctx, a.name, a.job, true, tries, func(present *keystore.Job) (*keystore.Job, bool) {
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
		a.log.Error("the store has lost a claim that it had acknowledged", slog.Bool("restored", settled.Recovers))
	}
	return settled, nil
}

// logEnd says once how an attempt ended.
func (a *attempt) logEnd(report keystore.Report, settled keystore.Settlement) {
	attrs := []any{
		slog.String("outcome", outcomeWord(report.Outcome)),
		slog.String("effect", settled.Effect.String()),
		slog.String("reason", report.Reason),
		slog.Int("status", report.Evidence.Status),
		slog.Duration("duration", time.Since(a.began)),
	}
	late := a.lingers()
	switch {
	case settled.Contradicts:
		a.g.observer.Incident(IncidentContradicted)
		a.log.Error("an attempt's end contradicts how it was resolved", attrs...)
	case settled.Effect == keystore.EffectDiscarded, settled.Effect == keystore.EffectEvidence:
		a.g.observer.Incident(IncidentDiscarded)
		a.log.Warn("an attempt came too late and was discarded", attrs...)
	case late && settled.Effect == keystore.EffectWon:
		a.g.observer.Incident(IncidentLateResult)
		a.log.Info("a late result took the result slot", attrs...)
	case report.Outcome == keystore.OutcomeUnknown:
		a.log.Warn("it is unknown whether an attempt was executed", attrs...)
	case report.Outcome == keystore.OutcomeFailed:
		a.log.Info("an attempt certainly had no effect", attrs...)
	default:
		a.log.Debug("attempt ended", attrs...)
	}
}

// tell replies to the request that started the attempt.
func (a *attempt) tell(seen observation, v verdict, settled keystore.Settlement, recorded bool) {
	r := reply{job: a.snapshot(), recorded: recorded}
	won := settled.Effect == keystore.EffectWon || settled.Effect == keystore.EffectAlreadyWon
	completed := r.job != nil && !r.job.CompletedBy.IsZero()
	switch {
	case recorded && !won && (completed || v.outcome == keystore.OutcomeFinal):
		r.superseded = true
	case v.outcome == keystore.OutcomeUnknown:
		r.refusal = refuseUnknown()
	case v.outcome == keystore.OutcomeFailed && errors.Is(seen.ended, errTooLate):
		r.refusal = refuseStore(errTooLate)
	case v.outcome == keystore.OutcomeFailed && seen.answer == nil && seen.err == nil:
		r.refusal = refuseNotExecuted(r.job)
	case v.outcome == keystore.OutcomeFailed && seen.answer == nil:
		r.err = seen.err
	default:
		r.answer = seen.answer
	}
	a.replyWith(r)
}

// replyWith replies, and reports whether it was the first to do so.
func (a *attempt) replyWith(r reply) (first bool) {
	a.replied.Do(func() {
		first = true
		a.reply <- r
	})
	return first
}

// snapshot is the job as the attempt knows it, without waiting for a write that
// is under way.
func (a *attempt) snapshot() *keystore.Job {
	if a.mu.TryLock() {
		defer a.mu.Unlock()
		return a.job
	}
	return nil
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
		a.log.Error("an attempt that timed out could not be recorded as unknown", slog.Any("error", err))
	case settled.Effect != keystore.EffectUnknown && a.concluding.Load():
		return // its end was recorded in the meantime, and is what there is to tell
	}
	if a.replyWith(reply{job: a.snapshot(), refusal: refuseUnknown()}) {
		a.log.Warn("an attempt timed out: it is unknown whether it was executed; listening on for a late result",
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
		a.log.Warn("an attempt was not dispatched: the lease was half over before anything was sent; is this machine overloaded, or was it suspended?")
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
	_, err := a.report(ctx, keystore.Report{
		Token: a.token, Outcome: keystore.OutcomeUnknown, Reason: errStopped.Error(),
		Evidence: a.trace.evidence(), At: a.g.store.Now(),
	}, 0)
	if err != nil {
		a.log.Error("an attempt that was cut could not be recorded as unknown", slog.Any("error", err))
	}
	a.replyWith(reply{job: a.snapshot(), refusal: refuseUnknown()})
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

func outcomeWord(o keystore.Outcome) string {
	switch o {
	case keystore.OutcomeFinal:
		return "final"
	case keystore.OutcomeFailed:
		return "failed"
	case keystore.OutcomeUnknown:
		return "unknown"
	}
	return "running"
}
