package keystore

import "slices"

// Claim is what a request brings to the judgement of a job's record.
type Claim struct {
	// Token is the one of the attempt that this request would run.
	Token Token
	// Fingerprints are those of the request, one per recipe that was asked for.
	// The one that the record names has to be among them, if this gateway knows
	// how to make it.
	Fingerprints []Fingerprint
	// Caller is the attempt that sent the request here, if it came from a
	// gateway like this one.
	Caller Caller
	// First says that this is a fresh request's first claim. Only that may
	// start an attempt: whoever has waited, re-read, or had a write refused,
	// only reads.
	First bool
	// MaxAttempts lets a racing route add a sibling to an unknown attempt, up
	// to this many attempts of the job. Zero: the route does not race.
	MaxAttempts int
}

// Verdict is what a claim has to do about a job's record.
type Verdict uint8

// The verdicts, in the order in which they are judged.
const (
	// Create: no record. Create it with attempt 1 starting, and run that.
	Create Verdict = iota + 1
	// RecordLost: no record where a request that has waited knew one.
	RecordLost
	// Own: an attempt carries this claim's token and is starting under a live
	// lease. The reply to the claim had been lost; run it.
	Own
	// OwnNotLive: an attempt carries this claim's token and is anything else.
	// It was never dispatched: abort it.
	OwnNotLive
	// Loop: the request comes from an attempt of this very job, which waits for
	// its answer: two gateways in a row share one space. Nobody could ever answer.
	Loop
	// UnknownRecipe: the record's fingerprint was made by a recipe that this
	// gateway does not know. It refuses to guess.
	UnknownRecipe
	// Conflict: the key came back with other input.
	Conflict
	// Replay: the job is completed; give its result, or say that it was not kept.
	Replay
	// Wait: an attempt is running.
	Wait
	// Lapsed: an attempt's lease has ended. Write it down with [Job.Lapse], then
	// judge again as a reader.
	Lapsed
	// Blocked: an attempt is unknown, and that blocks new ones.
	Blocked
	// StartSibling: an attempt is unknown and the route races. Start another one.
	StartSibling
	// Start: the job is open. Start the next attempt.
	Start
	// NotExecuted: the job is open, and this request only reads.
	NotExecuted
)

// String returns the verdict in words for logs.
func (v Verdict) String() string {
	names := [...]string{
		"invalid", "create", "record lost", "own", "own, not live", "loop", "unknown recipe", "conflict", "replay",
		"wait", "lapsed", "blocked", "start sibling", "start", "not executed",
	}
	if int(v) < len(names) {
		return names[v]
	}
	return names[0]
}

// Judge is the one function that decides what a claim may do. Every path asks
// it: the lost claim, the woken waiter, the re-read, a local cache. The job is
// nil where the store has no record.
//
// The fingerprint is judged before the state, so that other input is refused at
// once even while the first call is running. A loop is judged before both, since
// the gateway before this one may have rewritten the request.
func Judge(j *Job, c Claim, now Time) Verdict {
	if j == nil {
		if c.First {
			return Create
		}
		return RecordLost
	}
	if a := j.Attempt(c.Token); a != nil {
		if a.live(now) && j.CompletedBy.IsZero() {
			return Own
		}
		return OwnNotLive
	}
	if j.waitsFor(c.Caller) {
		return Loop
	}
	if !slices.Contains(c.Fingerprints, j.Fingerprint) {
		if !slices.ContainsFunc(c.Fingerprints, j.Fingerprint.SameRecipe) {
			return UnknownRecipe
		}
		return Conflict
	}
	switch j.State(now) {
	case JobCompleted:
		return Replay
	case JobRunning:
		return Wait
	case JobUnknown:
		switch {
		case c.First && j.AttemptCount() < c.MaxAttempts:
			return StartSibling
		case j.hasLapsed(now):
			return Lapsed
		}
		return Blocked
	default:
		if c.First {
			return Start
		}
		return NotExecuted
	}
}

func (j *Job) hasLapsed(now Time) bool {
	return slices.ContainsFunc(j.Attempts, func(a Attempt) bool { return a.lapsed(now) })
}

func (a *Attempt) lapsed(now Time) bool {
	return a.State == AttemptStarting && !a.live(now)
}
