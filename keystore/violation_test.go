package keystore

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func broken(n byte) Report {
	return Report{
		Token: tok(n), Outcome: OutcomeUnknown, At: after(time.Second), Reason: "the answer breaks the contract",
		Violation: &Violation{Path: "/amount", Expected: "integer", Found: "string"}, Kept: answer("odd"),
	}
}

// An answer that breaks the contract never takes the slot. The attempt is unknown,
// and keeps why and what.
func TestViolationIsEvidence(t *testing.T) {
	t.Parallel()
	for name, j := range map[string]*Job{
		"in time": running(), "late": reported(t, running(), timedOut(1)), "after its lease": stored(running().Lapse(after(lease))),
	} {
		j = reported(t, j, broken(1))
		checkRecord(t, j)
		a := j.Attempt(tok(1))
		if a.State != AttemptUnknown || !j.CompletedBy.IsZero() || j.Result != nil || !j.Expires.IsZero() || a.Ended.IsZero() {
			t.Errorf("%s: got %+v of %+v", name, a, j)
		}
		if !reflect.DeepEqual(a.Kept, answer("odd")) || *a.Violation != *broken(1).Violation {
			t.Errorf("%s: kept %+v, %+v", name, a.Kept, a.Violation)
		}
	}
}

// The kept answer is there for one decision only, and is dropped with any other.
func TestKeptAnswerIsDroppedWhenItIsNoLongerWanted(t *testing.T) {
	t.Parallel()
	kept := func(t *testing.T) *Job { return reported(t, started(running(), 2, epoch), broken(1)) }
	failing := broken(1)
	failing.Outcome = OutcomeFailed
	for name, j := range map[string]*Job{
		"a sibling won":        reported(t, kept(t), final(2, "x")),
		"resolved as failed":   resolved(t, kept(t), 1, AttemptFailed),
		"cancelled":            resolved(t, kept(t), 1, AttemptCancelled),
		"resolved otherwise":   resolved(t, kept(t), 1, AttemptSucceeded),
		"failed on violation":  reported(t, running(), failing),
		"broken after failed":  reported(t, resolved(t, reported(t, running(), timedOut(1)), 1, AttemptFailed), broken(1)),
		"broken and cancelled": reported(t, resolved(t, reported(t, running(), timedOut(1)), 1, AttemptCancelled), broken(1)),
		"broken after a winner": reported(t, reported(t, started(running(), 2, epoch), final(2, "x")),
			broken(1)),
	} {
		checkRecord(t, j)
		if a := j.Attempt(tok(1)); a.Kept != nil || a.Violation == nil {
			t.Errorf("%s: kept %+v, %+v", name, a.Kept, a.Violation)
		}
	}
}

func TestResolveWithTheKeptAnswer(t *testing.T) {
	t.Parallel()
	res := resolution(AttemptSucceeded)
	res.Kept = true
	j := reported(t, running(), broken(1))
	j.Attempts[0].Kept.Apart = &BodyRef{Token: tok(8), Size: 3, Sum: 1<<63 + 1} // as its store gave it
	same := unchanged(t, j)
	next, err := j.Resolve(tok(1), res, nil)
	same()
	if err != nil {
		t.Fatal(err)
	}
	if want := []BodyRef{*j.Attempts[0].Kept.Apart}; !reflect.DeepEqual(next.Unkept, want) {
		t.Errorf("its store is told of %v, want %v", next.Unkept, want)
	}
	next = stored(next)
	next.Unkept = nil // as the store gives it back
	checkRecord(t, next)
	if a := next.Attempt(tok(1)); a.Kept != nil || !a.Resolution.Kept || a.Violation == nil || next.CompletedBy != tok(1) {
		t.Errorf("got %+v", a)
	}
	if !reflect.DeepEqual(next.Result, answer("odd")) {
		t.Errorf("the result is %+v", next.Result)
	}

	whole := answer("odd")
	for name, c := range map[string]struct {
		kept  *Response
		given *Response
	}{
		"none":           {nil, nil},
		"two responses":  {whole, answer("other")},
		"not kept":       {&Response{Status: 200, Size: 3, NotKept: true}, nil},
		"not fetched":    {&Response{Status: 200, Size: 3, Apart: &BodyRef{Token: tok(8), Size: 3}}, nil},
		"a part of it":   {&Response{Status: 200, Size: 4, Body: []byte("odd")}, nil},
		"none but given": {nil, answer("other")},
	} {
		r := broken(1)
		r.Kept = c.kept
		next, err := reported(t, running(), r).Resolve(tok(1), res, c.given)
		if !errors.Is(err, ErrNotResolvable) || next != nil {
			t.Errorf("%s: got %v, %v", name, next, err)
		}
	}
}

// A violation's texts are bounded, and cut between characters.
func TestViolationIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", maxViolation)
	r := broken(1)
	r.Violation = &Violation{Path: "/" + long, Expected: long, Found: long[:maxViolation]}
	got := reported(t, running(), r).Attempt(tok(1)).Violation
	for _, s := range []string{got.Path, got.Expected} {
		if len(s) > maxViolation || !utf8.ValidString(s) || !strings.HasSuffix(s, "ü…") {
			t.Errorf("%d bytes: %q", len(s), s)
		}
	}
	if got.Found != r.Violation.Found {
		t.Error("what fits was cut")
	}
	if r.Violation.Expected != long {
		t.Error("the report was changed")
	}
}
