package keystore

import (
	"testing"
	"time"
)

// longHistory returns a job with n attempts, all failed but the given ones, which
// are unknown and still listened for.
func longHistory(t *testing.T, n byte, unresolved ...byte) *Job {
	t.Helper()
	j := running()
	for i := byte(1); i <= n; i++ {
		if i > 1 {
			j = started(j, i, epoch)
		}
		r := failed(i)
		for _, u := range unresolved {
			if u == i {
				r = timedOut(i)
			}
		}
		j = reported(t, j, r)
		checkRecord(t, j)
	}
	return j
}

func numbers(j *Job) (list []int) {
	for i := range j.Attempts {
		list = append(list, j.Attempts[i].Number)
	}
	return list
}

func checkNumbers(t *testing.T, j *Job, want ...int) {
	t.Helper()
	got := numbers(j)
	if len(got) != len(want) {
		t.Fatalf("attempts %v are listed, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("attempts %v are listed, want %v", got, want)
		}
	}
}

func upTo(from, to int) (list []int) {
	for i := from; i <= to; i++ {
		list = append(list, i)
	}
	return list
}

// Of a long history the first, the winner, the unresolved and the last ones stay;
// the rest is a count.
func TestTrim(t *testing.T) {
	t.Parallel()
	full := longHistory(t, 17)
	checkNumbers(t, full, upTo(1, 17)...)
	if full.Dropped != 0 || full.AttemptCount() != 17 {
		t.Errorf("dropped %d of %d", full.Dropped, full.AttemptCount())
	}

	j := longHistory(t, 40)
	checkNumbers(t, j, append([]int{1}, upTo(25, 40)...)...)
	if j.Dropped != 23 || j.AttemptCount() != 40 {
		t.Errorf("dropped %d, count %d", j.Dropped, j.AttemptCount())
	}
	if next := started(j, 41, epoch); next.LastAttempt().Number != 41 || next.AttemptCount() != 41 {
		t.Errorf("the next attempt has number %d of %d", next.LastAttempt().Number, next.AttemptCount())
	}

	j = longHistory(t, 40, 5, 9)
	checkNumbers(t, j, append([]int{1, 5, 9}, upTo(25, 40)...)...)
	if j.AttemptCount() != 40 {
		t.Errorf("count %d", j.AttemptCount())
	}
	// One of them wins: it is no longer unresolved, but stays listed.
	j = reported(t, j, final(5, "x"))
	c := stored(j)
	c.Attempts = append([]Attempt(nil), j.Attempts...)
	c.trim()
	checkNumbers(t, c, append([]int{1, 5}, upTo(25, 40)...)...)
	if c.AttemptCount() != 40 {
		t.Errorf("count %d", c.AttemptCount())
	}
	checkRecord(t, c)
}

// An attempt that was trimmed had been settled. Its late report must not bring it
// back as one that the store lost.
func TestLateReportOfATrimmedAttempt(t *testing.T) {
	t.Parallel()
	saw := longHistory(t, 2, 2) // what the gateway of attempt 2 knows
	j := longHistory(t, 2, 2)
	j = resolved(t, j, 2, AttemptCancelled)
	for i := byte(3); i <= 30; i++ {
		j = reported(t, started(j, i, epoch), failed(i))
	}
	if j.Attempt(tok(2)) != nil {
		t.Fatal("the attempt is still listed")
	}
	for _, r := range []Report{final(2, "late"), failed(2), unknown(2), timedOut(2), renewal(2)} {
		if s := j.Report(r); s.Effect != EffectLost || s.Next != nil {
			t.Errorf("report: %+v", s)
		}
		if s := Recover(j, saw, r); s.Effect != EffectLost || s.Next != nil {
			t.Errorf("recovery: %+v", s)
		}
	}
}

// The numbers around the edge of what is kept.
func TestTrimmedKnowsWhatWasDropped(t *testing.T) {
	t.Parallel()
	j := longHistory(t, 40)
	for n := 1; n <= 41; n++ {
		want := n >= 2 && n <= 24
		if got := j.trimmed(n); got != want {
			t.Errorf("attempt %d of 40: trimmed %v", n, got)
		}
	}
	if longHistory(t, 17).trimmed(1) || started(running(), 2, after(time.Hour)).trimmed(2) {
		t.Error("nothing was dropped")
	}
}
