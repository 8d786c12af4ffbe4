package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// A proxy puts hooks of its own over the trace's before each round trip. A
// transport that then asks for no connection is one that tells nothing.
func TestUnseenRoundTrips(t *testing.T) {
	t.Parallel()
	watch := &trace{tooLate: func() bool { return false }}
	ctx := watch.with(t.Context())
	compose := func() *httptrace.ClientTrace {
		return httptrace.ContextClientTrace(httptrace.WithClientTrace(context.WithValue(ctx, watch, 1), new(httptrace.ClientTrace)))
	}
	compose().GetConn("")
	httptrace.ContextClientTrace(ctx).GetConn("") // by a handler without hooks of its own
	if n := watch.unseen(); n != 0 {
		t.Errorf("%d unseen", n)
	}
	compose()
	compose().GetConn("")
	compose()
	httptrace.ContextClientTrace(ctx).GetConn("") // makes up for neither of the two
	if n := watch.unseen(); n != 2 {
		t.Errorf("%d unseen", n)
	}
	one, other := compose(), compose() // at once
	one.GetConn("")
	other.GetConn("")
	other.GetConn("") // again, by the transport itself
	if n := watch.unseen(); n != 2 {
		t.Errorf("%d unseen", n)
	}
}

// seenAs returns an observation of a handler that returned normally, with the
// given counts of the transport's hooks.
func seenAs(asked, connected int32, change func(*observation)) observation {
	seen := observation{trace: new(trace)}
	seen.trace.asked.Store(asked)
	seen.trace.connected.Store(connected)
	change(&seen)
	return seen
}

func answered(status int, header ...string) func(*observation) {
	return func(o *observation) {
		h := make(http.Header)
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		o.answer, o.complete = &keystore.Response{Status: status, Header: h}, true
	}
}

type change func(*observation)

// after is the change with so many round trips that were begun by proxies.
func (c change) after(trips int32) change {
	return func(o *observation) {
		c(o)
		o.trace.untold.Store(max(0, trips-o.trace.asked.Load()))
	}
}

func failed(f Failure) change {
	return func(o *observation) { o.err, o.failure = errors.New("broke"), f }
}

func TestClassify(t *testing.T) {
	t.Parallel()
	const (
		final   = keystore.OutcomeFinal
		fails   = keystore.OutcomeFailed
		unknown = keystore.OutcomeUnknown
	)
	overrides := map[int]keystore.Outcome{418: fails, 200: unknown, 502: final}
	for _, c := range []struct {
		name      string
		seen      observation
		overrides map[int]keystore.Outcome
		want      keystore.Outcome
		status    int
	}{
		{"200", seenAs(1, 1, answered(200)), nil, final, 200},
		{"200 from a handler without hooks", seenAs(0, 0, answered(200)), nil, final, 200},
		{"302", seenAs(1, 1, answered(302)), nil, final, 302},
		{"400", seenAs(1, 1, answered(400)), nil, final, 400},
		{"404", seenAs(1, 1, answered(404)), nil, final, 404},
		{"409", seenAs(1, 1, answered(409)), nil, final, 409},
		{"500", seenAs(1, 1, answered(500)), nil, final, 500},
		{"501", seenAs(1, 1, answered(501)), nil, final, 501},
		{"503 without Retry-After", seenAs(1, 1, answered(503)), nil, unknown, 503},
		{"503 with Retry-After", seenAs(1, 1, answered(503, "Retry-After", "3")), nil, fails, 503},
		{"418 set to failed", seenAs(1, 1, answered(418)), overrides, fails, 418},
		{"200 set to unknown", seenAs(1, 1, answered(200)), overrides, unknown, 200},
		{"502 set to final", seenAs(1, 1, answered(502)), overrides, final, 502},

		{"no connection", seenAs(1, 0, failed(Failure{Status: 502})), nil, fails, 502},
		{"no connection, and the handler panicked", seenAs(2, 0, func(o *observation) { o.panicked = "x" }), nil, fails, 502},
		{"no connection by the time it was ended", seenAs(1, 0, func(o *observation) { o.ended, o.err = errNoConnection, errNoConnection }), nil, fails, 502},
		{"dial error without hooks", seenAs(0, 0, failed(Failure{Status: 502, DialFailed: true})), nil, fails, 502},
		{"dial error without hooks after a retry", seenAs(0, 0, failed(Failure{Status: 502, DialFailed: true, Retried: true})), nil, unknown, 0},
		{"dial error without hooks, of the one round trip", seenAs(0, 0, failed(Failure{Status: 502, DialFailed: true}).after(1)), nil, fails, 502},
		{"dial error without hooks, of the second round trip", seenAs(0, 0, failed(Failure{Status: 502, DialFailed: true}).after(2)), nil, unknown, 0},
		{"no connection, after a round trip without hooks", seenAs(1, 0, failed(Failure{Status: 502}).after(2)), nil, unknown, 0},
		{"a handler's own 503, after a round trip without hooks", seenAs(0, 0, failed(Failure{Status: 503}).after(1)), nil, unknown, 0},
		{"dial error that lies: a connection had been obtained", seenAs(2, 1, failed(Failure{Status: 502, DialFailed: true})), nil, unknown, 0},
		{"all upstreams down", seenAs(0, 0, failed(Failure{Status: 503})), nil, fails, 503},
		{"a handler's own 403", seenAs(0, 0, failed(Failure{Status: 403})), nil, fails, 403},
		{"a handler's own 408", seenAs(0, 0, failed(Failure{Status: 408})), nil, unknown, 0},
		{"a handler's own 499", seenAs(0, 0, failed(Failure{Status: 499})), nil, unknown, 0},
		{"a handler's own 500", seenAs(0, 0, failed(Failure{Status: 500})), nil, unknown, 0},
		{"an error without a status", seenAs(0, 0, failed(Failure{})), nil, unknown, 0},
		{"a handler's own 403 after it was ended", seenAs(0, 0, func(o *observation) { failed(Failure{Status: 403})(o); o.ended = errStopped }), nil, unknown, 0},
		{"an error made of an answer", seenAs(0, 0, failed(Failure{Status: 404, Answered: true})), nil, unknown, 0},
		{"an error made of an answer, by a refused connection", seenAs(1, 0, failed(Failure{Status: 502, Answered: true})), nil, unknown, 0},
		{"the same without hooks", seenAs(0, 0, failed(Failure{Status: 502, DialFailed: true, Answered: true})), nil, unknown, 0},
		{"503 with a connection", seenAs(1, 1, failed(Failure{Status: 503})), nil, unknown, 0},

		{"reset", seenAs(1, 1, failed(Failure{Status: 502})), nil, unknown, 0},
		{"cut", seenAs(1, 1, func(o *observation) { answered(200)(o); o.complete, o.panicked = false, http.ErrAbortHandler }), nil, unknown, 0},
		{"short", seenAs(1, 1, func(o *observation) { answered(200)(o); o.complete = false }), nil, unknown, 0},
		{"ended by us, with 499 written", seenAs(1, 1, func(o *observation) { answered(499)(o); o.ended = errLingerOver }), nil, unknown, 0},
		{"panic without hooks", seenAs(0, 0, func(o *observation) { o.panicked = "boom" }), nil, unknown, 0},
		{"an error after an answer", seenAs(0, 0, func(o *observation) { answered(403)(o); failed(Failure{Status: 403})(o) }), nil, unknown, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := classify(c.seen, c.overrides)
			if v.outcome != c.want || v.status != c.status {
				t.Errorf("got %s with status %d (%s), want %s with %d", outcomeWord(v.outcome), v.status, v.reason, outcomeWord(c.want), c.status)
			}
			if v.reason == "" {
				t.Error("no reason")
			}
		})
	}
}

