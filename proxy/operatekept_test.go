package proxy

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// keep makes a job's unknown attempt keep an answer.
func (f *fixture) keep(j *keystore.Job, body string) *keystore.Job {
	f.t.Helper()
	j, err := f.gateway.update(f.t.Context(), j.Name, j, true, 1, func(present *keystore.Job) (*keystore.Job, bool) {
		return present.Report(keystore.Report{
			Token: j.Attempts[0].Token, Outcome: keystore.OutcomeUnknown, At: f.mem.Now(), Reason: "the answer breaks the contract",
			Violation: &keystore.Violation{Path: "/id", Expected: "string", Found: "number"}, Kept: jsonAnswer(201, body),
		}).Next, false
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return j
}

// An operator who has looked at the answer that broke the contract can make it the
// result. Every retry then gets it, and nothing is executed again.
func TestResolveWithTheKeptAnswer(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
		j := f.keep(f.unknownFor(time.Hour), `{"id":1}`)
		d := decide(j, keystore.AttemptSucceeded)
		d.Response, d.Kept = nil, true
		j, err := f.gateway.Resolve(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		if a := j.Attempts[0]; a.State != keystore.AttemptSucceeded || !a.Resolution.Kept || a.Kept != nil || a.Violation == nil {
			t.Errorf("attempt %+v", a)
		}
		f.do(request{}).wantBody(t, 201, `{"id":1}`, true)
		if n := f.executions.Load(); n != 1 {
			t.Errorf("%d executions", n)
		}
		time.Sleep(2 * time.Minute) // until nobody listens any more
	})
}

func TestResolveWithTheKeptAnswerIsRefused(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
		j := f.unknownFor(time.Hour)
		d := decide(j, keystore.AttemptSucceeded)
		d.Response, d.Kept = nil, true
		if _, err := f.gateway.Resolve(t.Context(), d); !errors.Is(err, keystore.ErrNotResolvable) {
			t.Errorf("none is kept: got %v", err)
		}
		j = f.keep(j, `{"id":1}`)
		for name, change := range map[string]func(*Decision){
			"as failed":          func(d *Decision) { d.As = keystore.AttemptFailed },
			"and another answer": func(d *Decision) { d.Response = jsonAnswer(200, "{}") },
		} {
			d := decide(j, keystore.AttemptSucceeded)
			d.Response, d.Kept = nil, true
			change(&d)
			if _, err := f.gateway.Resolve(t.Context(), d); !errors.Is(err, ErrDecision) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if state := f.mem.job().State(f.mem.Now()); state != keystore.JobUnknown {
			t.Errorf("the job is %s", state)
		}
		time.Sleep(2 * time.Minute)
	})
}
