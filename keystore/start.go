package keystore

import "time"

// NewAttempt is what the write that starts an attempt says of it.
type NewAttempt struct {
	Token    Token
	Provider string
	At       Time          // now, on the store's clock
	Lease    time.Duration // how long the claim is believed without a sign of life
	Listen   time.Duration // how long its gateway may have something to say of it
	Trace    string        // of the request, where somebody traces it
}

// NewJob returns the job as its first claim writes it. The given job has the
// fields that never change: name, id, space, owner, key as sent, fingerprint,
// request, creation time and retention.
func NewJob(identity Job, n NewAttempt) *Job {
	j := identity
	j.Version, j.Attempts, j.Dropped = 0, nil, 0
	j.CompletedBy, j.Result, j.Expires = Token{}, nil, 0
	return j.Start(n)
}

// Start returns the job with another attempt starting. Leases that have lapsed
// by then are written down as unknown in the same write.
//
// The caller has judged the job to be open, or unknown on a racing route.
func (j *Job) Start(n NewAttempt) *Job {
	next := j.clone()
	next.lapse(n.At)
	if !next.Unresolved() {
		next.Version++
	}
	next.Attempts = append(next.Attempts, Attempt{
		Number:       next.AttemptCount() + 1,
		Token:        n.Token,
		Provider:     n.Provider,
		State:        AttemptStarting,
		Version:      next.Version,
		Started:      n.At,
		Lease:        n.At.Add(n.Lease),
		ListensUntil: n.At.Add(n.Listen),
		Trace:        n.Trace,
	})
	next.trim()
	next.fixExpiry(n.At, false)
	return next
}

// Lapse returns the job with every attempt whose lease has ended written down
// as unknown, or nil if there is none.
func (j *Job) Lapse(now Time) *Job {
	if !j.hasLapsed(now) {
		return nil
	}
	next := j.clone()
	next.lapse(now)
	return next
}

// ReasonLapsed is the reason of an attempt whose gateway fell silent.
const ReasonLapsed = "lease lapsed: no sign of life from the gateway that ran it"

func (j *Job) lapse(now Time) {
	for i := range j.Attempts {
		if a := &j.Attempts[i]; a.lapsed(now) {
			a.State = AttemptUnknown
			a.Reason = ReasonLapsed
		}
	}
}
