package keystore

import (
	"reflect"
	"testing"
	"time"
)

// A live attempt that finds no record creates it again, with the same id and in
// the state that its report gives it.
func TestRecoverCreatesTheJobAgain(t *testing.T) {
	t.Parallel()
	for _, last := range []*Job{running(), reported(t, running(), timedOut(1))} {
		for _, c := range []struct {
			report Report
			effect map[AttemptState]Effect
			state  map[AttemptState]AttemptState
		}{
			{renewal(1), map[AttemptState]Effect{AttemptStarting: EffectRenewed}, map[AttemptState]AttemptState{AttemptStarting: AttemptStarting, AttemptUnknown: AttemptUnknown}},
			{final(1, "x"), map[AttemptState]Effect{AttemptStarting: EffectWon, AttemptUnknown: EffectWon}, map[AttemptState]AttemptState{AttemptStarting: AttemptSucceeded, AttemptUnknown: AttemptSucceeded}},
			{failed(1), map[AttemptState]Effect{AttemptStarting: EffectFailed, AttemptUnknown: EffectFailed}, map[AttemptState]AttemptState{AttemptStarting: AttemptFailed, AttemptUnknown: AttemptFailed}},
			{timedOut(1), map[AttemptState]Effect{AttemptStarting: EffectUnknown}, map[AttemptState]AttemptState{AttemptStarting: AttemptUnknown, AttemptUnknown: AttemptUnknown}},
			{unknown(1), map[AttemptState]Effect{AttemptStarting: EffectUnknown, AttemptUnknown: EffectUnknown}, map[AttemptState]AttemptState{AttemptStarting: AttemptUnknown, AttemptUnknown: AttemptUnknown}},
		} {
			was := last.Attempt(tok(1)).State
			same := unchanged(t, last)
			s := Recover(nil, last, c.report)
			same()
			if s.Next == nil || !s.Recreates || !s.Recovers || s.Effect != c.effect[was] {
				t.Errorf("%s, outcome %d: got %+v", was, c.report.Outcome, s)
				continue
			}
			next := stored(s.Next)
			checkRecord(t, next)
			if next.ID != last.ID || next.Attempt(tok(1)).State != c.state[was] {
				t.Errorf("%s, outcome %d: got %+v", was, c.report.Outcome, next)
			}
		}
	}
	// It can be a lost write that is missing, and the record of before still be
	// gone: a report that says nothing new brings the record back all the same.
	again := Recover(nil, reported(t, running(), timedOut(1)), timedOut(1))
	if again.Next == nil || !again.Next.WriteID.IsZero() {
		t.Errorf("got %+v", again)
	}
}

// present is the job as a store holds it that lost attempt 2.
func lostSecond(t *testing.T) (present, last *Job) {
	t.Helper()
	present = reported(t, running(), failed(1))
	return present, started(present, 2, after(time.Minute))
}

// A live attempt that finds its own job without it, with nothing in its way, is
// added with its outcome.
func TestRecoverAddsTheAttempt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		report  Report
		state   AttemptState
		expires Time
	}{
		{renewal(2), AttemptStarting, 0},
		{timedOut(2), AttemptUnknown, 0},
		{unknown(2), AttemptUnknown, 0},
		{failed(2).on(after(time.Hour)), AttemptFailed, after(time.Second).Add(retention)}, // opened by attempt 1
		{final(2, "x").on(after(time.Hour)), AttemptSucceeded, after(time.Hour).Add(retention)},
	} {
		present, last := lostSecond(t)
		samePresent, sameLast := unchanged(t, present), unchanged(t, last)
		s := Recover(present, last, c.report)
		samePresent()
		sameLast()
		if s.Next == nil || s.Recreates || !s.Recovers {
			t.Fatalf("outcome %d: got %+v", c.report.Outcome, s)
		}
		next := stored(s.Next)
		checkRecord(t, next)
		a := next.Attempt(tok(2))
		if a == nil || a.State != c.state || a.Number != 2 || len(next.Attempts) != 2 || next.Expires != c.expires {
			t.Fatalf("outcome %d: got %+v", c.report.Outcome, next)
		}
		if a.State == AttemptSucceeded && next.CompletedBy != tok(2) {
			t.Errorf("the answer did not take the slot: %+v", next)
		}
		if !reflect.DeepEqual(next.Attempts[0], present.Attempts[0]) {
			t.Error("the recovery changed another attempt")
		}
	}
}

