package keystore

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestReportTable: every state of an attempt, every report about it. The cells
// name the effect, the attempt's state after it, and "!" for a contradiction.
func TestReportTable(t *testing.T) {
	t.Parallel()
	const table = `
                                          | running          | final                | failed                | unknown, listening | unknown
starting                                  | renewed starting | won succeeded        | failed failed         | unknown unknown    | unknown unknown
starting, lapsed                          | renewed starting | won succeeded        | failed failed         | unknown unknown    | unknown unknown
starting beside an unknown one            | renewed starting | won succeeded        | failed failed         | unknown unknown    | unknown unknown
starting, version changed                 | renewed starting | discarded discarded  | failed failed         | unknown unknown    | unknown unknown
unknown, listening                        | none unknown     | won succeeded        | failed failed         | none unknown       | unknown unknown
unknown, lapsed                           | none unknown     | won succeeded        | failed failed         | none unknown       | unknown unknown
unknown, ended                            | none unknown     | won succeeded        | failed failed         | none unknown       | none unknown
unknown beside a running one              | none unknown     | won succeeded        | failed failed         | none unknown       | unknown unknown
unknown, version changed                  | none unknown     | discarded discarded  | failed failed         | none unknown       | unknown unknown
failed                                    | none failed      | none failed          | none failed           | none failed        | none failed
failed, next one runs                     | none failed      | none failed          | none failed           | none failed        | none failed
resolved failed                           | none failed      | won succeeded !      | evidence failed       | none failed        | evidence failed
resolved failed, sibling runs             | none failed      | won succeeded !      | evidence failed       | none failed        | evidence failed
resolved failed, next one runs            | none failed      | discarded discarded !| evidence failed       | none failed        | evidence failed
resolved failed, next one failed          | none failed      | discarded discarded !| evidence failed       | none failed        | evidence failed
resolved failed, slot taken               | none failed      | discarded discarded !| evidence failed       | none failed        | evidence failed
resolved failed, sibling took the slot    | none failed      | discarded discarded !| evidence failed       | none failed        | evidence failed
cancelled                                 | none cancelled   | discarded discarded !| discarded discarded   | none cancelled     | discarded discarded
cancelled, next one runs                  | none cancelled   | discarded discarded !| discarded discarded   | none cancelled     | discarded discarded
cancelled, slot taken                     | none cancelled   | discarded discarded !| discarded discarded   | none cancelled     | discarded discarded
succeeded                                 | none succeeded   | already won succeeded| already won succeeded | already won succeeded | already won succeeded
succeeded after an unknown                | none succeeded   | already won succeeded| already won succeeded | already won succeeded | already won succeeded
succeeded against a resolution            | none succeeded   | already won succeeded !| already won succeeded | already won succeeded | already won succeeded
resolved succeeded                        | none succeeded   | evidence succeeded ! | evidence succeeded !  | none succeeded     | evidence succeeded
resolved succeeded after its end          | none succeeded   | none succeeded !     | none succeeded !      | none succeeded     | none succeeded
discarded by a sibling                    | none discarded   | evidence discarded   | evidence discarded    | none discarded     | evidence discarded
discarded by a sibling, reported          | none discarded   | none discarded       | none discarded        | none discarded     | none discarded
discarded after a cancellation            | none discarded   | none discarded !     | none discarded        | none discarded     | none discarded
discarded after a resolution              | none discarded   | none discarded !     | none discarded        | none discarded     | none discarded
discarded by a sibling resolved succeeded | none discarded   | evidence discarded   | evidence discarded    | none discarded     | evidence discarded
`
	reports := []Report{renewal(1), final(1, "late"), failed(1), timedOut(1), unknown(1)}
	places := situations(t)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		name := strings.TrimSpace(cells[0])
		if name == "" || strings.HasPrefix(strings.TrimSpace(line), "|") {
			continue
		}
		j := places[name]
		if j == nil || len(cells) != 1+len(reports) {
			t.Fatalf("row %q: no such situation, or not one cell per report", name)
		}
		delete(places, name)
		for i, r := range reports {
			want := strings.TrimSpace(cells[i+1])
			t.Run(name+"/"+fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				checkReport(t, j, r.on(after(2*time.Hour)), want)
			})
		}
	}
	for name := range places {
		t.Errorf("the table has no row for %q", name)
	}
}

