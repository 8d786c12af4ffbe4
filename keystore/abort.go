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
		return c.neverDispatched(c.Written, at), false
	}
	return nil, false // another write came first, and write ids don't come back
}

func (c AbortedClaim) neverDispatched(j *Job, at Time) *Job {
	a := j.Attempt(c.Token)
	if a == nil || !a.Unresolved() {
		return nil
	}
	reason := ReasonNeverDispatched
	if c.Reason != "" {
		reason += ": " + c.Reason
	}
	return j.Report(Report{Token: c.Token, Outcome: OutcomeFailed, Reason: reason, At: at}).Next
}