// An attempt added again can win later on: it has the version that the job has now.
func TestRecoveredAttemptCanStillWin(t *testing.T) {
	t.Parallel()
	present, last := lostSecond(t)
	last.Version, last.Attempts[1].Version = 9, 9
	next := stored(Recover(present, last, timedOut(2)).Next)
	if s := next.Report(final(2, "x")); s.Effect != EffectWon {
		t.Errorf("got %s", s.Effect)
	}
	// The numbers of a record that lost attempts start again at what it has.
	far := started(last, 3, after(time.Minute))
	s := Recover(present, far, renewal(3))
	if a := s.Next.Attempt(tok(3)); a.Number != 2 {
		t.Errorf("number %d", a.Number)
	}
}

func TestRecoverLeavesNoRoom(t *testing.T) {
	t.Parallel()
	present, last := lostSecond(t)
	late := after(time.Minute).Add(retention) + 1
	other := stored(present)
	other.ID = present.Name.String() + ".ffffffff"
	isUnknown := reported(t, last, timedOut(2))
	beaten := reported(t, started(isUnknown, 3, after(time.Minute)), final(3, "x"))
	for _, c := range []struct {
		name          string
		present, last *Job
		at            Time
	}{
		{"another job has the name", other, last, 0},
		{"another attempt took the slot", reported(t, started(present, 3, epoch), final(3, "x")), last, 0},
		{"another attempt is running", started(present, 3, epoch), last, 0},
		{"another attempt is unknown", reported(t, started(present, 3, epoch), unknown(3)), last, 0},
		{"older than the retention, no record", nil, last, late},
		{"older than the retention", present, last, late},
		{"its gateway saw it cancelled, no record", nil, resolved(t, isUnknown, 2, AttemptCancelled), 0},
		{"its gateway saw it cancelled", present, resolved(t, isUnknown, 2, AttemptCancelled), 0},
		{"its gateway saw it resolved failed", nil, resolved(t, isUnknown, 2, AttemptFailed), 0},
		{"its gateway saw it resolved succeeded", nil, resolved(t, isUnknown, 2, AttemptSucceeded), 0},
		{"its gateway saw it discarded", nil, beaten, 0},
		{"its gateway wrote it failed", nil, reported(t, last, failed(2)), 0},
		{"its gateway wrote it succeeded", nil, reported(t, last, final(2, "x")), 0},
		{"its gateway never knew it", nil, present, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range []Report{renewal(2), final(2, "late"), failed(2), timedOut(2), unknown(2)} {
				if c.at != 0 {
					r.At = c.at
				}
				s := Recover(c.present, c.last, r)
				if s.Effect != EffectLost || s.Next != nil || s.Recovers || s.Recreates {
					t.Errorf("outcome %d: got %+v", r.Outcome, s)
				}
			}
		})
	}
	// In the last millisecond of the retention it is still brought back.
	if s := Recover(nil, last, final(2, "x").on(late-1)); !s.Recreates {
		t.Errorf("got %+v", s)
	}
}

// What a recovery adds to a long history is trimmed like any other start, and a
// number that only looks dropped is told from one that was.
func TestRecoverIntoALongHistory(t *testing.T) {
	t.Parallel()
	present := longHistory(t, 40)
	last := started(present, 41, epoch)
	s := Recover(present, last, timedOut(41))
	if s.Next == nil {
		t.Fatalf("got %+v", s)
	}
	checkNumbers(t, s.Next, append([]int{1}, upTo(26, 41)...)...)
	checkRecord(t, stored(s.Next))
}

// A failover's write says two things. Where the store has lost it, the attempt that
// had failed is no obstacle to the one that followed.
func TestRecoverAfterALostFailover(t *testing.T) {
	t.Parallel()
	last := stored(running().FailOver(failed(1), next(2), 0).Next)
	for name, present := range map[string]*Job{
		"running": running(),
		"lapsed":  stored(running().Lapse(after(lease))),
		"unknown": reported(t, running(), timedOut(1)),
	} {
		for _, c := range []struct {
			report Report
			state  AttemptState
		}{{final(2, "x"), AttemptSucceeded}, {failed(2), AttemptFailed}, {unknown(2), AttemptUnknown}, {renewal(2), AttemptStarting}} {
			same := unchanged(t, present)
			s := Recover(present, last, c.report)
			same()
			if s.Next == nil || !s.Recovers {
				t.Errorf("%s, outcome %d: got %+v", name, c.report.Outcome, s)
				continue
			}
			j := stored(s.Next)
			checkRecord(t, j)
			if a, b := j.Attempt(tok(1)), j.Attempt(tok(2)); a.State != AttemptFailed || b.State != c.state {
				t.Errorf("%s, outcome %d: %s, then %s", name, c.report.Outcome, a.State, b.State)
			}
		}
	}
	// Somebody else's attempt still is one.
	if s := Recover(started(running(), 3, epoch), last, final(2, "x")); s.Effect != EffectLost || s.Next != nil {
		t.Errorf("beside another one: got %+v", s)
	}
}