// checkReport applies a report and compares what it comes to with its cell, and
// with what holds of all cells.
func checkReport(t *testing.T, j *Job, r Report, want string) {
	t.Helper()
	if r.Outcome == OutcomeRunning {
		r.Lease = r.At.Add(lease)
	}
	same := unchanged(t, j)
	s := j.Report(r)
	same()
	next := j
	if s.Next != nil {
		if !s.Next.WriteID.IsZero() {
			t.Error("a transition's job has a write id before the caller drew one")
		}
		next = stored(s.Next)
		checkRecord(t, next)
	}
	before, a := j.Attempt(r.Token), next.Attempt(r.Token)
	got := strings.TrimSpace(s.Effect.String() + " " + a.State.String() + map[bool]string{true: " !"}[s.Contradicts])
	if want = strings.Join(strings.Fields(strings.ReplaceAll(want, "!", " !")), " "); got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	if s.Recreates || s.Recovers {
		t.Error("a report on a listed attempt says that the store lost it")
	}
	if writes := s.Effect != EffectNone && s.Effect != EffectAlreadyWon; writes != (s.Next != nil) {
		t.Errorf("effect %s with the next record %v", s.Effect, s.Next)
	}
	if s.Next == nil {
		return
	}
	won := s.Effect == EffectWon
	if won != (next.CompletedBy != j.CompletedBy) || (won && (next.CompletedBy != r.Token || !reflect.DeepEqual(next.Result, r.Response))) {
		t.Errorf("effect %s, the slot is %s with %+v", s.Effect, next.CompletedBy, next.Result)
	}
	if !won && next.Result != j.Result {
		t.Error("a report that did not win changed the result")
	}
	if grew := next.Version - j.Version; (grew == 1) != won || grew > 1 {
		t.Errorf("effect %s, version %d after %d", s.Effect, next.Version, j.Version)
	}
	for i := range next.Attempts {
		b := &next.Attempts[i]
		if b.Token == r.Token {
			continue
		}
		if discard := won && j.Attempts[i].Unresolved(); !discard && !reflect.DeepEqual(*b, j.Attempts[i]) {
			t.Errorf("a report on attempt 1 changed attempt %d", b.Number)
		} else if discard && (b.State != AttemptDiscarded || b.Reason != ReasonLostRace) {
			t.Errorf("the slot is taken, attempt %d is %s", b.Number, b.State)
		}
	}
	if s.Effect == EffectRenewed {
		if a.Lease != r.Lease || a.ListensUntil < r.Lease {
			t.Errorf("lease %v, listens until %v, want %v", a.Lease, a.ListensUntil, r.Lease)
		}
		return
	}
	if ends := r.Outcome != OutcomeUnknown || !r.Listening; ends != (a.Ended == r.At) {
		t.Errorf("ended %v, want it ended: %v", a.Ended, ends)
	}
	if a.Lease != before.Lease || a.Version != before.Version || a.Number != before.Number || a.Started != before.Started {
		t.Error("a report changed what the start had fixed")
	}
	if !reflect.DeepEqual(a.Resolution, before.Resolution) {
		t.Error("a report changed the resolution")
	}
}

// What a gateway saw is kept, whatever the report comes to; the words of a
// resolution and of a lost race stay.
func TestReportKeepsEvidence(t *testing.T) {
	t.Parallel()
	saw := Evidence{Upstream: "10.0.0.1:80", Hooked: true, Asked: 1, Connected: 2, Wrote: 1, FirstByte: 1, Status: 200, Size: 9}
	if !saw.Resent() || (&Evidence{Connected: 1}).Resent() {
		t.Error("two connections in one attempt mean a resend, one does not")
	}
	for name, j := range situations(t) {
		for _, r := range []Report{final(1, "late"), failed(1), timedOut(1), unknown(1)} {
			r.Evidence, r.Reason = saw, "what the gateway says"
			s := j.Report(r)
			if s.Next == nil {
				continue
			}
			a := s.Next.Attempt(tok(1))
			if a.Evidence != saw {
				t.Errorf("%s: evidence %+v", name, a.Evidence)
			}
			if s.Effect == EffectEvidence && a.Reason != j.Attempt(tok(1)).Reason {
				t.Errorf("%s: the reason of a state that stands became %q", name, a.Reason)
			} else if s.Effect != EffectEvidence && a.Reason != r.Reason {
				t.Errorf("%s: reason %q", name, a.Reason)
			}
		}
	}
}

