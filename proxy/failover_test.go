package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/logged"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// scripted is a provider that does what it is told, in turn; the last script
// goes on.
type scripted struct {
	scripts    []script
	executions atomic.Int32
}

type script func(w http.ResponseWriter, r *http.Request) error

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	n := int(s.executions.Add(1))
	return s.scripts[min(n, len(s.scripts))-1](w, r)
}

func (s *scripted) Inspect(err error) Failure {
	_, refused := errors.AsType[refusedError](err)
	return Failure{Status: 502, DialFailed: refused}
}

type refusedError struct{ error }

// refuses is a provider to which no connection can be made.
func refuses(http.ResponseWriter, *http.Request) error {
	return refusedError{errors.New("connection refused")}
}

// breaks is one that takes the request and hangs up.
func breaks(http.ResponseWriter, *http.Request) error { return errors.New("EOF") }

// hangs is one that takes the request and never answers.
func hangs(_ http.ResponseWriter, r *http.Request) error {
	<-r.Context().Done()
	return context.Cause(r.Context())
}

func says(status int, body string) script {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(status)
		_, err := fmt.Fprint(w, body)
		return err
	}
}

// after is a script that takes its time, and stops when nobody wants it any more.
func after(d time.Duration, s script) script {
	return func(w http.ResponseWriter, r *http.Request) error {
		select {
		case <-time.After(d):
			return s(w, r)
		case <-r.Context().Done():
			return context.Cause(r.Context())
		}
	}
}

func named(names ...string) (providers []NamedProvider) {
	for _, name := range names {
		providers = append(providers, NamedProvider{Name: name})
	}
	return providers
}

// with gives the fixture's providers their scripts.
func (f *fixture) with(scripts map[string][]script) *fixture {
	f.providers = make(map[string]*scripted)
	for name, s := range scripts {
		f.providers[name] = &scripted{scripts: s}
	}
	return f
}

// wantExecuted checks how often each provider was executed, in the order of
// preference.
func (f *fixture) wantExecuted(counts ...int32) {
	f.t.Helper()
	for i, p := range f.route.Providers {
		if got := f.providers[p.Name].executions.Load(); got != counts[i] {
			f.t.Errorf("provider %s was executed %d times, want %d", p.Name, got, counts[i])
		}
	}
}

// wantAttempts checks the attempts of the fixture's one job, written as provider
// and state.
func (f *fixture) wantAttempts(want ...string) {
	f.t.Helper()
	var got []string
	for _, a := range f.mem.job().Attempts {
		got = append(got, a.Provider+" "+a.State.String())
	}
	if !slices.Equal(got, want) {
		f.t.Errorf("attempts %q, want %q", got, want)
	}
}

var twoProviders = Config{Providers: named("a", "b"), Timeout: 10 * time.Second, Linger: time.Minute}

// What a first provider's end permits: only what certainly had no effect is
// followed by another provider.
func TestFailover(t *testing.T) {
	long := func(status int) script { return says(status, "answer of a") }
	for name, c := range map[string]struct {
		first    script
		status   int
		body     string
		code     string
		counts   []int32
		attempts []string
	}{
		"refused":     {refuses, 200, "answer of b", "", []int32{1, 1}, []string{"a failed", "b succeeded"}},
		"429":         {long(429), 200, "answer of b", "", []int32{1, 1}, []string{"a failed", "b succeeded"}},
		"401":         {long(401), 200, "answer of b", "", []int32{1, 1}, []string{"a failed", "b succeeded"}},
		"500":         {long(500), 500, "answer of a", "", []int32{1, 0}, []string{"a succeeded"}},
		"400":         {long(400), 400, "answer of a", "", []int32{1, 0}, []string{"a succeeded"}},
		"502":         {long(502), 504, "", CodeOutcomeUnknown, []int32{1, 0}, []string{"a unknown"}},
		"504":         {long(504), 504, "", CodeOutcomeUnknown, []int32{1, 0}, []string{"a unknown"}},
		"hangs up":    {breaks, 504, "", CodeOutcomeUnknown, []int32{1, 0}, []string{"a unknown"}},
		"never ends":  {hangs, 504, "", CodeOutcomeUnknown, []int32{1, 0}, []string{"a unknown"}},
		"panics":      {func(http.ResponseWriter, *http.Request) error { panic("x") }, 504, "", CodeOutcomeUnknown, []int32{1, 0}, []string{"a unknown"}},
		"200 at once": {long(200), 200, "answer of a", "", []int32{1, 0}, []string{"a succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, twoProviders, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {c.first}, "b": {says(200, "answer of b")}})
				if c.code != "" {
					f.do(request{}).want(t, c.status, c.code)
				} else {
					f.do(request{}).wantBody(t, c.status, c.body, false)
					f.do(request{}).wantBody(t, c.status, c.body, true)
				}
				f.wantExecuted(c.counts...)
				f.wantAttempts(c.attempts...)
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// The failure of one attempt and the start of the next are one write, so that nobody
// ever finds the job open in between.
func TestFailoverIsOneWrite(t *testing.T) {
	bubble(t, twoProviders, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {says(429, "busy")}, "b": {says(200, "answer of b")}})
		var states []keystore.JobState
		f.mem.fail(nil, func(op string) error {
			if op == "create" || op == "swap" {
				states = append(states, f.mem.job().State(f.store.Now()))
			}
			return nil
		})
		f.do(request{}).wantBody(t, 200, "answer of b", false)
		if want := []keystore.JobState{keystore.JobRunning, keystore.JobRunning, keystore.JobCompleted}; !slices.Equal(states, want) {
			t.Errorf("after each write the job was %v, want %v", states, want)
		}
	})
}

// With no provider left the client gets the last real answer, and its retry goes
// on with the provider that is next.
func TestFailoverComesToItsEnd(t *testing.T) {
	bubble(t, Config{Providers: named("a", "b", "c")}, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{
			"a": {says(429, "a is busy"), says(200, "answer of a")},
			"b": {says(429, "b is busy")},
			"c": {refuses},
		})
		f.do(request{}).wantBody(t, 429, "b is busy", false)
		f.wantExecuted(1, 1, 1)
		f.wantAttempts("a failed", "b failed", "c failed")
		f.do(request{}).wantBody(t, 200, "answer of a", false)
		f.wantExecuted(2, 1, 1)
		f.do(request{}).wantBody(t, 200, "answer of a", true)
	})
}

