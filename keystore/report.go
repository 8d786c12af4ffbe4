package keystore

import (
	"bytes"
	"slices"
)

// Outcome is what an attempt's gateway has to say of it.
type Outcome uint8

// The outcomes a gateway can report.
const (
	// OutcomeRunning: the attempt goes on; its lease is renewed.
	OutcomeRunning Outcome = iota + 1
	// OutcomeFinal: a complete answer that is to become the job's result.
	OutcomeFinal
	// OutcomeFailed: it is certain that no effect happened.
	OutcomeFailed
	// OutcomeUnknown: it may have been executed and nobody knows.
	OutcomeUnknown
)

// Report is what the gateway of an attempt says of it.
type Report struct {
	Token    Token
	Outcome  Outcome
	Response *Response // with OutcomeFinal
	// Violation says how the answer breaks the contract, and Kept is that answer;
	// with OutcomeFailed or OutcomeUnknown. Kept stays only if the attempt is unknown.
	Violation *Violation
	Kept      *Response
	Reason    string
	Evidence  Evidence
	At        Time // now, on the store's clock
	// Lease is the new end of the lease, with OutcomeRunning.
	Lease Time
	// Listening says, with OutcomeUnknown, that the gateway has given up waiting
	// but still listens: a late result may follow.
	Listening bool
}

// Effect is what a report, or a recovery, does to a job.
type Effect uint8

// The effects.
const (
	// EffectNone: the record already says so, or has nothing to learn from it.
	EffectNone Effect = iota
	// EffectRenewed: the lease was extended.
	EffectRenewed
	// EffectWon: the response takes the result slot.
	EffectWon
	// EffectAlreadyWon: the slot already names this attempt; the first write stands.
	EffectAlreadyWon
	// EffectFailed: the attempt is written down as failed.
	EffectFailed
	// EffectUnknown: the attempt is written down as unknown.
	EffectUnknown
	// EffectDiscarded: the attempt came too late. Its evidence is kept, its
	// response is not.
	EffectDiscarded
	// EffectEvidence: the state stands; only the evidence is added.
	EffectEvidence
	// EffectLost: the store has lost the attempt, and what is there now leaves
	// no room for it.
	EffectLost
)

// String returns the effect in words for logs.
func (e Effect) String() string {
	names := [...]string{"none", "renewed", "won", "already won", "failed", "unknown", "discarded", "evidence", "lost"}
	if int(e) < len(names) {
		return names[e]
	}
	return "invalid"
}

// Settlement is what a report comes to.
type Settlement struct {
	// Next is the record to put in place of the present one; nil if there is
	// nothing to write.
	Next *Job
	// Effect is what the report did.
	Effect Effect
	// Before is the state that the attempt was in.
	Before AttemptState
	// Contradicts says that the report contradicts a resolution: somebody
	// decided wrongly and must know.
	Contradicts bool
	// Recreates says that Next is to be created, since the store has lost the
	// whole record.
	Recreates bool
	// Starts says that Next starts another attempt too: see [Job.FailOver].
	Starts bool
	// Recovers says that the store had lost the attempt, and Next brings it back.
	Recovers bool
}

// Report applies what an attempt's gateway says of it. The job must list the
// attempt; where it does not, [Job.Recover] decides.
func (j *Job) Report(r Report) Settlement {
	i := slices.IndexFunc(j.Attempts, func(a Attempt) bool { return a.Token == r.Token })
	if i < 0 {
		return Settlement{Effect: EffectLost}
	}
	s := j.report(i, r)
	s.Before = j.Attempts[i].State
	return s
}

func (j *Job) report(i int, r Report) Settlement {
	a := &j.Attempts[i]
	if r.Outcome == OutcomeRunning {
		if a.State != AttemptStarting || r.Lease <= a.Lease {
			return Settlement{}
		}
		next := j.clone()
		renewed := &next.Attempts[i]
		renewed.Lease = r.Lease
		renewed.ListensUntil = max(renewed.ListensUntil, r.Lease)
		return Settlement{Next: next, Effect: EffectRenewed}
	}
	switch a.State {
	case AttemptStarting:
		return j.settle(i, r)
	case AttemptUnknown:
		if r.Outcome == OutcomeUnknown && (r.Listening || !a.Ended.IsZero()) {
			return Settlement{}
		}
		return j.settle(i, r)
	case AttemptFailed:
		if a.Resolution == nil || r.Outcome != OutcomeFinal {
			return j.note(i, r, false)
		}
		s := j.settle(i, r)
		s.Contradicts = true
		return s
	case AttemptCancelled:
		if r.Outcome == OutcomeUnknown && r.Listening {
			return Settlement{}
		}
		s := j.discard(i, r)
		s.Contradicts = r.Outcome == OutcomeFinal
		return s
	case AttemptSucceeded:
		if a.Resolution == nil || a.Resolution.State != AttemptSucceeded {
			// Its own commit took the slot. If that overruled a resolution, say so
			// again: the reply to the write that found it out may have been lost.
			return Settlement{
				Effect:      EffectAlreadyWon,
				Contradicts: a.Resolution != nil && r.Outcome == OutcomeFinal,
			}
		}
		contradicts := r.Outcome == OutcomeFailed ||
			(r.Outcome == OutcomeFinal && !j.Result.sameAs(r.Response))
		return j.note(i, r, contradicts)
	default: // AttemptDiscarded
		contradicts := r.Outcome == OutcomeFinal && a.Resolution != nil
		return j.note(i, r, contradicts)
	}
}

