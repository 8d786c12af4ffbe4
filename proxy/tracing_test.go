package proxy

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// tracedFixture is a fixture with a way to make requests that are traced.
type tracedFixture struct {
	*fixture
	tracer   oteltrace.Tracer
	recorder *tracetest.SpanRecorder
}

func newTracedFixture(t *testing.T, c Config) *tracedFixture {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	return &tracedFixture{newFixture(t, c), provider.Tracer("test"), recorder}
}

// traced makes a request within a span of its own, and returns that once it has ended.
func (f *tracedFixture) traced(q request) (result, sdktrace.ReadOnlySpan) {
	ctx, span := f.tracer.Start(f.t.Context(), "server")
	q.ctx = ctx
	if q.header == nil {
		q.header = http.Header{"Traceparent": {traceparent(ctx)}}
	}
	got := f.do(q)
	span.End()
	return got, span.(sdktrace.ReadOnlySpan)
}

// spansOf returns the names of the ended spans of a trace, but for the request's own,
// in the order in which they began, and the spans by name.
func (f *tracedFixture) spansOf(request sdktrace.ReadOnlySpan) (names []string, spans map[string]sdktrace.ReadOnlySpan) {
	spans = make(map[string]sdktrace.ReadOnlySpan)
	for _, s := range f.recorder.Started() {
		if s.SpanContext().TraceID() == request.SpanContext().TraceID() && s.Name() != "server" {
			names = append(names, s.Name())
			spans[s.Name()] = s
			if s.EndTime().IsZero() {
				f.t.Errorf("span %s has not ended", s.Name())
			}
			if s.Parent().SpanID() != request.SpanContext().SpanID() {
				f.t.Errorf("span %s is not within the request's", s.Name())
			}
		}
	}
	return names, spans
}

func attributesOf(s sdktrace.ReadOnlySpan) map[string]any {
	all := make(map[string]any)
	for _, kv := range s.Attributes() {
		all[string(kv.Key)] = kv.Value.AsInterface()
	}
	return all
}

// A replay leads to the trace in which its answer was made.
func TestTracesOfARequestAndItsReplay(t *testing.T) {
	t.Parallel()
	f := newTracedFixture(t, Config{})
	var seen string
	f.serve = func(w http.ResponseWriter, r *http.Request) error {
		seen = r.Header.Get("Traceparent")
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	got, first := f.traced(request{})
	id := got.Header().Get(HeaderJob)
	names, spans := f.spansOf(first)
	if strings.Join(names, " ") != SpanClaim+" "+SpanAttempt+" "+SpanCommit {
		t.Fatalf("got the spans %v", names)
	}
	attempt := spans[SpanAttempt]
	if is := attributesOf(attempt); is[AttributeJob] != id || is[AttributeAttempt] != int64(1) || is[AttributeOutcome] != "final" {
		t.Errorf("the attempt has %v", is)
	}
	if !strings.Contains(seen, attempt.SpanContext().SpanID().String()) {
		t.Errorf("the upstream was told of %s", seen)
	}
	if is := attributesOf(first); is[AttributeVerdict] != VerdictExecuted || is[AttributeJob] != id {
		t.Errorf("the request has %v", is)
	}

	_, second := f.traced(request{})
	names, spans = f.spansOf(second)
	if strings.Join(names, " ") != SpanClaim+" "+SpanReplay {
		t.Fatalf("got the spans %v of a replay", names)
	}
	links := spans[SpanReplay].Links()
	if len(links) != 1 || links[0].SpanContext.TraceID() != first.SpanContext().TraceID() || links[0].SpanContext.SpanID() != first.SpanContext().SpanID() {
		t.Errorf("the replay is linked with %v", links)
	}
	if is := attributesOf(second); is[AttributeVerdict] != VerdictReplayed {
		t.Errorf("the replay has %v", is)
	}
	f.wantExecutions(1)
}

// The claims of attempts that follow one that has failed, or race it, are seen as well.
// Each attempt has a span, of the provider that it was on.
func TestTracesOfFailoverAndRace(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		a      script
		spans  []string
		ends   []string // what the attempts' ends prove
	}{
		"failover": {twoProviders, says(429, "busy"), []string{SpanClaim, SpanAttempt, SpanCommit, SpanClaim, SpanAttempt, SpanCommit}, []string{"failed", "final"}},
		"race":     {racing, hangs, []string{SpanClaim, SpanAttempt, SpanClaim, SpanAttempt, SpanCommit, SpanCommit}, []string{"discarded", "final"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newTracedFixture(t, c.config)
				defer f.gateway.Close()
				f.with(map[string][]script{"a": {c.a}, "b": {says(200, "B")}})
				ctx, span := f.tracer.Start(t.Context(), "server")
				got := f.do(request{ctx: ctx}).wantBody(t, 200, "B", false)
				synctest.Wait() // the loser of the race has ended
				span.End()
				f.wantExecuted(1, 1)
				names, _ := f.spansOf(span.(sdktrace.ReadOnlySpan))
				if !slices.Equal(names, c.spans) {
					t.Errorf("got the spans %v", names)
				}
				n := 0
				for _, s := range f.recorder.Started() {
					if s.Name() != SpanAttempt {
						continue
					}
					is := attributesOf(s)
					if is[AttributeJob] != got.Header().Get(HeaderJob) || is[AttributeAttempt] != int64(n+1) ||
						is[AttributeProvider] != c.config.Providers[n].Name || is[AttributeOutcome] != c.ends[n] {
						t.Errorf("attempt %d has %v", n+1, is)
					}
					n++
				}
			})
		})
	}
}

