package keystore

import (
	"testing"
	"time"
)

// judged is one situation with the verdicts on a fresh request's first claim,
// on one that only reads, and on a first claim of a racing route.
type judged struct {
	name                string
	job                 *Job
	claim               Claim
	now                 Time
	first, reads, races Verdict
}

const maxRacing = 3

func (c judged) check(t *testing.T) {
	t.Helper()
	claim := c.claim
	if claim.Token.IsZero() {
		claim.Token = tok(99)
	}
	if claim.Fingerprints == nil {
		claim.Fingerprints = []Fingerprint{fingerprint(1, "pay 10")}
	}
	now := c.now
	if now == 0 {
		now = after(time.Second)
	}
	for _, variant := range []struct {
		what  string
		first bool
		most  int
		want  Verdict
	}{
		{"first claim", true, 0, c.first},
		{"reader", false, 0, c.reads},
		{"racing first claim", true, maxRacing, c.races},
		{"racing reader", false, maxRacing, c.reads},
	} {
		claim.First, claim.MaxAttempts = variant.first, variant.most
		if got := Judge(c.job, claim, now); got != variant.want {
			t.Errorf("%s: got %q, want %q", variant.what, got, variant.want)
		}
	}
}

// TestCL01JudgeEveryRule goes through the rules in their order. Each row holds a
// record on which a later rule would speak too, so that it fails if the order
// changes.
func TestCL01JudgeEveryRule(t *testing.T) {
	t.Parallel()
	lapsed := after(lease)
	otherInput := Claim{Fingerprints: []Fingerprint{fingerprint(1, "pay 99")}}
	otherRecipe := Claim{Fingerprints: []Fingerprint{fingerprint(2, "pay 10"), fingerprint(3, "pay 10")}}
	otherSettings := Claim{Fingerprints: []Fingerprint{withSettings(fingerprint(1, "pay 10"), "json"), withSettings(fingerprint(1, "pay 99"), "x")}}
	mine := func(c Claim) Claim { c.Token = tok(1); return c }
	calledBy := func(number int, token byte) Claim { return Claim{Caller: Caller{number, tok(token).Mark()}} }
	rewritten := calledBy(1, 1)
	rewritten.Fingerprints = otherRecipe.Fingerprints

	isUnknown := reported(t, running(), timedOut(1))
	isOpen := reported(t, running(), failed(1))
	isCompleted := reported(t, running(), final(1, "x"))
	isCancelled := resolved(t, isUnknown, 1, AttemptCancelled)
	siblingRuns := started(isUnknown, 2, after(time.Second))
	threeUnknown := reported(t, started(reported(t, siblingRuns, timedOut(2)), 3, after(time.Second)), timedOut(3))

	for _, c := range []judged{
		{name: "no record", first: Create, reads: RecordLost, races: Create},

		{name: "own and live", job: running(), claim: mine(otherInput), first: Own, reads: Own, races: Own},
		{name: "own but lapsed", job: running(), claim: mine(Claim{}), now: lapsed, first: OwnNotLive, reads: OwnNotLive, races: OwnNotLive},
		{name: "own but unknown", job: isUnknown, claim: mine(Claim{}), first: OwnNotLive, reads: OwnNotLive, races: OwnNotLive},
		{name: "own but failed", job: isOpen, claim: mine(Claim{}), first: OwnNotLive, reads: OwnNotLive, races: OwnNotLive},
		{name: "own but cancelled", job: isCancelled, claim: mine(Claim{}), first: OwnNotLive, reads: OwnNotLive, races: OwnNotLive},
		{name: "own but succeeded", job: isCompleted, claim: mine(Claim{}), first: OwnNotLive, reads: OwnNotLive, races: OwnNotLive},
		{
			name: "own but discarded", job: reported(t, siblingRuns, final(2, "x")), claim: mine(Claim{}),
			first: OwnNotLive, reads: OwnNotLive, races: OwnNotLive,
		},

		{name: "called by its own attempt", job: running(), claim: calledBy(1, 1), first: Loop, reads: Loop, races: Loop},
		{name: "called by its own attempt, rewritten", job: running(), claim: rewritten, first: Loop, reads: Loop, races: Loop},
		{name: "called by its own lapsed attempt", job: running(), claim: calledBy(1, 1), now: lapsed, first: Loop, reads: Loop, races: Loop},
		{name: "called by its own unknown attempt", job: isUnknown, claim: calledBy(1, 1), first: Loop, reads: Loop, races: Loop},
		{name: "called by its second attempt", job: siblingRuns, claim: calledBy(2, 2), first: Loop, reads: Loop, races: Loop},
		{name: "called by an attempt that has failed", job: isOpen, claim: calledBy(1, 1), first: Start, reads: NotExecuted, races: Start},
		{name: "called by the attempt that won", job: isCompleted, claim: calledBy(1, 1), first: Replay, reads: Replay, races: Replay},
		{name: "called by another job's attempt", job: running(), claim: calledBy(1, 7), first: Wait, reads: Wait, races: Wait},
		{name: "called by its attempt under another number", job: running(), claim: calledBy(2, 1), first: Wait, reads: Wait, races: Wait},

		{name: "other input while running", job: running(), claim: otherInput, first: Conflict, reads: Conflict, races: Conflict},
		{name: "other input while lapsed", job: running(), claim: otherInput, now: lapsed, first: Conflict, reads: Conflict, races: Conflict},
		{name: "other input on unknown", job: isUnknown, claim: otherInput, first: Conflict, reads: Conflict, races: Conflict},
		{name: "other input on open", job: isOpen, claim: otherInput, first: Conflict, reads: Conflict, races: Conflict},
		{name: "other input on completed", job: isCompleted, claim: otherInput, first: Conflict, reads: Conflict, races: Conflict},
		{name: "recipe not known", job: isOpen, claim: otherRecipe, first: UnknownRecipe, reads: UnknownRecipe, races: UnknownRecipe},
		{name: "recipe not known on completed", job: isCompleted, claim: otherRecipe, first: UnknownRecipe, reads: UnknownRecipe, races: UnknownRecipe},
		{name: "settings not known", job: isOpen, claim: otherSettings, first: UnknownRecipe, reads: UnknownRecipe, races: UnknownRecipe},
		{name: "settings not known on completed", job: isCompleted, claim: otherSettings, first: UnknownRecipe, reads: UnknownRecipe, races: UnknownRecipe},
		{
			name: "other input by the record's settings", job: settingsOf(isCompleted, "json"),
			claim: Claim{Fingerprints: []Fingerprint{fingerprint(1, "pay 10"), withSettings(fingerprint(1, "pay 99"), "json")}},
			first: Conflict, reads: Conflict, races: Conflict,
		},
		{
			name: "same input by the record's settings only", job: settingsOf(isCompleted, "json"),
			claim: Claim{Fingerprints: []Fingerprint{fingerprint(1, "pay 99"), withSettings(fingerprint(1, "pay 10"), "json")}},
			first: Replay, reads: Replay, races: Replay,
		},
		{
			name: "one of several recipes matches", job: isCompleted,
			claim: Claim{Fingerprints: []Fingerprint{fingerprint(2, "pay 10"), fingerprint(1, "pay 10")}},
			first: Replay, reads: Replay, races: Replay,
		},

		{name: "completed", job: isCompleted, first: Replay, reads: Replay, races: Replay},
		{name: "completed, long after the lease", job: isCompleted, now: after(time.Hour), first: Replay, reads: Replay, races: Replay},
		{name: "running", job: running(), first: Wait, reads: Wait, races: Wait},
		{name: "running in the lease's last millisecond", job: running(), now: lapsed - 1, first: Wait, reads: Wait, races: Wait},
		{name: "a sibling runs beside an unknown one", job: siblingRuns, first: Wait, reads: Wait, races: Wait},
		{name: "lapsed", job: running(), now: lapsed, first: Lapsed, reads: Lapsed, races: StartSibling},
		{name: "unknown", job: isUnknown, first: Blocked, reads: Blocked, races: StartSibling},
		{name: "as many attempts as the route may race", job: threeUnknown, first: Blocked, reads: Blocked, races: Blocked},
		{
			name: "as many attempts, one lapsed", now: after(2 * lease), races: Lapsed, first: Lapsed, reads: Lapsed,
			job: started(reported(t, siblingRuns, timedOut(2)), 3, after(time.Second)),
		},
		{name: "open", job: isOpen, first: Start, reads: NotExecuted, races: Start},
		{name: "open after a cancellation", job: isCancelled, first: Start, reads: NotExecuted, races: Start},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.job != nil {
				checkRecord(t, c.job)
			}
			c.check(t)
		})
	}
}

