package keystore

import "slices"

// FailOver reports that an attempt certainly had no effect, and starts the next
// one in the same write: Starts tells whether it does. The next one starts only
// where the report found the attempt starting, so never after anybody was told
// that it is unknown, and only where no other attempt is unresolved. On a racing
// route others may be, as long as the job has had fewer than max attempts, and on
// other providers; zero says that the route does not race.
//
// Where it does not start, the settlement is that of the report alone. The job
// must list the attempt; where it does not, [Recover] decides, and nothing
// starts.
func (j *Job) FailOver(r Report, n NewAttempt, max int) Settlement {
	s := j.Report(r)
	if s.Effect != EffectFailed || s.Before != AttemptStarting || !s.Next.CompletedBy.IsZero() {
		return s
	}
	if s.Next.Unresolved() && s.Next.AttemptCount() >= max {
		return s
	}
	if slices.Contains(s.Next.Busy(), n.Provider) {
		return s
	}
	s.Next, s.Starts = s.Next.Start(n), true
	return s
}

// StartSibling returns the job with another attempt beside the one of this
// token, which a racing request has running or unknown; max is how many attempts
// the job may have. Nil: the race is over, or has no room, or the provider is
// busy with the job already.
//
// The sibling shares the version of the attempts that are unresolved, so that any
// one of them can win, and only one.
func (j *Job) StartSibling(of Token, n NewAttempt, max int) *Job {
	a := j.Attempt(of)
	if a == nil || !a.Unresolved() || slices.Contains(j.Busy(), n.Provider) || j.AttemptCount() >= max {
		return nil
	}
	return j.Start(n)
}