// A shorter lease never replaces a longer one, or a renewal that overtook another
// would take life from the attempt.
func TestRenewalOnlyExtends(t *testing.T) {
	t.Parallel()
	j := reported(t, running(), renewal(1))
	for _, end := range []Time{0, after(lease), renewal(1).Lease} {
		r := renewal(1)
		r.Lease = end
		if s := j.Report(r); s.Next != nil || s.Effect != EffectNone {
			t.Errorf("a lease until %v replaced the one until %v", end, renewal(1).Lease)
		}
	}
	long := renewal(1)
	long.Lease = after(time.Hour)
	j = reported(t, j, long)
	if a := j.Attempt(tok(1)); a.ListensUntil != long.Lease {
		t.Errorf("the attempt is believed until %v and listens until %v", a.Lease, a.ListensUntil)
	}
}

// The same answer after a resolution as succeeded confirms it.
func TestSameAnswerConfirmsAResolution(t *testing.T) {
	t.Parallel()
	j := resolved(t, reported(t, running(), timedOut(1)), 1, AttemptSucceeded)
	for name, c := range map[string]struct {
		change      func(*Response)
		contradicts bool
	}{
		"the same":              {func(*Response) {}, false},
		"other headers":         {func(r *Response) { r.Header = nil }, false},
		"body not kept":         {func(r *Response) { r.Body, r.NotKept = nil, true }, false},
		"other status":          {func(r *Response) { r.Status = 500 }, true},
		"other size":            {func(r *Response) { r.Body, r.NotKept, r.Size = nil, true, 1 }, true},
		"other body, same size": {func(r *Response) { r.Body = []byte("RESOLVED") }, true},
	} {
		r := final(1, "resolved")
		c.change(r.Response)
		s := j.Report(r)
		if s.Contradicts != c.contradicts {
			t.Errorf("%s: contradicts %v", name, s.Contradicts)
		}
		if s.Effect != EffectEvidence || string(s.Next.Result.Body) != "resolved" {
			t.Errorf("%s: effect %s", name, s.Effect)
		}
	}
	r := final(1, "resolved")
	r.Response = nil
	if !j.Report(r).Contradicts {
		t.Error("no answer at all was taken for the same answer")
	}
}

// Racing siblings share a version: whoever finishes first wins, and only that one.
func TestRacingSiblingsOneWins(t *testing.T) {
	t.Parallel()
	race := started(reported(t, running(), timedOut(1)), 2, after(time.Second))
	race = started(reported(t, race, timedOut(2)), 3, after(2*time.Second))
	for first := byte(1); first <= 3; first++ {
		won := race.Report(final(first, "first"))
		if won.Effect != EffectWon {
			t.Fatalf("attempt %d: %s", first, won.Effect)
		}
		j := stored(won.Next)
		for late := byte(1); late <= 3; late++ {
			s := j.Report(final(late, "late"))
			want := EffectEvidence
			if late == first {
				want = EffectAlreadyWon
			}
			if s.Effect != want {
				t.Errorf("after %d, attempt %d: %s, want %s", first, late, s.Effect, want)
			}
			if s.Next != nil {
				j = stored(s.Next)
			}
			if j.CompletedBy != tok(first) || string(j.Result.Body) != "first" {
				t.Errorf("after %d, attempt %d: slot %s with %q", first, late, j.CompletedBy, j.Result.Body)
			}
			checkRecord(t, j)
		}
	}
}