// A route that leaves it to the client tries one provider a request.
func TestNoFailover(t *testing.T) {
	c := twoProviders
	c.NoFailover = true
	bubble(t, c, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {says(429, "a is busy")}, "b": {says(200, "answer of b")}})
		f.do(request{}).wantBody(t, 429, "a is busy", false)
		f.wantExecuted(1, 0)
		f.do(request{}).wantBody(t, 200, "answer of b", false)
		f.wantAttempts("a failed", "b succeeded")
	})
}

// max_attempts bounds what one request does by itself.
func TestMaxAttempts(t *testing.T) {
	bubble(t, Config{Providers: named("a", "b", "c"), MaxAttempts: 2}, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {refuses}, "b": {says(429, "b is busy")}, "c": {says(200, "answer of c")}})
		f.do(request{}).wantBody(t, 429, "b is busy", false)
		f.wantExecuted(1, 1, 0)
		f.do(request{}).wantBody(t, 200, "answer of c", false)
	})
}

// A provider that is not proven is not failed over to, neither at once nor by the
// client's retry, and that is told. The primary needs no proof.
func TestFailoverOnlyToTheProven(t *testing.T) {
	c := twoProviders
	c.Providers = named("a", "b", "c")
	proven := map[string]bool{}
	c.Eligible = func(name string) error {
		if !proven[name] {
			return fmt.Errorf("%s is not proven", name)
		}
		return nil
	}
	bubble(t, c, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {says(429, "a is busy")}, "b": {says(200, "answer of b")}, "c": {says(200, "answer of c")}})
		f.do(request{}).wantBody(t, 429, "a is busy", false)
		f.do(request{}).wantBody(t, 429, "a is busy", false)
		f.wantExecuted(2, 0, 0)
		if f.incs.told(EventFallbackUnproven) != 2 || f.incs.of(IncidentFallbackUnproven) != 2 {
			t.Errorf("told %d, counted %d", f.incs.told(EventFallbackUnproven), f.incs.of(IncidentFallbackUnproven))
		}
		f.wantUnprovenLogged(1)
		time.Sleep(unprovenEvery)
		f.do(request{}).wantBody(t, 429, "a is busy", false)
		f.wantUnprovenLogged(2)
		proven["c"] = true
		f.do(request{}).wantBody(t, 200, "answer of c", false)
		f.wantExecuted(3, 0, 1)
		f.wantUnprovenLogged(2)
	})
}

// wantUnprovenLogged checks how often the log has said what is not proven: in an outage
// not with every request.
func (f *fixture) wantUnprovenLogged(n int) {
	f.t.Helper()
	lines := slices.DeleteFunc(f.log.Lines(), func(l logged.Line) bool {
		return l.Text != "no other provider may be used, since none is proven"
	})
	if len(lines) != n {
		f.t.Errorf("it was logged %d times, want %d", len(lines), n)
	}
}