// A lease that is missing says nothing about the gateway behind it. Whoever took
// it for a lapsed one would run the request beside a call that is still going on.
func TestCL03MissingLeaseIsHeld(t *testing.T) {
	t.Parallel()
	j := running()
	j.Attempts[0].Lease = 0
	for _, now := range []Time{after(time.Second), after(lease), after(365 * 24 * time.Hour)} {
		judged{job: j, now: now, first: Wait, reads: Wait, races: Wait}.check(t)
		if got := j.State(now); got != JobRunning {
			t.Errorf("at %v the job is %s, want running", now.Std(), got)
		}
		if j.Lapse(now) != nil {
			t.Errorf("at %v the attempt was written down as unknown", now.Std())
		}
	}
	// Nobody writes such a record, but whoever meets one has to be able to judge it.
	j.WriteID = WriteID{1}
	if got, err := DecodeRecord(j.Name, encoded(t, j)); err != nil || got.State(after(time.Hour)) != JobRunning {
		t.Errorf("a record without a lease was read as %+v, %v", got, err)
	}
}

// The end of a lease, however long ago, never makes a job open.
func TestCL06LapsedLeaseIsUnknownNeverFree(t *testing.T) {
	t.Parallel()
	j := running()
	for _, now := range []Time{after(lease), after(listen), after(2 * retention), after(1000 * retention)} {
		if got := j.State(now); got != JobUnknown {
			t.Errorf("at %v the job is %s, want unknown", now.Std(), got)
		}
		next := j.Lapse(now)
		if next == nil || next.Attempts[0].State != AttemptUnknown || next.Attempts[0].Reason != ReasonLapsed {
			t.Fatalf("at %v the lapsed lease was not written down: %+v", now.Std(), next)
		}
		if !next.Expires.IsZero() {
			t.Errorf("the unknown job expires at %v", next.Expires.Std())
		}
		next = stored(next)
		checkRecord(t, next)
		judged{job: next, now: now, first: Blocked, reads: Blocked, races: StartSibling}.check(t)
		if next.Lapse(now) != nil {
			t.Error("a lapse was written down twice")
		}
	}
	if j.Lapse(after(lease)-1) != nil {
		t.Error("a live lease lapsed")
	}
}

