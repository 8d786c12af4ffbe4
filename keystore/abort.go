package keystore

// ReasonNeverDispatched is the reason of an attempt that was claimed and then
// not run.
const ReasonNeverDispatched = "never dispatched"

// AbortedClaim is a claim of which nobody can say whether its write landed, or
// whose attempt was given up before anything was sent. Its attempt was never
// dispatched, and the record has to come to say so, whether the write had
// landed, lands later, or is met as unknown.
type AbortedClaim struct {
	// Token is the attempt's.
	Token Token
	// Written is the record that the claim's write carried.
	Written *Job
	// Expected is the write id that the claim's swap replaced. Zero: the claim
	// was to create the record.
	Expected WriteID
	// Reason adds to [ReasonNeverDispatched]; may be empty.
	Reason string
}

// Next decides what to write next to make the abort definite, given the record
// that is there now (nil: none). With create the returned job is to be created,
// otherwise it replaces the present one; nil means that it is definite already.
//
// To be called again with the present record whenever that write is refused.
func (c AbortedClaim) Next(present *Job, at Time) (next *Job, create bool) {
	switch {
	case present == nil:
		if c.Expected.IsZero() {
			return c.neverDispatched(c.Written, at), true
		}
		return nil, false // a swap that expects a record can't land without it
	case present.Attempt(c.Token) != nil:
		return c.neverDispatched(present, at), false
	case !c.Expected.IsZero() && present.WriteID == c.Expected:
		// The swap may still land. Rewriting the record under another write id
		// shuts it out. What else that swap would have recorded, and is true in
		// itself, is in Written and so is kept.
		next = c.neverDispatched(c.Written, at)
		if next != nil && !present.Expires.IsZero() {
			next.Expires = present.Expires // the job was open, and goes on being so
		}
		return next, false
	}
	// Another write came first, and write ids don't come back: the swap can't
	// land. What it would have recorded of other attempts is true all the same.
	return c.proven(present, at), false
}

// Contradicts reports whether somebody resolved as succeeded, in the present
// record, what this claim knows to have had no effect: its own attempt, or one
// that its write would have recorded as failed.
func (c AbortedClaim) Contradicts(present *Job) bool {
	if present == nil {
		return false
	}
	for i := range present.Attempts {
		a := &present.Attempts[i]
		if a.State == AttemptSucceeded && a.Resolution != nil && a.Resolution.State == AttemptSucceeded &&
			(a.Token == c.Token || c.Written.Attempt(a.Token).proved()) {
			return true
		}
	}
	return false
}

// neverDispatched settles the claim's own attempt. One that was resolved or
// discarded meanwhile only gets its gateway's last word, so that the job can be
// forgotten.
func (c AbortedClaim) neverDispatched(j *Job, at Time) *Job {
	if j.Attempt(c.Token) == nil {
		return nil
	}
	reason := ReasonNeverDispatched
	if c.Reason != "" {
		reason += ": " + c.Reason
	}
	return j.Report(Report{Token: c.Token, Outcome: OutcomeFailed, Reason: reason, At: at}).Next
}

// proven returns the record with the failures that the claim's write would have
// recorded of other attempts, or nil if it knows them all.
func (c AbortedClaim) proven(present *Job, at Time) (next *Job) {
	for i := range c.Written.Attempts {
		w := &c.Written.Attempts[i]
		if a := present.Attempt(w.Token); a == nil || !w.proved() {
			continue
		}
		s := present.Report(Report{Token: w.Token, Outcome: OutcomeFailed, Reason: w.Reason, Evidence: w.Evidence, Violation: w.Violation, At: at})
		if s.Next != nil {
			next, present = s.Next, s.Next
		}
	}
	return next
}

// proved reports whether the attempt's own gateway said that it had no effect.
func (a *Attempt) proved() bool {
	return a != nil && a.State == AttemptFailed && a.Resolution == nil && !a.Ended.IsZero()
}
