package proxy

import (
	"errors"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// claims are what is told of claims and leases, of failovers and races.
var claims = []occurrence{
	{
		line:   "failing over",
		fields: []string{"job", "attempt=1", "provider=a", "to=b", "next=2"},
		config: twoProviders,
		happen: func(t *testing.T, f *fixture) {
			f.with(map[string][]script{"a": {says(429, "busy")}, "b": {says(200, "B")}}).do(confidential).want(t, 200, "")
		},
	},
	{
		line:      "a failover could not be claimed",
		fields:    []string{"job", "attempt=1", "provider=a", "error~injected"},
		incidents: []Incident{IncidentAborted},
		config:    twoProviders,
		happen: func(t *testing.T, f *fixture) {
			f.mem.fail(nil, onceFor("swap", 1, errInjected))
			f.with(map[string][]script{"a": {says(429, "busy")}, "b": {says(200, "B")}}).do(confidential).want(t, 429, "")
			f.wantExecuted(1, 0)
		},
	},
	{
		line:      "no other provider may be used, since none is proven",
		fields:    []string{"job", "error=b is not proven"},
		events:    []string{"fallback_unproven 1: b is not proven"},
		incidents: []Incident{IncidentFallbackUnproven},
		config: Config{
			Providers: named("a", "b"), Eligible: func(name string) error { return errors.New(name + " is not proven") },
		},
		happen: func(t *testing.T, f *fixture) {
			f.with(map[string][]script{"a": {says(429, "busy")}, "b": {says(200, "B")}}).do(confidential).want(t, 429, "")
		},
	},
	{
		line:      "racing",
		fields:    []string{"job", "provider=b", "attempt=2"},
		incidents: []Incident{IncidentDiscarded},
		config:    racing,
		happen: func(t *testing.T, f *fixture) {
			f.with(map[string][]script{"a": {hangs}, "b": {says(200, "B")}}).do(confidential).want(t, 200, "")
			synctest.Wait()
		},
	},
	{
		line:      "a sibling could not be claimed",
		fields:    []string{"job", "error~injected"},
		incidents: []Incident{IncidentAborted},
		config:    racing,
		happen: func(t *testing.T, f *fixture) {
			f.mem.fail(onceFor("swap", 1, errInjected), nil)
			f.with(map[string][]script{"a": {after(2*time.Second, says(200, "A"))}, "b": {says(200, "B")}}).do(confidential).want(t, 200, "")
			f.wantExecuted(1, 0)
		},
	},
	{
		line:      "an attempt was not dispatched: the lease was half over before anything was sent; is this machine overloaded, or was it suspended?",
		fields:    []string{"job", "attempt=1"},
		incidents: []Incident{IncidentAborted},
		config:    Config{Lease: 10 * time.Second},
		happen: func(t *testing.T, f *fixture) {
			f.mem.fail(nil, func(op string) error {
				if op == "create" {
					time.Sleep(6 * time.Second)
				}
				return nil
			})
			f.do(confidential).want(t, 503, CodeStoreUnavailable)
			f.wantExecutions(0)
		},
	},
	{
		line:      "an attempt that was never dispatched was resolved as succeeded",
		fields:    []string{"job"},
		incidents: []Incident{IncidentAborted, IncidentContradicted},
		happen: func(t *testing.T, f *fixture) {
			f.doubtfulClaim(t, func(j *keystore.Job) *keystore.Job {
				j = j.Report(keystore.Report{Token: j.Attempts[0].Token, Outcome: keystore.OutcomeUnknown, At: f.store.Now()}).Next
				j, err := j.Resolve(j.Attempts[0].Token, keystore.Resolution{State: keystore.AttemptSucceeded, Actor: "anna", Evidence: "the journal", At: f.store.Now()}, &keystore.Response{Status: 200})
				if err != nil {
					t.Fatal(err)
				}
				return j
			})
		},
	},
	{
		line:      "a claim that was never dispatched could not be recorded as such",
		fields:    []string{"job", "error~record can't be read"},
		incidents: []Incident{IncidentAborted},
		happen: func(t *testing.T, f *fixture) {
			f.doubtfulClaim(t, nil)
		},
	},
	{
		line:      "a lease lapsed: it is unknown whether its attempt was executed",
		fields:    []string{"job", "attempt=1"},
		events:    []string{"outcome_unknown 1: lease lapsed: no sign of life from the gateway that ran it"},
		incidents: []Incident{IncidentLapsed},
		config:    brief,
		happen: func(t *testing.T, f *fixture) {
			f.orphan("")
			f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:      "a lease could not be renewed",
		fields:    []string{"job", "attempt=1", "error~injected"},
		incidents: []Incident{IncidentRenewed},
		config:    Config{Lease: 30 * time.Second, Timeout: time.Hour},
		happen: func(t *testing.T, f *fixture) {
			f.mem.fail(onceFor("swap", 1, errInjected), nil)
			f.serve = sleepy(time.Minute, f)
			f.do(confidential).want(t, 200, "")
		},
	},
	{
		line:   "running attempts could not be indexed",
		fields: []string{"attempts=1", "error~injected"},
		happen: func(t *testing.T, f *fixture) {
			f.fails("index", errInjected)
			f.serve = sleepy(5*time.Second, f)
			f.do(confidential).want(t, 200, "")
		},
	},
	{
		line:   "a request can't be compared with its job",
		fields: []string{"job", "error~fingerprint the request body"},
		happen: func(t *testing.T, f *fixture) {
			file, err := os.CreateTemp(t.TempDir(), "body")
			if err != nil {
				t.Fatal(err)
			}
			file.Close()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example/pay", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			c := &call{Route: f.route, g: f.gateway, x: Exchange{Asked: r}, body: &requestBody{size: 1 << 20, file: file}}
			if v := c.ask(f.jobOf(FingerprintOptions{JSON: true}, `{}`), f.store.Now()); v != keystore.UnknownRecipe {
				t.Errorf("it is judged as %v", v)
			}
		},
	},
}

// doubtfulClaim makes a request of whose claim nobody knows whether it has landed, as it
// has, and changes the record before that is found out; without a change it becomes
// unreadable.
func (f *fixture) doubtfulClaim(t *testing.T, change func(*keystore.Job) *keystore.Job) {
	t.Helper()
	f.mem.fail(func(op string) error {
		if op == "get" {
			return errInjected
		}
		return nil
	}, onceFor("create", 1, errInjected))
	f.do(confidential).want(t, 503, CodeStoreUnavailable)
	f.wantExecutions(0)
	if change == nil {
		f.mem.garble("garbage")
	} else {
		j := change(f.mem.job())
		j.WriteID = keystore.NewWriteID()
		f.mem.mu.Lock()
		err := f.mem.put(j)
		f.mem.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	f.mem.fail(nil, nil)
	time.Sleep(10 * time.Second)
}