// One who has waited meets an open job or no record at all: it reads, and does
// not become the one that runs the request.
func TestCL10ReadersNeverStart(t *testing.T) {
	t.Parallel()
	isUnknown := reported(t, running(), timedOut(1))
	for _, j := range []*Job{
		nil, running(), isUnknown, reported(t, running(), failed(1)), reported(t, running(), final(1, "x")),
		resolved(t, isUnknown, 1, AttemptFailed), resolved(t, isUnknown, 1, AttemptCancelled),
	} {
		for _, most := range []int{0, 1, maxRacing} {
			for _, now := range []Time{after(time.Second), after(lease), after(retention)} {
				c := Claim{Token: tok(99), Fingerprints: []Fingerprint{fingerprint(1, "pay 10")}, MaxAttempts: most}
				switch v := Judge(j, c, now); v {
				case Create, Start, StartSibling, Own:
					t.Errorf("a reader was told to %s", v)
				}
			}
		}
	}
}

func TestJobStateOfEveryAttemptState(t *testing.T) {
	t.Parallel()
	for state, want := range map[AttemptState]JobState{
		AttemptStarting: JobRunning, AttemptUnknown: JobUnknown, AttemptFailed: JobOpen,
		AttemptCancelled: JobOpen, AttemptDiscarded: JobOpen,
	} {
		j := running()
		j.Attempts[0].State = state
		if got := j.State(after(time.Second)); got != want {
			t.Errorf("with a %s attempt the job is %s, want %s", state, got, want)
		}
		if got, want := j.Unresolved(), want == JobRunning || want == JobUnknown; got != want {
			t.Errorf("with a %s attempt: unresolved %v", state, got)
		}
	}
}

func TestLeaseEndOrdersTheIndex(t *testing.T) {
	t.Parallel()
	j := running()
	if got := IndexEntryOf(j); got != (IndexEntry{Name: j.Name, LeaseEnd: after(lease)}) {
		t.Errorf("running: %+v", got)
	}
	two := started(reported(t, j, timedOut(1)), 2, after(time.Minute))
	if got, want := two.LeaseEnd(), after(time.Minute).Add(lease); got != want {
		t.Errorf("with a running sibling: %v, want its lease's end %v", got, want)
	}
	both := reported(t, two, unknown(2))
	if got, want := both.LeaseEnd(), after(time.Minute).Add(lease); got != want {
		t.Errorf("unknown: %v, want the latest lease's end %v", got, want)
	}
	first := reported(t, j, renewal(1))
	first = started(reported(t, first, timedOut(1)), 2, after(time.Second))
	if got, want := first.LeaseEnd(), after(time.Second).Add(lease); got != want {
		t.Errorf("the running attempt's lease decides: %v, want %v", got, want)
	}
}