// A reader that decides on an old copy gets nowhere: it would have to replace the
// write id that its copy has, and the record has moved on. What the machine makes
// of the record that is there now leaves the result alone.
func TestCL04TakeOverOnStaleSnapshot(t *testing.T) {
	t.Parallel()
	s := newSimStore()
	s.now = epoch
	j := running()
	s.apply(write{create: true, job: j})
	stale, _ := s.get(j.Name)
	done := reported(t, stale, final(1, "x"))
	if _, ok := s.apply(write{expected: stale.WriteID, job: done}); !ok {
		t.Fatal("the commit was refused")
	}

	takeOver := stored(stale.Lapse(after(lease)))
	present, ok := s.apply(write{expected: stale.WriteID, job: takeOver})
	if ok || present == nil || !reflect.DeepEqual(present.Result, done.Result) {
		t.Fatalf("the take-over was applied: %v, %+v", ok, present)
	}
	if present.Lapse(after(time.Hour)) != nil || present.State(after(time.Hour)) != JobCompleted {
		t.Error("the completed job lapsed")
	}
}

// A gateway that outlived its lease may turn its own unknown attempt into done,
// and nothing else; the record is always there.
func TestCL05LateGatewayTouchesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	isUnknown := stored(running().Lapse(after(lease)))
	alone := isUnknown.Report(final(1, "late"))
	if alone.Effect != EffectWon {
		t.Errorf("its own unknown: %s", alone.Effect)
	}
	movedOn := started(resolved(t, isUnknown, 1, AttemptFailed), 2, after(3*time.Minute))
	for _, r := range []Report{renewal(1), final(1, "late"), failed(1), timedOut(1), unknown(1)} {
		s := movedOn.Report(r.on(after(4 * time.Minute)))
		next := movedOn
		if s.Next != nil {
			next = s.Next
		}
		if a := next.Attempt(tok(2)); a.State != AttemptStarting || !next.CompletedBy.IsZero() || next.Expires != 0 {
			t.Errorf("report %d of the late gateway left the running attempt %s, slot %s, expiry %v",
				r.Outcome, a.State, next.CompletedBy, next.Expires)
		}
	}
}

// Fingerprint, owner and the rest of a job's identity survive whatever happens.
func TestCL12IdentityNeverChanges(t *testing.T) {
	t.Parallel()
	want := identity()
	check := func(what string, j *Job) {
		if j == nil {
			return
		}
		got := Job{
			Name: j.Name, ID: j.ID, Space: j.Space, Owner: j.Owner, KeySent: j.KeySent, Fingerprint: j.Fingerprint,
			Request: j.Request, Created: j.Created, Retention: j.Retention,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v", what, got)
		}
	}
	for name, j := range situations(t) {
		for _, r := range []Report{renewal(1), final(1, "late"), failed(1), timedOut(1), unknown(1)} {
			check(name, j.Report(r).Next)
			check(name+", lost", Recover(nil, running(), r).Next)
			check(name+", recovered", Recover(reported(t, running(), failed(1)), started(running(), 2, epoch), r).Next)
		}
		check(name, j.Start(starts(7, after(time.Hour))))
		check(name, j.Lapse(after(time.Hour)))
		forgotten, _ := j.Forget(after(time.Hour))
		check(name, forgotten)
		for _, state := range []AttemptState{AttemptSucceeded, AttemptFailed, AttemptCancelled} {
			next, _ := j.Resolve(tok(1), resolution(state), answer("r"))
			check(name, next)
		}
		aborted, _ := AbortedClaim{Token: tok(1), Written: running()}.Next(j, epoch)
		check(name, aborted)
	}
}

func TestReportOnAnAttemptThatIsNotListed(t *testing.T) {
	t.Parallel()
	if s := running().Report(final(9, "x")); s.Effect != EffectLost || s.Next != nil {
		t.Errorf("got %+v", s)
	}
}

// A taken slot refuses a commit by itself. In a record that our transitions made
// the version does so too; in one that a store mixed up it may not.
func TestCommitNeedsAnEmptySlot(t *testing.T) {
	t.Parallel()
	j := reported(t, started(reported(t, running(), timedOut(1)), 2, epoch), final(2, "two"))
	j.Attempts[0].State, j.Attempts[0].Version = AttemptUnknown, j.Version
	s := j.Report(final(1, "late"))
	if s.Effect != EffectDiscarded || s.Next.CompletedBy != tok(2) || string(s.Next.Result.Body) != "two" {
		t.Errorf("got %s, slot %s", s.Effect, s.Next.CompletedBy)
	}
}