// Where the client's repetition is what fails over, it is told that it could not.
func TestRepetitionOnlyToTheProven(t *testing.T) {
	c := twoProviders
	c.NoFailover = true
	proven := false
	c.Eligible = func(name string) error {
		if !proven {
			return fmt.Errorf("%s is not proven", name)
		}
		return nil
	}
	bubble(t, c, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {says(429, "a is busy")}, "b": {says(200, "answer of b")}})
		f.do(request{}).wantBody(t, 429, "a is busy", false)
		f.do(request{}).wantBody(t, 429, "a is busy", false)
		f.wantExecuted(2, 0)
		if f.incs.told(EventFallbackUnproven) != 1 || f.incs.of(IncidentFallbackUnproven) != 1 {
			t.Errorf("told %d, counted %d", f.incs.told(EventFallbackUnproven), f.incs.of(IncidentFallbackUnproven))
		}
		proven = true
		f.do(request{}).wantBody(t, 200, "answer of b", false)
		f.wantExecuted(2, 1)
		if f.incs.told(EventFallbackUnproven) != 1 {
			t.Error("it is told again")
		}
	})
}

// Those who wait for a request that fails over get the answer in the end, and
// nobody becomes a second leader.
func TestWaitersOfAFailover(t *testing.T) {
	bubble(t, twoProviders, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {after(time.Second, says(429, "busy"))}, "b": {after(time.Second, says(200, "answer of b"))}})
		results := make(chan result, 20)
		for range cap(results) {
			go func() { results <- f.do(request{}) }()
		}
		for range cap(results) {
			if r := <-results; r.Code != 200 || r.Body.String() != "answer of b" {
				t.Errorf("got %d %s", r.Code, r.Body)
			}
		}
		f.wantExecuted(1, 1)
	})
}

// Whatever becomes of the write that fails over: nothing is executed twice, and
// the first provider's failure is not forgotten.
func TestFailoverWriteInDoubt(t *testing.T) {
	for name, hooks := range map[string][2]func(string) error{
		"its reply is lost":  {nil, onceFor("swap", 1, errInjected)},
		"it was not applied": {onceFor("swap", 1, errInjected), nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, twoProviders, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {says(429, "a is busy")}, "b": {says(200, "answer of b")}})
				f.mem.fail(hooks[0], hooks[1])
				r := f.do(request{}).wantBody(t, 429, "a is busy", false)
				if r.Header().Get(HeaderRecorded) != "false" {
					t.Errorf("recorded %q", r.Header().Get(HeaderRecorded))
				}
				f.wantExecuted(1, 0)
				time.Sleep(time.Minute)
				j := f.mem.job()
				if j.State(f.store.Now()) != keystore.JobOpen || j.Attempts[0].State != keystore.AttemptFailed || j.Attempts[0].Evidence.Status != 429 {
					t.Errorf("job %s: %+v", j.State(f.store.Now()), j.Attempts)
				}
				f.do(request{}).wantBody(t, 200, "answer of b", false)
				f.wantExecuted(1, 1)
			})
		})
	}
}

// contractOf asks for an object with an id and nothing else.
func contractOf(t *testing.T, rules ContractRules) *Contract {
	t.Helper()
	rules.Schema = filepath.Join(t.TempDir(), "charge.schema.json")
	schema := `{"type":"object","required":["id"],"additionalProperties":false,"properties":{"id":{"type":"string"}}}`
	if err := os.WriteFile(rules.Schema, []byte(schema), 0o600); err != nil {
		t.Fatal(err)
	}
	contract, err := NewContract(rules)
	if err != nil {
		t.Fatal(err)
	}
	return contract
}

func saysJSON(status int, body string) script {
	return func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "application/json")
		return says(status, body)(w, r)
	}
}

// An answer that breaks the contract never takes the slot and reaches no client
// as a success: it is unknown whether it had an effect, so nothing follows,
// unless the route says that it had none.
func TestContract(t *testing.T) {
	for name, c := range map[string]struct {
		first    script
		fails    bool
		status   int
		code     string
		counts   []int32
		attempts []string
	}{
		"kept":                     {saysJSON(200, `{"id":"1"}`), false, 200, "", []int32{1, 0}, []string{"a succeeded"}},
		"broken":                   {saysJSON(200, `{"id":1}`), false, 504, CodeOutcomeUnknown, []int32{1, 0}, []string{"a unknown"}},
		"broken without an effect": {saysJSON(200, `{"id":1}`), true, 200, "", []int32{1, 1}, []string{"a failed", "b succeeded"}},
		"an honest refusal":        {says(400, "no"), false, 400, "", []int32{1, 0}, []string{"a succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := twoProviders
			config.Contract = contractOf(t, ContractRules{ViolationFails: c.fails})
			bubble(t, config, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {c.first}, "b": {saysJSON(200, `{"id":"2"}`)}})
				f.do(request{}).want(t, c.status, c.code)
				f.do(request{}).want(t, c.status, c.code)
				f.wantExecuted(c.counts...)
				f.wantAttempts(c.attempts...)
				a := f.mem.job().Attempts[0]
				broken := strings.HasPrefix(name, "broken")
				if (a.Violation != nil) != broken || f.incs.of(IncidentViolation) > 1 {
					t.Errorf("violation %+v", a.Violation)
				}
				if kept := a.Kept != nil; kept != (name == "broken") || kept && string(a.Kept.Body) != `{"id":1}` {
					t.Errorf("kept %+v", a.Kept)
				}
			})
		})
	}
}

