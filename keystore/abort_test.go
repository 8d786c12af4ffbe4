package keystore

import (
	"reflect"
	"testing"
	"time"
)

const neverDispatched = ReasonNeverDispatched + ": the store did not answer"

// definite asserts that attempt n of the record ended as never dispatched and
// that the abort has nothing left to do about it.
func definite(t *testing.T, c AbortedClaim, j *Job, n byte) {
	t.Helper()
	checkRecord(t, j)
	a := j.Attempt(tok(n))
	if a == nil || a.State != AttemptFailed || a.Reason != neverDispatched || a.Ended.IsZero() {
		t.Fatalf("got %+v", a)
	}
	if next, _ := c.Next(j, after(time.Hour)); next != nil {
		t.Fatalf("the abort goes on: %+v", next)
	}
}

func abortOfCreate() AbortedClaim {
	return AbortedClaim{Token: tok(1), Written: running(), Reason: "the store did not answer"}
}

// abortOfFailover is that of a write by which attempt 1 failed and attempt 2 started.
func abortOfFailover() (c AbortedClaim, before *Job) {
	before = running()
	written := started(before.Report(failed(1)).Next, 2, after(time.Second))
	return AbortedClaim{Token: tok(2), Written: written, Expected: before.WriteID, Reason: "the store did not answer"}, before
}

func TestAbortOfACreateThatLanded(t *testing.T) {
	t.Parallel()
	c := abortOfCreate()
	isUnknown := reported(t, c.Written, timedOut(1))
	for name, present := range map[string]*Job{
		"starting": c.Written, "met as unknown": stored(c.Written.Lapse(after(lease))), "reported unknown": isUnknown,
	} {
		same := unchanged(t, present)
		next, create := c.Next(present, after(time.Minute))
		same()
		if next == nil || create {
			t.Fatalf("%s: got %+v, create %v", name, next, create)
		}
		if next.Expires != after(time.Minute).Add(retention) {
			t.Errorf("%s: the open job expires at %v", name, next.Expires.Std())
		}
		definite(t, c, stored(next), 1)
	}
}

// A create that is still on its way is shut out by a record that says the same.
func TestAbortOfACreateThatDidNotLand(t *testing.T) {
	t.Parallel()
	c := abortOfCreate()
	s := newSimStore()
	s.now = epoch
	next, create := c.Next(nil, after(time.Second))
	if next == nil || !create {
		t.Fatalf("got %+v, create %v", next, create)
	}
	tombstone := stored(next)
	definite(t, c, tombstone, 1)
	if _, created := s.apply(write{create: true, job: tombstone}); !created {
		t.Fatal("the record was not created")
	}
	present, created := s.apply(write{create: true, job: c.Written}) // the parked claim lands
	if created {
		t.Fatal("the parked claim was applied after the abort")
	}
	judged{job: present, first: Start, reads: NotExecuted, races: Start}.check(t)
}

// The parked create can also land between the abort's look and its write.
func TestAbortOfACreateThatLandsMeanwhile(t *testing.T) {
	t.Parallel()
	c := abortOfCreate()
	s := newSimStore()
	s.now = epoch
	next, _ := c.Next(nil, after(time.Second))
	s.apply(write{create: true, job: c.Written})
	present, created := s.apply(write{create: true, job: stored(next)})
	if created {
		t.Fatal("two records under one name")
	}
	next, create := c.Next(present, after(time.Second))
	if next == nil || create {
		t.Fatalf("got %+v, create %v", next, create)
	}
	next = stored(next)
	s.apply(write{expected: present.WriteID, job: next})
	present, _ = s.get(next.Name)
	definite(t, c, present, 1)
}

// Another request's record is there: a create can't land any more.
func TestAbortOfACreateThatLost(t *testing.T) {
	t.Parallel()
	c := abortOfCreate()
	other := stored(NewJob(identity(), starts(5, epoch)))
	if next, _ := c.Next(other, after(time.Second)); next != nil {
		t.Errorf("got %+v", next)
	}
}

func TestAbortOfASwapThatLanded(t *testing.T) {
	t.Parallel()
	c, _ := abortOfFailover()
	next, create := c.Next(c.Written, after(time.Minute))
	if next == nil || create {
		t.Fatalf("got %+v, create %v", next, create)
	}
	next = stored(next)
	definite(t, c, next, 2)
	if !reflect.DeepEqual(next.Attempt(tok(1)), c.Written.Attempt(tok(1))) {
		t.Errorf("attempt 1: %+v", next.Attempt(tok(1)))
	}
}

// The record that the swap expected is still there, so it may yet land. Writing
// that record under another id shuts it out, and keeps what else was true.
func TestAbortOfASwapThatMayStillLand(t *testing.T) {
	t.Parallel()
	c, before := abortOfFailover()
	s := newSimStore()
	s.now = epoch
	s.apply(write{create: true, job: before})
	next, create := c.Next(before, after(time.Minute))
	if next == nil || create {
		t.Fatalf("got %+v, create %v", next, create)
	}
	next = stored(next)
	if _, ok := s.apply(write{expected: before.WriteID, job: next}); !ok {
		t.Fatal("the rewrite was refused")
	}
	present, ok := s.apply(write{expected: c.Expected, job: c.Written}) // the parked swap lands
	if ok {
		t.Fatal("the parked claim was applied after the abort")
	}
	definite(t, c, present, 2)
	if a := present.Attempt(tok(1)); a.State != AttemptFailed || a.Reason != "never sent" {
		t.Errorf("the failure that the claim's write carried is lost: %+v", a)
	}
	judged{job: present, now: after(time.Minute), first: Start, reads: NotExecuted, races: Start}.check(t)
}

