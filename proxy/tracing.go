package proxy

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// tracerName says in traces whose spans these are.
const tracerName = "github.com/caddy-idempotency/caddy-idempotency/proxy"

// The spans of a request that somebody traces.
const (
	SpanClaim   = "idempotency.claim"   // the store's answer to a claim
	SpanWait    = "idempotency.wait"    // the wait for another request's attempt
	SpanAttempt = "idempotency.attempt" // the handlers that carry an attempt out
	SpanCommit  = "idempotency.commit"  // the recording of an attempt's end
	SpanReplay  = "idempotency.replay"  // a stored answer, with a link to the trace in which it was made
)

// The attributes of the spans, and of the request's own.
const (
	AttributeVerdict  = "idempotency.verdict"
	AttributeJob      = "idempotency.job"
	AttributeAttempt  = "idempotency.attempt"
	AttributeProvider = "idempotency.provider"
	AttributeOutcome  = "idempotency.outcome"
)

// beginSpan begins a span within the one in ctx. Where nobody traces the request
// there is none: nil.
func beginSpan(ctx context.Context, name string, options ...oteltrace.SpanStartOption) (context.Context, oteltrace.Span) {
	parent := oteltrace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	return parent.TracerProvider().Tracer(tracerName).Start(ctx, name, options...)
}

// isTraced reports whether somebody traces the request of this context. It is looked
// for through all that a site's handlers have put into a context, and so only once.
func isTraced(ctx context.Context) bool { return oteltrace.SpanFromContext(ctx).IsRecording() }

// beginSpan begins a span within the request's own.
func (c *call) beginSpan(name string) oteltrace.Span {
	if !c.traced {
		return nil
	}
	_, span := beginSpan(c.r.Context(), name)
	return span
}

// beginSpan begins a span beside that of the attempt's handlers.
func (a *attempt) beginSpan(name string) oteltrace.Span {
	if !a.traced {
		return nil
	}
	_, span := beginSpan(a.asked, name)
	return span
}

// endSpan ends a span that beginSpan has begun, if any.
func endSpan(span oteltrace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

var traceContext propagation.TraceContext

// traceparent is the trace context of a request that somebody traces, as W3C writes
// it.
func traceparent(ctx context.Context) string {
	carrier := make(propagation.MapCarrier)
	traceContext.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// handOn tells the upstream of the attempt's span, where it would be told of the
// request's anyway.
func handOn(ctx context.Context, header http.Header) {
	if isTraced(ctx) && header.Get("Traceparent") != "" {
		traceContext.Inject(ctx, propagation.HeaderCarrier(header))
	}
}

// endSpan ends the span of the attempt's handlers.
func (a *attempt) endSpan(outcome string) {
	if a.span != nil {
		a.span.SetAttributes(attribute.String(AttributeOutcome, outcome))
		a.span.End()
	}
}

// newAttempt is that of the route, in the trace of this request.
func (c *call) newAttempt(token keystore.Token, provider string) keystore.NewAttempt {
	n := c.Route.newAttempt(token, provider)
	if c.traced {
		n.Trace = traceparent(c.r.Context())
	}
	return n
}

// traceReplay begins the span of a replay of the job's answer.
func (c *call) traceReplay(j *keystore.Job) (end func()) {
	if !c.traced {
		return func() {}
	}
	var options []oteltrace.SpanStartOption
	made := traceContext.Extract(context.Background(), propagation.MapCarrier{"traceparent": decisiveAttempt(j).Trace})
	if sc := oteltrace.SpanContextFromContext(made); sc.IsValid() {
		options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: sc}))
	}
	_, span := beginSpan(c.r.Context(), SpanReplay, options...)
	span.SetAttributes(attribute.String(AttributeJob, j.ID), attribute.Int(AttributeAttempt, decisiveAttempt(j).Number))
	return func() { span.End() }
}

// describe gives the span of the request what became of it.
func (a *Account) describe(span oteltrace.Span) {
	span.SetAttributes(attribute.String(AttributeVerdict, a.Verdict))
	if a.Job != "" {
		span.SetAttributes(attribute.String(AttributeJob, a.Job), attribute.Int(AttributeAttempt, a.Attempt), attribute.String(AttributeProvider, a.Provider))
	}
}