// A status that says that nothing has happened makes no success of an answer that
// breaks the contract.
func TestContractBrokenByAFailure(t *testing.T) {
	config := twoProviders
	config.Contract = contractOf(t, ContractRules{})
	config.Outcomes = map[int]keystore.Outcome{200: keystore.OutcomeFailed}
	bubble(t, config, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {saysJSON(200, `{"id":1}`)}, "b": {saysJSON(200, `[]`)}})
		f.do(request{}).want(t, 502, CodeNotExecuted)
		f.wantAttempts("a failed", "b failed")
	})
}

// Where every provider breaks the contract without an effect, the client learns
// that nothing was executed, and not what was answered.
func TestContractBrokenByAll(t *testing.T) {
	config := twoProviders
	config.Contract = contractOf(t, ContractRules{ViolationFails: true})
	bubble(t, config, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {saysJSON(200, `{"id":1}`)}, "b": {saysJSON(200, `[]`)}})
		r := f.do(request{}).want(t, 502, CodeNotExecuted)
		if strings.Contains(r.Body.String(), `"id"`) {
			t.Errorf("the client got %s", r.Body)
		}
		f.wantAttempts("a failed", "b failed")
	})
}

// What follows a real answer and can't be given to the client does not take its
// place: an answer that breaks the contract, or an attempt that the end of the
// process keeps from being dispatched.
func TestLastRealAnswer(t *testing.T) {
	busy := saysJSON(429, `{"busy":true}`)
	for name, c := range map[string]struct {
		first, second script
		body          string
	}{
		"an answer, then a violation": {busy, saysJSON(200, `[]`), `{"busy":true}`},
		"a violation, then an answer": {saysJSON(200, `[]`), busy, `{"busy":true}`},
		"an answer, then no answer":   {busy, refuses, `{"busy":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			config := twoProviders
			config.Contract = contractOf(t, ContractRules{ViolationFails: true})
			bubble(t, config, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {c.first}, "b": {c.second}})
				f.do(request{}).wantBody(t, 429, c.body, false)
				f.wantExecuted(1, 1)
				f.wantAttempts("a failed", "b failed")
			})
		})
	}
	t.Run("an answer, then nothing is dispatched", func(t *testing.T) {
		bubble(t, twoProviders, func(t *testing.T, f *fixture) {
			f.with(map[string][]script{"a": {busy}, "b": {says(200, "answer of b")}})
			f.mem.fail(nil, func(op string) error {
				if op == "swap" { // the failover is written
					f.gateway.drainOnce.Do(func() { close(f.gateway.draining) })
				}
				return nil
			})
			f.do(request{}).wantBody(t, 429, `{"busy":true}`, false)
			f.wantExecuted(1, 0)
			f.wantAttempts("a failed", "b failed")
		})
	})
}

// An answer that may not be passed on before it is sure, and is too large to be
// kept until then, is not there any more. What is left of it is no answer.
func TestTooLargeToBeHeldBack(t *testing.T) {
	large := strings.Repeat("x", 100)
	contract, err := NewContract(ContractRules{Statuses: []int{200}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config Config
		says   int
		status int
		code   string
		counts []int32
	}{
		"race":     {Config{Providers: named("a", "b"), Race: time.Second}, 200, 410, CodeResultNotKept, []int32{1, 0}},
		"contract": {Config{Providers: named("a", "b"), Contract: contract}, 200, 410, CodeResultNotKept, []int32{1, 0}},
		"failed":   {Config{Providers: named("a", "b")}, 429, 429, CodeNotExecuted, []int32{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.MaxResponseBody = 10
			bubble(t, c.config, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {says(c.says, large)}, "b": {says(c.says, large)}})
				f.do(request{}).want(t, c.status, c.code)
				f.wantExecuted(c.counts...)
			})
		})
	}
}
