package keystore

import (
	"testing"
	"time"
)

func TestCL01FirstAttempt(t *testing.T) {
	t.Parallel()
	id := identity()
	// What the caller can't mean is not taken over from the identity.
	id.Version, id.Dropped, id.CompletedBy, id.Result, id.Expires = 7, 3, tok(9), answer("old"), after(time.Hour)
	id.Attempts, id.WriteID = []Attempt{{Token: tok(9)}}, NewWriteID()
	j := NewJob(id, starts(1, epoch))
	if !j.WriteID.IsZero() {
		t.Error("a transition's job has a write id before the caller drew one")
	}
	if j.Version != 1 || len(j.Attempts) != 1 || j.Dropped != 0 || !j.CompletedBy.IsZero() || j.Result != nil || j.Expires != 0 {
		t.Errorf("got %+v", j)
	}
	want := Attempt{
		Number: 1, Token: tok(1), Provider: "primary", State: AttemptStarting, Version: 1,
		Started: epoch, Lease: after(lease), ListensUntil: after(listen),
	}
	if got := j.Attempts[0]; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	checkRecord(t, stored(j))
}

// The version grows with a start, unless another attempt is starting or unknown
// after that write. That alone lets the late success of a resolved attempt in, or
// keeps it out.
func TestVersionGrowsWithAStartThatNothingElseShares(t *testing.T) {
	t.Parallel()
	isUnknown := reported(t, running(), timedOut(1))
	for _, c := range []struct {
		name string
		job  *Job
		want uint64
	}{
		{"after a failure", reported(t, running(), failed(1)), 2},
		{"after a resolved failure", resolved(t, isUnknown, 1, AttemptFailed), 2},
		{"after a cancellation", resolved(t, isUnknown, 1, AttemptCancelled), 2},
		{"beside an unknown one", isUnknown, 1},
		{"beside a lapsed one", running(), 1},
		{"beside one of two", reported(t, started(isUnknown, 2, epoch), failed(2)), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			same := unchanged(t, c.job)
			j := started(c.job, 3, after(time.Hour))
			same()
			a := j.Attempt(tok(3))
			if j.Version != c.want || a.Version != c.want {
				t.Errorf("job version %d, attempt's %d, want %d", j.Version, a.Version, c.want)
			}
			if a.Number != c.job.AttemptCount()+1 || j.LastAttempt() != a {
				t.Errorf("attempt number %d", a.Number)
			}
			if j.Expires != 0 {
				t.Errorf("a running job expires at %v", j.Expires.Std())
			}
			checkRecord(t, j)
		})
	}
}

// Failing over is one write: the provider before it failed, the next one starts.
func TestFailoverIsOneWrite(t *testing.T) {
	t.Parallel()
	j := started(running().Report(failed(1)).Next, 2, after(2*time.Second))
	checkRecord(t, j)
	if j.Attempts[0].State != AttemptFailed || j.Attempts[1].State != AttemptStarting || j.Version != 2 || j.Expires != 0 {
		t.Errorf("got %+v", j)
	}
	// On a racing route another sibling may be unknown at that moment.
	j = started(reported(t, running(), timedOut(1)), 2, epoch)
	j = started(j.Report(failed(2)).Next, 3, after(2*time.Second))
	checkRecord(t, j)
	if j.Version != 1 || j.Attempt(tok(3)).Version != 1 {
		t.Errorf("with an unknown sibling left: version %d", j.Version)
	}
}

// The write that adds a sibling beside a lapsed attempt says that it lapsed.
func TestStartWritesLapsedLeasesDown(t *testing.T) {
	t.Parallel()
	j := started(running(), 2, after(lease))
	if a := j.Attempt(tok(1)); a.State != AttemptUnknown || a.Reason != ReasonLapsed {
		t.Errorf("got %+v", a)
	}
	if !j.Attempt(tok(1)).Ended.IsZero() {
		t.Error("an attempt whose lease lapsed may still report, but has an end")
	}
	j = started(running(), 2, after(lease)-1)
	if a := j.Attempt(tok(1)); a.State != AttemptStarting {
		t.Errorf("a live lease lapsed: %+v", a)
	}
}
