package keystore

import (
	"errors"
	"fmt"
)

// Sentinel errors of decisions on a job.
var (
	// ErrNotResolvable: only an unknown attempt of a job whose result slot is
	// empty can be resolved.
	ErrNotResolvable = errors.New("attempt can't be resolved")
	// ErrNotForgettable: only a completed job no attempt of which may still
	// report can be forgotten.
	ErrNotForgettable = errors.New("job can't be forgotten")
)

// Resolve applies an out-of-band decision to an unknown attempt. A resolution
// as succeeded puts the response into the result slot, or the one that the attempt
// kept: then there is no other. The kept one is dropped in any case.
func (j *Job) Resolve(t Token, res Resolution, resp *Response) (*Job, error) {
	next := j.clone()
	a := next.Attempt(t)
	switch {
	case a == nil:
		return nil, fmt.Errorf("%w: job %s has no such attempt", ErrNotResolvable, j.ID)
	case !j.CompletedBy.IsZero():
		return nil, fmt.Errorf("%w: job %s is completed", ErrNotResolvable, j.ID)
	case a.State != AttemptUnknown:
		return nil, fmt.Errorf("%w: attempt %d of job %s is %s", ErrNotResolvable, a.Number, j.ID, a.State)
	}
	switch res.State {
	case AttemptFailed, AttemptCancelled:
		a.State = res.State
	case AttemptSucceeded:
		if res.Kept {
			kept, ok := a.kept()
			if !ok || resp != nil {
				return nil, fmt.Errorf("%w: attempt %d of job %s keeps no whole answer", ErrNotResolvable, a.Number, j.ID)
			}
			resp = kept
		}
		if resp == nil {
			return nil, fmt.Errorf("%w: as succeeded it needs a response", ErrNotResolvable)
		}
		a.State = res.State
		for i := range next.Attempts {
			if &next.Attempts[i] == a {
				next.takeSlot(i, resp, res.At)
			}
		}
	default:
		return nil, fmt.Errorf("%w: as %s", ErrNotResolvable, res.State)
	}
	a.Resolution = &res
	next.drop(a)
	if a.Reason != "" {
		a.Reason = "; before that: " + a.Reason
	}
	a.Reason = "resolved as " + res.State.String() + a.Reason
	next.fixExpiry(res.At, false)
	return next, nil
}

// NoteLookups returns the job with what was learned of an unknown attempt, or nil
// if the job has no such attempt that is unknown.
func (j *Job) NoteLookups(t Token, l Lookups) *Job {
	next := j.clone()
	a := next.Attempt(t)
	if a == nil || a.State != AttemptUnknown {
		return nil
	}
	a.Lookups = l
	return next
}

// Forget returns the job as a record that the store drops at once.
func (j *Job) Forget(now Time) (*Job, error) {
	switch {
	case j.CompletedBy.IsZero():
		return nil, fmt.Errorf("%w: job %s is %s", ErrNotForgettable, j.ID, j.State(now))
	case j.MayReport(now):
		return nil, fmt.Errorf("%w: an attempt of job %s may still report", ErrNotForgettable, j.ID)
	}
	next := j.clone()
	next.Expires = now
	return next, nil
}
