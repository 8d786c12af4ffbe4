package keystore

import (
	"fmt"
	"testing"
	"time"
)

func next(n byte) NewAttempt {
	s := starts(n, after(time.Second))
	s.Provider = "second"
	return s
}

// A failed attempt and the next one that is starting are one write, and only
// where the attempt had been starting and nothing else is unresolved.
func TestFailOver(t *testing.T) {
	t.Parallel()
	racing := func(n byte, at time.Duration) *Job { return started(running(), n, after(at)) }
	for name, c := range map[string]struct {
		job    *Job
		report Report
		max    int
		starts bool
		effect Effect
	}{
		"after a proof":             {running(), failed(1), 0, true, EffectFailed},
		"unknown":                   {running(), unknown(1), 0, false, EffectUnknown},
		"unknown, racing":           {running(), unknown(1), 3, false, EffectUnknown},
		"final":                     {running(), final(1, "x"), 0, false, EffectWon},
		"proof after unknown":       {reported(t, running(), timedOut(1)), failed(1), 0, false, EffectFailed},
		"lapsed meanwhile":          {stored(running().Lapse(after(lease))), failed(1).on(after(lease)), 0, false, EffectFailed},
		"resolved meanwhile":        {resolved(t, reported(t, running(), timedOut(1)), 1, AttemptFailed), failed(1), 0, false, EffectEvidence},
		"cancelled meanwhile":       {resolved(t, reported(t, running(), timedOut(1)), 1, AttemptCancelled), failed(1), 0, false, EffectDiscarded},
		"a sibling won":             {reported(t, racing(2, 0), final(2, "x")), failed(1), 3, false, EffectEvidence},
		"beside a running sibling":  {racing(2, 0), failed(1), 0, false, EffectFailed},
		"on a racing route":         {racing(2, 0), failed(1), 3, true, EffectFailed},
		"on a racing route, full":   {racing(2, 0), failed(1), 2, false, EffectFailed},
		"beside an unknown sibling": {reported(t, racing(2, 0), unknown(2)), failed(1), 0, false, EffectFailed},
		"raced, and one unknown":    {reported(t, racing(2, 0), unknown(2)), failed(1), 3, true, EffectFailed},
		"its provider is busy":      {stored(running().Start(next(2))), failed(1), 3, false, EffectFailed},
		"no such attempt":           {running(), failed(9), 3, false, EffectLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same := unchanged(t, c.job)
			s := c.job.FailOver(c.report, next(7), c.max)
			same()
			if s.Starts != c.starts || s.Effect != c.effect {
				t.Fatalf("starts %v with effect %s, want %v with %s", s.Starts, s.Effect, c.starts, c.effect)
			}
			if s.Next == nil {
				return
			}
			j := stored(s.Next)
			checkRecord(t, j)
			a := j.Attempt(tok(7))
			if (a != nil) != c.starts {
				t.Fatalf("the next attempt: %+v", a)
			}
			if !c.starts {
				return
			}
			if f := j.Attempt(tok(1)); f.State != AttemptFailed || f.Ended.IsZero() || f.Reason != "never sent" {
				t.Errorf("the failed attempt: %+v", f)
			}
			if a.State != AttemptStarting || a.Provider != "second" || a.Version != j.Version || a.Number != c.job.AttemptCount()+1 {
				t.Errorf("the next attempt: %+v", a)
			}
			if shares := c.max > 0; (j.Version == c.job.Version) != shares {
				t.Errorf("version %d after %d", j.Version, c.job.Version)
			}
			if !j.Expires.IsZero() {
				t.Error("it expires")
			}
			won := j.Report(final(7, "of the second"))
			if won.Effect != EffectWon || won.Next.CompletedBy != tok(7) {
				t.Errorf("its commit: %s", won.Effect)
			}
		})
	}
}

