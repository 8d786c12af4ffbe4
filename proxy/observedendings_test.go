package proxy

import (
	"errors"
	"net/http"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// brief are settings with which an attempt soon times out.
var brief = Config{Timeout: 10 * time.Second, Linger: time.Minute}

// endings are what is told of attempts and their ends.
var endings = []occurrence{
	{
		line:   "attempt ended",
		fields: []string{"job", "attempt=1", "outcome=final", "effect=won", "reason=answered with status 200", "status=200", "duration=1s"},
		happen: func(t *testing.T, f *fixture) {
			f.serve = sleepy(time.Second, f)
			f.do(confidential).want(t, 200, "")
		},
	},
	{
		line:   "an attempt certainly had no effect",
		fields: []string{"job", "attempt=1", "provider=a", "outcome=failed", "effect=failed", "reason=answered with status 429", "status=429", "duration=0s"},
		config: Config{Providers: named("a")},
		happen: func(t *testing.T, f *fixture) {
			f.with(map[string][]script{"a": {says(429, "execution 1")}}).do(confidential).want(t, 429, "")
		},
	},
	{
		line:   "an attempt certainly had no effect",
		fields: []string{"job", "attempt=13", "outcome=failed", "effect=failed", "reason=answered with status 429", "status=429", "duration=0s", "held_back=2"},
		happen: func(t *testing.T, f *fixture) {
			f.serve = says(429, "execution 1")
			for range sampleBurst + 2 {
				f.do(confidential).want(t, 429, "")
			}
			time.Sleep(sampleEvery)
			f.do(confidential).want(t, 429, "")
		},
	},
	{
		line:   "it is unknown whether an attempt was executed",
		fields: []string{"job", "attempt=1", "outcome=unknown", "effect=unknown", "reason=answered with status 502, which may be somebody else's guess; if it proves that nothing happened, set `outcome 502 failed` on the route", "status=502", "duration=0s"},
		events: []string{"outcome_unknown 1: answered with status 502, which may be somebody else's guess; if it proves that nothing happened, set `outcome 502 failed` on the route"},
		happen: func(t *testing.T, f *fixture) {
			f.serve = says(502, "execution 1")
			f.do(confidential).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:   "an attempt timed out: it is unknown whether it was executed; listening on for a late result",
		fields: []string{"job", "attempt=1", "timeout=10s", "linger=1m0s"},
		events: []string{"outcome_unknown 1: no answer came within the timeout"},
		config: brief,
		happen: func(t *testing.T, f *fixture) {
			f.serve = hangs
			f.do(confidential).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:      "a late result took the result slot",
		fields:    []string{"job", "attempt=1", "outcome=final", "effect=won", "reason=answered with status 200", "status=200", "duration=12s"},
		events:    []string{"outcome_unknown 1: no answer came within the timeout", "late_result 1: answered with status 200"},
		incidents: []Incident{IncidentLateResult},
		config:    brief,
		happen: func(t *testing.T, f *fixture) {
			f.serve = sleepy(12*time.Second, f)
			f.do(confidential).want(t, 504, CodeOutcomeUnknown)
			time.Sleep(3 * time.Second)
		},
	},
	{
		line:      "an attempt came too late and was discarded",
		fields:    []string{"job", "attempt=1", "provider=a", "outcome=unknown", "effect=evidence", "reason=another attempt took the result slot first", "status=0", "duration=1s"},
		incidents: []Incident{IncidentDiscarded},
		config:    racing,
		happen: func(t *testing.T, f *fixture) {
			f.with(map[string][]script{"a": {hangs}, "b": {says(200, "execution 1")}}).do(confidential).want(t, 200, "")
			synctest.Wait()
		},
	},
	{
		line:   "an attempt's end contradicts how it was resolved",
		fields: []string{"job", "attempt=1", "outcome=final", "effect=discarded", "reason=answered with status 200", "status=200", "duration=12s"},
		events: []string{
			"outcome_unknown 1: no answer came within the timeout", "resolved 1: resolved as cancelled by anna",
			"contradicted 1: answered with status 200",
		},
		incidents: []Incident{IncidentContradicted},
		config:    brief,
		happen: func(t *testing.T, f *fixture) {
			f.serve = sleepy(12*time.Second, f)
			id := f.do(confidential).want(t, 504, CodeOutcomeUnknown).Header().Get(HeaderJob)
			f.resolve(t, id, keystore.AttemptCancelled)
			time.Sleep(3 * time.Second)
		},
	},
	{
		line:   "attempt panicked",
		fields: []string{"job", "attempt=1", "panic=out of cards", "stack~goroutine"},
		events: []string{"outcome_unknown 1: its handler panicked (string)"},
		happen: func(t *testing.T, f *fixture) {
			f.serve = func(http.ResponseWriter, *http.Request) error { panic("out of cards") }
			f.do(confidential).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:      "something below the gateway sent the request again",
		fields:    []string{"job", "attempt=1", "connections=2"},
		incidents: []Incident{IncidentResent},
		happen: func(t *testing.T, f *fixture) {
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				hooks := httptrace.ContextClientTrace(r.Context())
				for range 2 {
					hooks.GetConn("upstream:80")
					hooks.GotConn(httptrace.GotConnInfo{})
				}
				return says(200, "done")(w, r)
			}
			f.do(confidential).want(t, 200, "")
		},
	},
	{
		line:      "an answer breaks the contract",
		fields:    []string{"job", "attempt=1", "path=/id", "expected=string", "found=array of 1 item"},
		events:    []string{"outcome_unknown 1: answered with status 200, which breaks the contract"},
		incidents: []Incident{IncidentViolation},
		happen: func(t *testing.T, f *fixture) {
			f.route.Contract = contractOf(t, ContractRules{})
			f.serve = saysJSON(200, `{"id":["4242-4242"]}`)
			f.do(confidential).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:   "client left before the end of its answer",
		fields: []string{"error=connection reset"},
		happen: func(t *testing.T, f *fixture) {
			if err := f.deliver(gone{}, confidential); err != nil {
				t.Error(err)
			}
			f.wantExecutions(1)
		},
	},
	{
		line:   "the process is ending: no attempt starts any more, and who waits is sent away",
		fields: []string{"attempts=1", "waiters=1"},
		happen: func(t *testing.T, f *fixture) {
			f.serve = sleepy(time.Second, f)
			answered := make(chan result, 2)
			for range cap(answered) {
				go func() { answered <- f.do(confidential) }()
				synctest.Wait()
			}
			f.gateway.Drain(t.Context())
			(<-answered).want(t, 409, CodeInFlight)
			(<-answered).want(t, 200, "")
		},
	},
	{
		line:   "attempts are cut, since the process is ending",
		fields: []string{"attempts=1"},
		events: []string{"outcome_unknown 1: gateway stopped"},
		happen: func(t *testing.T, f *fixture) {
			f.serve = hangs
			f.drainAtOnce(t).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:   "an attempt that was cut could not be recorded as unknown",
		fields: []string{"job", "attempt=1", "error~injected"},
		happen: func(t *testing.T, f *fixture) {
			deaf := make(chan struct{})
			f.serve = func(http.ResponseWriter, *http.Request) error {
				<-deaf
				return nil
			}
			f.fails("swap", errRefused)
			f.drainAtOnce(t).want(t, 504, CodeOutcomeUnknown)
			f.gateway.Close() // its end can't be recorded any more
			close(deaf)
			synctest.Wait()
		},
	},
}

// resolve decides on the only unknown attempt of a job.
func (f *fixture) resolve(t *testing.T, id string, as keystore.AttemptState) {
	t.Helper()
	if _, err := f.gateway.Resolve(t.Context(), Decision{Job: id, As: as, Actor: "anna", Evidence: "the journal"}); err != nil {
		t.Fatal(err)
	}
}

// drainAtOnce ends the gateway while a request is under way, which gets no time to end.
func (f *fixture) drainAtOnce(t *testing.T) result {
	answered := make(chan result)
	go func() { answered <- f.do(confidential) }()
	synctest.Wait()
	ctx, cancel := contextFor(t, 2*time.Second)
	defer cancel()
	go f.gateway.Drain(ctx)
	return <-answered
}

// gone is a client that is not there any more.
type gone struct{}

func (gone) Header() http.Header       { return make(http.Header) }
func (gone) WriteHeader(int)           {}
func (gone) Write([]byte) (int, error) { return 0, errors.New("connection reset") }