// sameAs reports whether another answer says the same as this one, as far as
// both are kept.
func (resp *Response) sameAs(other *Response) bool {
	return other != nil && resp.Status == other.Status && resp.Size == other.Size &&
		(resp.NotKept || other.NotKept || resp.sameBody(other))
}

// sameBody reports whether the bodies are the same, as far as that can be told: a
// sealed one can be compared only with one that the same key has sealed.
func (resp *Response) sameBody(other *Response) bool {
	if resp.SealedBy == "" && other.SealedBy == "" {
		return bytes.Equal(resp.Body, other.Body)
	}
	return resp.SealedBy != other.SealedBy || resp.Sum == other.Sum
}

// settle applies a report to an attempt whose state it may still decide.
func (j *Job) settle(i int, r Report) Settlement {
	next := j.clone()
	a := &next.Attempts[i]
	switch r.Outcome {
	case OutcomeFinal:
		if !next.CompletedBy.IsZero() || next.Version != a.Version {
			return j.discard(i, r)
		}
		next.end(i, AttemptSucceeded, r)
		next.takeSlot(i, r.Response, r.At)
		return Settlement{Next: next, Effect: EffectWon}
	case OutcomeFailed:
		next.end(i, AttemptFailed, r)
		next.fixExpiry(r.At, false)
		return Settlement{Next: next, Effect: EffectFailed}
	default:
		next.end(i, AttemptUnknown, r)
		return Settlement{Next: next, Effect: EffectUnknown}
	}
}

// discard writes an attempt down as discarded: another one has taken the slot,
// or it was cancelled, or the job has moved on since it started.
func (j *Job) discard(i int, r Report) Settlement {
	next := j.clone()
	next.end(i, AttemptDiscarded, r)
	next.fixExpiry(r.At, false)
	return Settlement{Next: next, Effect: EffectDiscarded}
}

// note keeps what a report saw on an attempt whose state stands. A contradiction
// is told even where nothing is left to write: the write that recorded it may
// have landed without its reply.
func (j *Job) note(i int, r Report, contradicts bool) Settlement {
	a := &j.Attempts[i]
	if !a.Ended.IsZero() || (r.Outcome == OutcomeUnknown && r.Listening) {
		return Settlement{Contradicts: contradicts}
	}
	next := j.clone()
	next.end(i, a.State, r)
	next.Attempts[i].Reason = a.Reason
	return Settlement{Next: next, Effect: EffectEvidence, Contradicts: contradicts}
}

// end writes a report's facts on an attempt.
func (j *Job) end(i int, state AttemptState, r Report) {
	a := &j.Attempts[i]
	a.State = state
	a.Reason = r.Reason
	a.Evidence = r.Evidence
	a.Violation = r.Violation.bounded()
	j.drop(a)
	if state == AttemptUnknown {
		a.Kept = r.Kept
	}
	if r.Outcome != OutcomeUnknown || !r.Listening {
		a.Ended = r.At
	}
}

// takeSlot puts the response of attempt i into the empty result slot. Its
// unresolved siblings are discarded in the same write.
func (j *Job) takeSlot(i int, resp *Response, at Time) {
	j.CompletedBy = j.Attempts[i].Token
	j.Result = resp
	j.Version++
	for k := range j.Attempts {
		if a := &j.Attempts[k]; k != i && a.Unresolved() {
			a.State = AttemptDiscarded
			a.Reason = ReasonLostRace
			j.drop(a)
		}
	}
	j.fixExpiry(at, true)
}

// ReasonLostRace is the reason of an attempt that another one has beaten.
const ReasonLostRace = "another attempt took the result slot first"

// Recover decides what a live attempt's report does to a store that has lost
// it: present is nil or a record that does not list the attempt, last is the
// record as the attempt's gateway wrote or saw it last. Unresolved records don't
// expire, so the store must have forgotten what it had acknowledged.
func Recover(present, last *Job, r Report) Settlement {
	lost := Settlement{Effect: EffectLost}
	own := last.Attempt(r.Token)
	switch {
	case own == nil, !own.Unresolved(), own.Resolution != nil:
		return lost // its gateway saw it decided: the record may have expired since
	case r.At.Sub(own.Started) > last.Retention:
		return lost // decided by somebody and expired since, for all we know
	case present == nil:
		s := last.Report(r)
		if s.Next == nil { // the store lost a write that said the same
			s.Next = last.clone()
		}
		s.Recreates, s.Recovers = true, true
		return s
	}
	// The write that started this attempt may have recorded that the one before it
	// had failed. That is lost with it, and true all the same.
	if wiser := (AbortedClaim{Written: last}).proven(present, r.At); wiser != nil {
		present = wiser
	}
	switch {
	case present.ID != last.ID, !present.CompletedBy.IsZero(), present.Unresolved(), present.trimmed(own.Number):
		return lost
	}
	next := present.clone()
	again := *own
	again.Number = next.AttemptCount() + 1
	again.Version = next.Version
	next.Attempts = append(next.Attempts, again)
	s := next.Report(r)
	if s.Next == nil {
		s.Next = next
	}
	s.Next.trim()
	s.Next.fixExpiry(r.At, false)
	s.Recovers = true
	return s
}
