package keystore

import (
	"testing"
	"time"
)

// The write that completes or opens a job fixes when it expires. Later writes
// keep that instant, or a job that is looked at often would never go.
func TestCL13ExpiryIsFixedByTheWriteThatSettles(t *testing.T) {
	t.Parallel()
	late := after(5 * time.Hour)
	isUnknown := reported(t, running(), timedOut(1))
	siblings := started(isUnknown, 2, epoch)
	for _, c := range []struct {
		name string
		job  *Job
		want Time
	}{
		{"running", running(), 0},
		{"renewed", reported(t, running(), renewal(1)), 0},
		{"unknown", isUnknown, 0},
		{"lapsed", stored(running().Lapse(late)), 0},
		{"unknown, ended", reported(t, running(), unknown(1).on(late)), 0},
		{"one of two failed", reported(t, siblings, failed(2)), 0},
		{"one of two resolved", resolved(t, siblings, 1, AttemptFailed), 0},
		{"open again and running", started(reported(t, running(), failed(1)), 2, late), 0},

		{"completed", reported(t, running(), final(1, "x")), after(time.Second).Add(retention)},
		{"completed, then a sibling's late answer", reported(t, siblings, final(2, "x"), final(1, "y").on(late)), after(time.Second).Add(retention)},
		{"opened by a failure", reported(t, running(), failed(1)), after(time.Second).Add(retention)},
		{"opened by a resolution", resolved(t, isUnknown, 1, AttemptFailed), resolution(0).At.Add(retention)},
		{"opened, then late evidence", reported(t, resolved(t, isUnknown, 1, AttemptFailed), failed(1).on(late)), resolution(0).At.Add(retention)},
		{"opened, then a late answer after a cancellation", reported(t, resolved(t, isUnknown, 1, AttemptCancelled), final(1, "x").on(late)), resolution(0).At.Add(retention)},
		{"resolved succeeded, then late evidence", reported(t, resolved(t, isUnknown, 1, AttemptSucceeded), final(1, "x").on(late)), resolution(0).At.Add(retention)},

		{"opened, then completed by a late answer", reported(t, resolved(t, isUnknown, 1, AttemptFailed), final(1, "x").on(late)), late.Add(retention)},
		{"opened, run again, opened again", reported(t, started(reported(t, running(), failed(1)), 2, after(time.Hour)), failed(2).on(late)), late.Add(retention)},
		{"opened by discarding after the job moved on", reported(t, movedOn(t), final(1, "x").on(late)), late.Add(retention)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			checkRecord(t, c.job)
			if c.job.Expires != c.want {
				t.Errorf("expires at %v, want %v", c.job.Expires.Std(), c.want.Std())
			}
		})
	}
}

// movedOn is a job whose version is not the one its unknown attempt started with.
func movedOn(t *testing.T) *Job {
	t.Helper()
	j := reported(t, running(), timedOut(1))
	j.Version++
	return j
}
