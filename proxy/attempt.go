package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// attempt runs one attempt of a job, in a goroutine and a context of its own:
// whoever asked for it may leave.
type attempt struct {
	g        *Gateway
	route    *Route
	name     keystore.Name
	id       string // the job's
	token    keystore.Token
	number   int
	provider string
	sent     time.Time // when its claim was first sent
	began    time.Time

	body    *requestBody
	capture *capture
	trace   *trace

	ctx    context.Context
	cancel context.CancelCauseFunc
	traced bool            // whether somebody traces the request
	span   oteltrace.Span  // of the handlers, if so
	asked  context.Context // of the request, which does not end with it

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
	gaveUp  bool  // the client has been told that the outcome is unknown
	passing *feed // takes the answer to the client while it is captured

	replied sync.Once
	tellTo  func(reply) bool // takes what the request that started the attempt is told
	hints   chan<- hint      // what it may tell its client before that
	follow  func(*attempt) (next keystore.NewAttempt, ok bool)

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
	// body is where the answer's body comes from if it is passed on while it is
	// captured; answer then has only the head.
	body *feed
	// trailer gives the answer's trailer once body has ended.
	trailer func() http.Header
	// err is the error of an attempt that certainly had no effect, and errHeader
	// what the answer to it is to have, such as Allow or a challenge.
	err       error
	errHeader http.Header
	// refusal is the gateway's own answer.
	refusal *Refusal
	// superseded says that the attempt's answer came too late, so that the
	// record decides what to answer.
	superseded bool
	// outcome is what the attempt's end proves.
	outcome keystore.Outcome
	// attempt is the one that tells, and stored how long its end took to record.
	attempt *attempt
	stored  time.Duration
	// next is the attempt that was claimed in the write that recorded this one's
	// failure. Whoever is told has to start it.
	next *claimed
}

// final reports whether the client is to get this, whatever other attempts do.
func (r *reply) final() bool {
	return r.body != nil || r.outcome == keystore.OutcomeFinal && r.refusal == nil
}

// unknown reports whether it is unknown whether the attempt was executed.
func (r *reply) unknown() bool { return r.refusal != nil && r.refusal.Code == CodeOutcomeUnknown }

// Causes of an attempt's end by our own hand.
var (
	errTimedOut     = endedError("no answer came within the timeout")
	errLingerOver   = endedError("no answer came within timeout and linger")
	errNoConnection = endedError("no connection was obtained within the timeout")
	errStopped      = endedError("gateway stopped")
	errStreamIdle   = endedError("the answer broke off: its upstream fell silent")
	errCut          = endedError("the answer was cut")
	errTooLate      = endedError("the lease was half over before anything was sent")
	errLostRace     = endedError(keystore.ReasonLostRace)
	errSentAgain    = endedError("the connection died before an answer came; it was kept from being sent again")
)

// endedError is a net.Error that timed out, so that handlers below answer 504
// and not 502.
type endedError string

func (e endedError) Error() string { return string(e) }
func (endedError) Timeout() bool   { return true }
func (endedError) Temporary() bool { return false }

// dispatch is what an attempt is started with.
type dispatch struct {
	claimed
	request  *http.Request
	traced   bool      // whether somebody traces it
	keySent  string    // the key, in the spelling in which it is sent
	deadline time.Time // when the client is no longer kept waiting
	body     *requestBody
	provider Provider
	// tell takes what comes of the attempt, once, and reports whether anybody
	// will hear it; hints take what may be told before.
	tell  func(reply) bool
	hints chan<- hint
	// follow chooses what is to follow the attempt if it certainly had no effect.
	follow func(*attempt) (next keystore.NewAttempt, ok bool)
}