// The swap was to start an attempt of an open job. That goes on expiring when it
// did: an aborted claim is no reason to keep it longer.
func TestAbortKeepsTheExpiryOfAnOpenJob(t *testing.T) {
	t.Parallel()
	open := reported(t, running(), failed(1))
	written := started(open, 2, after(time.Hour))
	c := AbortedClaim{Token: tok(2), Written: written, Expected: open.WriteID, Reason: "the store did not answer"}
	next, _ := c.Next(open, after(2*time.Hour))
	next = stored(next)
	definite(t, c, next, 2)
	if next.Expires != open.Expires {
		t.Errorf("expires at %v, want %v", next.Expires.Std(), open.Expires.Std())
	}
}

// Somebody else wrote first: the swap can't land, but the provider before it
// failed all the same, and nobody else knows that.
func TestAbortOfASwapThatLostKeepsWhatIsTrue(t *testing.T) {
	t.Parallel()
	c, before := abortOfFailover()
	lapsed := stored(before.Lapse(after(lease)))
	same := unchanged(t, lapsed)
	next, create := c.Next(lapsed, after(time.Hour))
	same()
	if next == nil || create {
		t.Fatalf("got %+v, create %v", next, create)
	}
	next = stored(next)
	checkRecord(t, next)
	a := next.Attempt(tok(1))
	if a.State != AttemptFailed || a.Reason != "never sent" || next.Attempt(tok(2)) != nil {
		t.Errorf("got %+v", next)
	}
	if next.Expires != after(time.Hour).Add(retention) {
		t.Errorf("expires at %v", next.Expires.Std())
	}
	if again, _ := c.Next(next, after(2*time.Hour)); again != nil {
		t.Errorf("the abort goes on: %+v", again)
	}

	// Without anything to add it is definite at once.
	plain := AbortedClaim{Token: tok(2), Written: started(reported(t, running(), timedOut(1)), 2, epoch), Expected: NewWriteID()}
	if next, _ := plain.Next(reported(t, running(), timedOut(1)), epoch); next != nil {
		t.Errorf("got %+v", next)
	}
	// A resolution in the written record is not this gateway's own knowledge.
	ended := reported(t, running(), unknown(1))
	plain.Written = started(resolved(t, ended, 1, AttemptFailed), 2, epoch)
	if next, _ := plain.Next(ended, epoch); next != nil {
		t.Errorf("a resolution was recorded as a proof: %+v", next)
	}
}

// A swap expects a record; without one it can't land, and nothing is created.
func TestAbortOfASwapWithoutARecord(t *testing.T) {
	t.Parallel()
	c, _ := abortOfFailover()
	if next, create := c.Next(nil, after(time.Second)); next != nil || create {
		t.Errorf("got %+v, create %v", next, create)
	}
}

// An operator met the attempt as unknown and decided. The abort adds its
// gateway's last word, so that the job can be forgotten, and tells of a decision
// that was wrong.
func TestAbortMeetsAResolution(t *testing.T) {
	t.Parallel()
	c := abortOfCreate()
	isUnknown := stored(c.Written.Lapse(after(lease)))
	for state, want := range map[AttemptState]AttemptState{
		AttemptFailed: AttemptFailed, AttemptCancelled: AttemptDiscarded, AttemptSucceeded: AttemptSucceeded,
	} {
		present := resolved(t, isUnknown, 1, state)
		if got := c.Contradicts(present); got != (state == AttemptSucceeded) {
			t.Errorf("resolved as %s: contradicts %v", state, got)
		}
		next, create := c.Next(present, after(time.Hour))
		if next == nil || create {
			t.Fatalf("resolved as %s: got %+v, create %v", state, next, create)
		}
		next = stored(next)
		checkRecord(t, next)
		if a := next.Attempt(tok(1)); a.State != want || a.Ended.IsZero() {
			t.Errorf("resolved as %s: got %+v", state, a)
		}
		if next.CompletedBy != present.CompletedBy || next.Expires != present.Expires || next.MayReport(after(time.Hour)) {
			t.Errorf("resolved as %s: got %+v", state, next)
		}
		if again, _ := c.Next(next, after(2*time.Hour)); again != nil {
			t.Errorf("resolved as %s: the abort goes on", state)
		}
	}
	failover, before := abortOfFailover()
	wrong := resolved(t, stored(before.Lapse(after(lease))), 1, AttemptSucceeded)
	if !failover.Contradicts(wrong) {
		t.Error("resolved as succeeded, although its gateway knows that it failed")
	}
	if failover.Contradicts(nil) || failover.Contradicts(before) || failover.Contradicts(reported(t, before, final(1, "x"))) {
		t.Error("no resolution, no contradiction")
	}
}

// A sibling won while the abort was on its way.
func TestAbortMeetsATakenSlot(t *testing.T) {
	t.Parallel()
	race := started(reported(t, running(), timedOut(1)), 2, epoch)
	c := AbortedClaim{Token: tok(2), Written: race, Expected: NewWriteID()}
	won := reported(t, race, final(1, "x"))
	next, create := c.Next(won, after(time.Minute))
	if next == nil || create {
		t.Fatalf("got %+v, create %v", next, create)
	}
	next = stored(next)
	checkRecord(t, next)
	if a := next.Attempt(tok(2)); a.State != AttemptDiscarded || next.CompletedBy != tok(1) || next.MayReport(after(time.Minute)) {
		t.Errorf("got %+v", next)
	}
}

func TestAbortWithoutAReason(t *testing.T) {
	t.Parallel()
	c := abortOfCreate()
	c.Reason = ""
	if next, _ := c.Next(nil, epoch); next.Attempt(tok(1)).Reason != ReasonNeverDispatched {
		t.Errorf("got %q", next.Attempt(tok(1)).Reason)
	}
}