// A complete answer is the result of its attempt, but some statuses are
// somebody else's guess about what happened behind them.
func TestOUT10StatusTable(t *testing.T) {
	t.Parallel()
	fails := map[int]bool{401: true, 403: true, 407: true, 421: true, 425: true, 429: true}
	unknown := map[int]bool{408: true, 499: true, 502: true, 503: true, 504: true, 530: true, 598: true, 599: true}
	for s := 520; s <= 527; s++ {
		unknown[s] = true
	}
	for status := 200; status <= 599; status++ {
		want := keystore.OutcomeFinal
		switch {
		case fails[status]:
			want = keystore.OutcomeFailed
		case unknown[status]:
			want = keystore.OutcomeUnknown
		}
		v := classify(seenAs(1, 1, answered(status)), nil)
		if v.outcome != want {
			t.Errorf("%d: %s, want %s", status, outcomeWord(v.outcome), outcomeWord(want))
		}
		if names := strings.Contains(v.reason, "`outcome"); names != unknown[status] {
			t.Errorf("%d: reason %q", status, v.reason)
		}
	}
}

func TestRefusalsOfAnotherGateway(t *testing.T) {
	t.Parallel()
	judged := map[string]keystore.Outcome{
		CodeStoreUnavailable: keystore.OutcomeFailed, CodeNotExecuted: keystore.OutcomeFailed, CodeLoop: keystore.OutcomeFailed,
		CodeKeyMissing: keystore.OutcomeFailed, CodeKeyInvalid: keystore.OutcomeFailed, CodeOwnerMissing: keystore.OutcomeFailed,
		CodeRequestTooLarge: keystore.OutcomeFailed, CodeKeyReused: keystore.OutcomeFinal, CodeResultNotKept: keystore.OutcomeFinal,
		CodeInFlight: keystore.OutcomeUnknown, CodeOutcomeUnknown: keystore.OutcomeUnknown, CodeRecordLost: keystore.OutcomeUnknown,
		CodeTooManyWaiters: keystore.OutcomeUnknown, CodeReplayRefused: keystore.OutcomeUnknown, CodeTooEarly: keystore.OutcomeFailed,
		"of a later version": keystore.OutcomeUnknown,
	}
	for _, code := range refusalCodes {
		if judged[code] == 0 {
			t.Errorf("what %s says is not looked at", code)
		}
	}
	for code, want := range judged {
		seen := seenAs(1, 1, answered(400, "Content-Type", "application/problem+json; charset=utf-8"))
		seen.answer.Body = []byte(`{"type":"urn:idempotency:` + code + `","title":"x"}`)
		if v := classify(seen, map[int]keystore.Outcome{400: keystore.OutcomeFinal}); v.outcome != want {
			t.Errorf("%s: %s, want %s", code, outcomeWord(v.outcome), outcomeWord(want))
		}
		for _, status := range []int{409, 200, 302} { // with 200, GraphQL tells of errors too
			page := seenAs(1, 1, answered(status, "Content-Type", "text/html", HeaderRefused, code))
			if v := classify(page, nil); v.outcome != want {
				t.Errorf("%s as a page with status %d: %s, want %s", code, status, outcomeWord(v.outcome), outcomeWord(want))
			}
		}
	}
	for name, body := range map[string]string{
		"another problem": `{"type":"urn:example:x"}`, "no type": `{}`, "no JSON": `x`, "nothing": ``,
	} {
		seen := seenAs(1, 1, answered(400, "Content-Type", "application/problem+json"))
		seen.answer.Body = []byte(body)
		if v := classify(seen, nil); v.outcome != keystore.OutcomeFinal {
			t.Errorf("%s: %s", name, outcomeWord(v.outcome))
		}
	}
}