// dispatch begins an attempt whose claim was written.
func (rt *Route) dispatch(d dispatch) *attempt {
	g := rt.gateway
	own := d.job.Attempt(d.token)
	a := &attempt{
		g: g, route: rt,
		name: d.job.Name, id: d.job.ID, token: d.token, sent: d.sent, began: time.Now(), job: d.job,
		number: own.Number, provider: own.Provider,
		body:     d.body,
		capture:  newCapture(d.request.Method, rt.MaxResponseBody),
		trace:    new(trace),
		deadline: d.deadline,
		done:     make(chan struct{}),
		tellTo:   d.tell,
		hints:    d.hints,
		follow:   d.follow,
	}
	a.asked = context.WithoutCancel(d.request.Context())
	a.ctx, a.cancel = context.WithCancelCause(a.asked)
	if a.traced = d.traced; a.traced {
		a.ctx, a.span = beginSpan(a.ctx, SpanAttempt)
	}
	if a.span != nil {
		a.span.SetAttributes(attribute.String(AttributeJob, d.job.ID), attribute.Int(AttributeAttempt, own.Number), attribute.String(AttributeProvider, own.Provider))
	}
	a.trace.trips.progress = progressOf(d.provider)
	a.trace.tooLate = a.tooLate
	a.trace.abandon = a.cancel
	a.capture.passOn = a.passOn
	a.capture.inform = a.inform

	release := g.retain()
	a.startTimers()
	g.mu.Lock()
	g.attempts[a] = struct{}{}
	stopping := g.stopping()
	g.mu.Unlock()

	req := a.request(d.request, d.job, own.Number, d.keySent)
	body := req.Body // a handler may put another one in its place, or none
	g.workers.run(func() {
		defer release()
		defer a.leave()
		switch {
		case stopping:
			body.Close()
			a.neverDispatched(errStopped)
		case a.tooLate(), time.Now().After(d.deadline):
			body.Close()
			a.neverDispatched(errTooLate)
		default:
			var seen observation
			defer func() { // also where a handler ends its goroutine
				body.Close() // recording the end can take as long as an outage
				a.conclude(seen)
			}()
			a.run(req, d.provider, &seen)
		}
	})
	return a
}

// log is for what there is to say of the attempt. Of most there is nothing.
func (a *attempt) log() *slog.Logger {
	log := a.g.log.With(slog.String("job", a.id), slog.Int("attempt", a.number))
	if a.provider != "" {
		log = log.With(slog.String("provider", a.provider))
	}
	return log
}

// leave takes the attempt off the gateway's list.
func (a *attempt) leave() {
	a.stopTimeout()
	if a.end.Stop() {
		a.timers.Done()
	}
	a.cancel(nil)
	endSpan(a.span, nil) // of one that was never dispatched
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
func (a *attempt) request(r *http.Request, job *keystore.Job, number int, keySent string) *http.Request {
	a.trace.bodyless, a.trace.inquiring = a.body.size == 0, r.Header[headerInquires] != nil
	req := r.Clone(a.trace.with(a.ctx))
	removeOwnHeaders(req.Header)
	if a.traced {
		handOn(a.ctx, req.Header)
	}
	// The answer is stored for clients that may understand other encodings.
	req.Header.Del("Accept-Encoding")
	req.Header[a.route.KeyHeader] = []string{keySent}
	if header := a.route.sendKey(a.provider); header != "" {
		req.Header[header] = []string{SentKey(job.ID)}
	}
	req.Header.Set(HeaderJob, job.ID)
	req.Header.Set(HeaderAttempt, attemptHeader(keystore.Caller{Number: number, Mark: a.token.Mark()}))
	unlist(req.Header, HeaderJob, HeaderAttempt, a.route.KeyHeader, a.route.sendKey(a.provider))
	req.Body = a.body.open()
	if b, ok := req.Body.(*bodyReader); ok {
		b.read = &a.trace.read
	}
	req.ContentLength = a.body.size
	req.TransferEncoding = nil
	req.GetBody = nil
	removeOwnHeaders(req.Trailer)
	delete(req.Trailer, a.route.KeyHeader) // what comes after the body is judged by nobody
	delete(req.Trailer, a.route.sendKey(a.provider))
	req.Header.Del("Expect")  // the body is there
	req.Header.Del("Upgrade") // no more than an offer of h2c, to this hop only
	req.Header.Del("Http2-Settings")
	return req
}

// run calls the provider and notes what was seen. It recovers from panics:
// unrecovered in this goroutine they would end the process.
func (a *attempt) run(req *http.Request, provider Provider, seen *observation) {
	returned := false
	defer func() {
		a.concluding.Store(true)
		seen.trace = a.trace
		seen.ended = context.Cause(a.ctx)
		p := recover()
		if p == nil && !returned { // by runtime.Goexit
			p = http.ErrAbortHandler
		}
		if p != nil {
			seen.panicked = p
			if !isAbort(p) {
				a.log().Error("attempt panicked", slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
			}
		}
		seen.answer, seen.complete = a.capture.finish(returned && seen.err == nil)
		if seen.answer != nil {
			seen.answer.Answered = a.g.store.Now()
		}
	}()
	seen.err = provider.ServeHTTP(a.capture, req)
	seen.failure = provider.Inspect(seen.err)
	if seen.err != nil {
		seen.header = endToEnd(a.capture.header)
	}
	returned = true
}

// replyWith replies, and reports whether it was the first to do so and somebody
// will hear it.
func (a *attempt) replyWith(r reply) (first bool) {
	r.attempt = a
	a.replied.Do(func() { first = a.tellTo(r) })
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

// lastSeen is the job as the attempt wrote or saw it last.
func (a *attempt) lastSeen() *keystore.Job {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.job
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