// A racing request adds a sibling beside its own attempt, be it running or
// unknown, as long as there is room and nobody has won.
func TestStartSibling(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job    *Job
		of     byte
		max    int
		starts bool
	}{
		"running":                  {running(), 1, 2, true},
		"unknown":                  {reported(t, running(), timedOut(1)), 1, 2, true},
		"lapsed":                   {stored(running().Lapse(after(lease))), 1, 2, true},
		"full":                     {running(), 1, 1, false},
		"the route does not race":  {running(), 1, 0, false},
		"failed":                   {reported(t, running(), failed(1)), 1, 3, false},
		"resolved":                 {resolved(t, reported(t, running(), timedOut(1)), 1, AttemptCancelled), 1, 3, false},
		"completed":                {reported(t, running(), final(1, "x")), 1, 3, false},
		"beaten":                   {reported(t, started(running(), 2, epoch), final(2, "x")), 1, 3, false},
		"the other one has failed": {reported(t, started(running(), 2, epoch), failed(1)), 2, 3, true},
		"its provider is running":  {stored(running().Start(next(2))), 1, 3, false},
		"its provider is unknown":  {reported(t, stored(running().Start(next(2))), unknown(2)), 1, 3, false},
		"its provider has failed":  {reported(t, stored(running().Start(next(2))), failed(2)), 1, 3, true},
		"lost":                     {running(), 9, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same := unchanged(t, c.job)
			sibling := c.job.StartSibling(tok(c.of), next(7), c.max)
			same()
			if (sibling != nil) != c.starts {
				t.Fatalf("got %+v", sibling)
			}
			if sibling == nil {
				return
			}
			j := stored(sibling)
			checkRecord(t, j)
			if a := j.Attempt(tok(7)); a == nil || a.State != AttemptStarting || a.Version != c.job.Version || j.Version != c.job.Version {
				t.Errorf("got %+v, version %d after %d", a, j.Version, c.job.Version)
			}
			// Either may win, and then the other one is discarded in the same write.
			for winner, loser := range map[byte]byte{c.of: 7, 7: c.of} {
				s := j.Report(final(winner, fmt.Sprint("of ", winner)))
				if s.Effect != EffectWon || s.Next.Attempt(tok(loser)).State != AttemptDiscarded {
					t.Fatalf("%d wins: %s, %d is %s", winner, s.Effect, loser, s.Next.Attempt(tok(loser)).State)
				}
				late := stored(s.Next).Report(final(loser, fmt.Sprint("of ", loser)))
				if late.Effect != EffectEvidence || late.Next.CompletedBy != tok(winner) || late.Next.Attempt(tok(loser)).Ended.IsZero() {
					t.Errorf("%d comes late: %s", loser, late.Effect)
				}
			}
		})
	}
}

// An ambiguous failover keeps the truth of the attempt that failed, its violation
// included, and its own attempt is never dispatched.
func TestAbortOfAFailoverKeepsTheViolation(t *testing.T) {
	t.Parallel()
	before := running()
	r := failed(1)
	r.Violation = &Violation{Path: "/id", Expected: "string", Found: "number"}
	written := stored(before.FailOver(r, next(2), 0).Next)
	claim := AbortedClaim{Token: tok(2), Written: written, Expected: before.WriteID}
	renewed := reported(t, before, renewal(1))
	for name, present := range map[string]*Job{"landed": written, "may still land": before, "lost to another write": renewed} {
		j, create := claim.Next(present, after(2*time.Minute))
		if j == nil || create {
			t.Fatalf("%s: got %v, %v", name, j, create)
		}
		j = stored(j)
		checkRecord(t, j)
		a := j.Attempt(tok(1))
		if a.State != AttemptFailed || a.Violation == nil || *a.Violation != *r.Violation {
			t.Errorf("%s: the failed attempt is %+v", name, a)
		}
		if b := j.Attempt(tok(2)); b != nil && !b.neverDispatched() {
			t.Errorf("%s: the aborted attempt is %+v", name, b)
		}
		if j.State(after(2*time.Minute)) != JobOpen {
			t.Errorf("%s: the job is %s", name, j.State(after(2*time.Minute)))
		}
	}
}
