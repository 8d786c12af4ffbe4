package proxy

import (
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Account says what becomes of one request, for logs and the like. It
// comes to be known bit by bit, before the first byte of the answer is given, and
// belongs to the goroutine that serves the request.
type Account struct {
	// Verdict is empty until it is known.
	Verdict string
	// Record is the digest of space, owner and key, and Owner that of the caller.
	// Both are zero if the request has none of these.
	Record keystore.Name
	Owner  keystore.Digest

	Job      string // the job's id
	State    string // the job's state
	Attempts int    // how many it has had
	// Attempt is the number of the attempt that the answer comes from, or that
	// stands in its way, and Provider is that attempt's. Zero: there is none.
	Attempt  int
	Provider string

	Wait  time.Duration // spent waiting for another request's attempt
	Store time.Duration // spent waiting for the store
}

// open begins the account of the request.
func (c *call) open() *call {
	if c.x.Asked == nil {
		c.x.Asked = c.r
	}
	if c.account = c.x.Account; c.account == nil {
		c.account = new(Account)
	}
	return c
}

// close tells the observer of the request's end, also where its answer is broken
// off by a panic.
func (c *call) close() {
	if c.account.Verdict == "" {
		c.account.Verdict = VerdictAborted
	}
	if c.traced {
		c.account.describe(oteltrace.SpanFromContext(c.r.Context()))
	}
	c.g.observer.Request(c.account.Verdict)
}

// decisiveAttempt is the winner of a completed job, and otherwise the latest attempt.
func decisiveAttempt(j *keystore.Job) *keystore.Attempt {
	if won := j.Attempt(j.CompletedBy); won != nil {
		return won
	}
	return j.LastAttempt()
}

// learn notes what a record says of the request's job.
func (a *Account) learn(j *keystore.Job, now keystore.Time) {
	decisive := decisiveAttempt(j)
	a.Job, a.State, a.Attempts = j.ID, j.State(now).String(), j.AttemptCount()
	a.Attempt, a.Provider = decisive.Number, decisive.Provider
}

// refused notes a refusal, with what it says of the request's job.
func (a *Account) refused(r *Refusal) {
	a.Verdict = r.verdict()
	if r.Job != "" {
		a.Job, a.State, a.Attempts, a.Attempt, a.Provider = r.Job, r.State, r.Attempts, r.attempt, r.provider
	}
}

// inStore notes how long a call to the store has taken.
func (a *Account) inStore(began time.Time) { a.Store += time.Since(began) }