// Who waits has a span of that.
func TestTracesOfWhoWaits(t *testing.T) {
	t.Parallel()
	f := newTracedFixture(t, Config{Wait: patience})
	entered, release := make(chan struct{}), make(chan struct{})
	f.serve = func(http.ResponseWriter, *http.Request) error {
		close(entered)
		<-release
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.do(request{})
	}()
	<-entered
	go func() {
		for {
			if _, waiters := f.gateway.Busy(); waiters == 1 {
				close(release)
				return
			}
		}
	}()
	_, waiter := f.traced(request{})
	<-done
	if names, spans := f.spansOf(waiter); strings.Join(names, " ") != SpanClaim+" "+SpanWait+" "+SpanReplay || len(spans[SpanReplay].Links()) != 0 {
		t.Errorf("got the spans %v", names)
	}
	f.wantExecutions(1)
}

// Every span and attribute that the page lists is seen, and no other, and none tells a key
// or an owner.
func TestEverySpanAndAttributeIsSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newTracedFixture(t, twoProviders)
		defer f.gateway.Close()
		f.with(map[string][]script{"a": {says(429, "busy")}, "b": {after(time.Second, says(200, "B"))}})
		first := make(chan struct{})
		go func() {
			defer close(first)
			f.traced(confidential)
		}()
		synctest.Wait()
		f.traced(confidential)
		<-first
		spans, attributes := make(map[string]bool), make(map[string]bool)
		for _, s := range f.recorder.Started() {
			if s.Name() != "server" {
				spans[s.Name()] = true
			}
			for name, value := range attributesOf(s) {
				attributes[name] = attributes[name] || fmt.Sprint(value) != ""
				if slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(fmt.Sprint(value), secret) }) {
					t.Errorf("span %s tells %v", s.Name(), value)
				}
			}
		}
		section := pages.Of(t, "..", "docs/observability/README.md").Section(t, "## Traces")
		for first, seen := range map[string]map[string]bool{"span": spans, "attribute": attributes} {
			var listed []string
			for _, row := range section.Table(t, first) {
				for name := range strings.SplitSeq(row[0], ", ") {
					listed = append(listed, strings.Trim(name, "`"))
				}
			}
			if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, slices.Sorted(slices.Values(listed))) {
				t.Errorf("seen are %v, and the page lists %v", got, listed)
			}
			for name, some := range seen {
				if !some {
					t.Errorf("%s never says anything", name)
				}
			}
		}
	})
}

// Where nobody traces, nothing is done for it: no trace is kept, and none sent.
func TestNoTracesWhereNobodyTraces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	var seen http.Header
	f.serve = func(_ http.ResponseWriter, r *http.Request) error {
		seen = r.Header.Clone()
		return nil
	}
	const sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	// Somebody's trace that this process only hands on.
	ctx := traceContext.Extract(t.Context(), propagation.HeaderCarrier{"Traceparent": {sent}})
	got := f.do(request{ctx: ctx, header: http.Header{"Traceparent": {sent}}})
	if seen.Get("Traceparent") != sent {
		t.Errorf("the upstream was told of %q", seen.Get("Traceparent"))
	}
	j, err := f.gateway.Job(t.Context(), got.Header().Get(HeaderJob))
	if err != nil || j.Attempts[0].Trace != "" {
		t.Errorf("kept was %q, %v", j.Attempts[0].Trace, err)
	}
}

// That nobody traces costs no memory.
func TestNoTracesCostNothing(t *testing.T) {
	c := &call{r: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)}
	a := &attempt{asked: t.Context()}
	allocations := testing.AllocsPerRun(100, func() {
		c.traced = isTraced(c.r.Context())
		a.traced = c.traced
		endSpan(c.beginSpan(SpanClaim), nil)
		endSpan(a.beginSpan(SpanCommit), nil)
		c.traceReplay(nil)()
	})
	if allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}
