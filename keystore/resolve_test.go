package keystore

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Only an unknown attempt of a job whose slot is empty can be resolved.
func TestResolveTable(t *testing.T) {
	t.Parallel()
	resolvable := map[string]bool{
		"unknown, listening": true, "unknown, lapsed": true, "unknown, ended": true,
		"unknown beside a running one": true, "unknown, version changed": true,
	}
	for name, j := range situations(t) {
		for _, state := range []AttemptState{AttemptSucceeded, AttemptFailed, AttemptCancelled} {
			t.Run(name+"/"+state.String(), func(t *testing.T) {
				t.Parallel()
				same := unchanged(t, j)
				next, err := j.Resolve(tok(1), resolution(state), answer("r"))
				same()
				if !resolvable[name] {
					if !errors.Is(err, ErrNotResolvable) || next != nil {
						t.Fatalf("got %v, %v; want it refused", next, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				next = stored(next)
				checkRecord(t, next)
				checkResolved(t, j, next, state)
			})
		}
	}
}

func checkResolved(t *testing.T, j, next *Job, state AttemptState) {
	t.Helper()
	a := next.Attempt(tok(1))
	if a.State != state || a.Resolution == nil || *a.Resolution != resolution(state) || !strings.HasPrefix(a.Reason, "resolved as "+state.String()) {
		t.Errorf("got %+v", a)
	}
	if a.Ended != j.Attempt(tok(1)).Ended {
		t.Error("a resolution says that the gateway made its last report")
	}
	succeeded := state == AttemptSucceeded
	if succeeded != (next.CompletedBy == tok(1)) || succeeded != reflect.DeepEqual(next.Result, answer("r")) {
		t.Errorf("slot %s with %+v", next.CompletedBy, next.Result)
	}
	if grew := next.Version - j.Version; (grew == 1) != succeeded || grew > 1 {
		t.Errorf("version %d after %d", next.Version, j.Version)
	}
	for i := range next.Attempts {
		b := &next.Attempts[i]
		switch {
		case b.Token == tok(1):
		case succeeded && b.Unresolved():
			t.Errorf("attempt %d is %s beside a taken slot", b.Number, b.State)
		case !succeeded && !reflect.DeepEqual(*b, j.Attempts[i]):
			t.Errorf("resolving attempt 1 changed attempt %d", b.Number)
		}
	}
}

func TestResolveRefusesWhatItCannotMean(t *testing.T) {
	t.Parallel()
	j := reported(t, running(), timedOut(1))
	for name, try := range map[string]func() (*Job, error){
		"succeeded without a response": func() (*Job, error) { return j.Resolve(tok(1), resolution(AttemptSucceeded), nil) },
		"as unknown":                   func() (*Job, error) { return j.Resolve(tok(1), resolution(AttemptUnknown), answer("r")) },
		"as discarded":                 func() (*Job, error) { return j.Resolve(tok(1), resolution(AttemptDiscarded), answer("r")) },
		"as starting":                  func() (*Job, error) { return j.Resolve(tok(1), resolution(AttemptStarting), answer("r")) },
		"as nothing":                   func() (*Job, error) { return j.Resolve(tok(1), Resolution{}, answer("r")) },
		"no such attempt":              func() (*Job, error) { return j.Resolve(tok(9), resolution(AttemptFailed), nil) },
	} {
		if next, err := try(); !errors.Is(err, ErrNotResolvable) || next != nil {
			t.Errorf("%s: got %v, %v", name, next, err)
		}
	}
}

// The slot of a record that holds one is not taken again, even if an attempt
// beside it were unknown.
func TestResolveNeedsAnEmptySlot(t *testing.T) {
	t.Parallel()
	j := reported(t, started(reported(t, running(), timedOut(1)), 2, epoch), final(2, "two"))
	j.Attempts[0].State = AttemptUnknown
	for _, state := range []AttemptState{AttemptSucceeded, AttemptFailed, AttemptCancelled} {
		if next, err := j.Resolve(tok(1), resolution(state), answer("r")); !errors.Is(err, ErrNotResolvable) {
			t.Errorf("as %s: got %+v, %v", state, next, err)
		}
	}
}

// A job whose last unresolved attempt is resolved accepts a fresh claim; with
// another one left it does not.
func TestResolutionOpensTheJob(t *testing.T) {
	t.Parallel()
	both := reported(t, started(reported(t, running(), timedOut(1)), 2, epoch), timedOut(2))
	one := resolved(t, both, 1, AttemptFailed)
	if got := one.State(after(time.Hour)); got != JobUnknown || one.Expires != 0 {
		t.Errorf("one is left, the job is %s and expires at %v", got, one.Expires)
	}
	none := resolved(t, one, 2, AttemptCancelled)
	if got := none.State(after(time.Hour)); got != JobOpen || none.Expires != resolution(AttemptCancelled).At.Add(retention) {
		t.Errorf("none is left, the job is %s and expires at %v", got, none.Expires)
	}
	judged{job: none, now: after(time.Hour), first: Start, reads: NotExecuted, races: Start}.check(t)
}

func TestForget(t *testing.T) {
	t.Parallel()
	sibling := started(reported(t, running(), timedOut(1)), 2, after(time.Second))
	beaten := reported(t, sibling, final(2, "two")) // attempt 1's gateway still listens
	for _, c := range []struct {
		name string
		job  *Job
		now  Time
		want bool
	}{
		{"completed", reported(t, running(), final(1, "x")), after(time.Minute), true},
		{"running", running(), after(time.Minute), false},
		{"lapsed", running(), after(time.Hour), false},
		{"unknown", reported(t, running(), unknown(1)), after(time.Hour), false},
		{"open", reported(t, running(), failed(1)), after(time.Hour), false},
		{"a sibling may still report", beaten, after(listen) - 1, false},
		{"the sibling's time is up", beaten, after(listen), true},
		{"the sibling has reported", reported(t, beaten, final(1, "late")), after(2 * time.Second), true},
		{"resolved, its gateway may still report", resolved(t, sibling, 1, AttemptSucceeded), after(listen) - 1, false},
		{"resolved, long ago", resolved(t, sibling, 1, AttemptSucceeded), after(time.Hour), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			same := unchanged(t, c.job)
			next, err := c.job.Forget(c.now)
			same()
			if !c.want {
				if !errors.Is(err, ErrNotForgettable) || next != nil {
					t.Fatalf("got %+v, %v; want it refused", next, err)
				}
				return
			}
			if err != nil || next.Expires != c.now {
				t.Fatalf("got %+v, %v", next, err)
			}
			s := newSimStore()
			s.now = c.now
			s.apply(write{create: true, job: c.job})
			if _, ok := s.apply(write{expected: c.job.WriteID, job: stored(next)}); !ok {
				t.Fatal("the swap was refused")
			}
			if present, _ := s.get(c.job.Name); present != nil {
				t.Errorf("the forgotten job is still there: %+v", present)
			}
		})
	}
}
