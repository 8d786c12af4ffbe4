package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Errors of what an operator asks for.
var (
	// ErrNoJob says that there is no such job.
	ErrNoJob = errors.New("no such job")
	// ErrNoAttempt says that the job has no such attempt, or several that the
	// number could mean.
	ErrNoAttempt = errors.New("no such attempt")
	// ErrDecision says that a decision is not complete.
	ErrDecision = errors.New("not a decision")
)

// JobFilter says which jobs are wanted. The zero value wants all.
type JobFilter struct {
	State    keystore.JobState // zero: any
	Space    string            // empty: any
	Provider string            // of the last attempt; empty: any
	MinAge   time.Duration     // since its creation
}

// wants reports whether the filter lets a job through.
func (f *JobFilter) wants(j *keystore.Job, now keystore.Time) bool {
	return (f.State == 0 || j.State(now) == f.State) &&
		(f.Space == "" || j.Space == f.Space) &&
		(f.Provider == "" || j.LastAttempt().Provider == f.Provider) &&
		now.Sub(j.Created) >= f.MinAge
}

// Jobs returns a page of the jobs that the filter wants, and the cursor of the
// next page, empty at the end. Running and unknown jobs are found through the
// index, in the order of their lease ends, at a cost in proportion to their
// number; any others by going through the whole store. A page can be shorter than
// limit, and even empty, while there is a next one.
func (g *Gateway) Jobs(ctx context.Context, f JobFilter, cursor string, limit int) (jobs []*keystore.Job, next string, err error) {
	list := g.store.Scan
	if f.State == keystore.JobRunning || f.State == keystore.JobUnknown {
		list = g.store.List
	}
	page, next, err := list(ctx, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	now := g.store.Now()
	for _, j := range page {
		if f.wants(j, now) {
			jobs = append(jobs, j)
		}
	}
	return jobs, next, nil
}

// Job returns the job with this id.
func (g *Gateway) Job(ctx context.Context, id string) (*keystore.Job, error) {
	name, err := keystore.NameOfJobID(id)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoJob, err)
	}
	j, err := g.store.Get(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case j == nil || j.ID != id:
		return nil, fmt.Errorf("%w: %s; it may have expired", ErrNoJob, id)
	}
	return j, nil
}

// JobOf returns the job of this identity, whose route makes its digests with d. The
// key is the value of the header, in either of its spellings.
func (g *Gateway) JobOf(ctx context.Context, d keystore.Digester, space, owner, key string) (*keystore.Job, error) {
	key, _, err := parseKey(key, "key")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoJob, err)
	}
	j, err := g.store.Get(ctx, d.NameOf(space, owner, key))
	switch {
	case err != nil:
		return nil, err
	case j == nil:
		return nil, fmt.Errorf("%w: there is none with this space, owner and key; it may have expired", ErrNoJob)
	}
	return j, nil
}

// Decision resolves an unknown attempt.
type Decision struct {
	Job string
	// Attempt is the number of the attempt. Zero: the only unknown one.
	Attempt int
	// Token is the attempt's, where it is known: a number alone can come to mean
	// another attempt.
	Token keystore.Token
	// As is succeeded, failed or cancelled.
	As keystore.AttemptState
	// Actor and Evidence say who decided and what for; both are kept.
	Actor, Evidence string
	// Response becomes the job's result; with succeeded only.
	Response *keystore.Response
	// Kept makes the answer the result that the attempt kept because it broke the
	// contract; with succeeded only, and in place of a response.
	Kept bool
	// Keyring is that of the job's route, and encrypts the response.
	Keyring *keystore.Keyring
}

// Resolve carries a decision out. It is a compare-and-swap: if the attempt is
// not unknown any more, by somebody else's decision or by a late result, the
// error is [keystore.ErrNotResolvable], and the job is returned as it is then.
func (g *Gateway) Resolve(ctx context.Context, d Decision) (*keystore.Job, error) {
	switch {
	case d.As != keystore.AttemptSucceeded && d.As != keystore.AttemptFailed && d.As != keystore.AttemptCancelled:
		return nil, fmt.Errorf("%w: an attempt is resolved as succeeded, failed or cancelled", ErrDecision)
	case d.Actor == "":
		return nil, fmt.Errorf("%w: say who decides (actor)", ErrDecision)
	case d.Evidence == "":
		return nil, fmt.Errorf("%w: say on what evidence", ErrDecision)
	case d.Kept && d.Response != nil:
		return nil, fmt.Errorf("%w: it takes the kept response or another one, not both", ErrDecision)
	case (d.As == keystore.AttemptSucceeded) != (d.Response != nil || d.Kept):
		return nil, fmt.Errorf("%w: succeeded takes a response, failed and cancelled take none", ErrDecision)
	}
	j, err := g.Job(ctx, d.Job)
	if err != nil {
		return nil, err
	}
	a, err := decidedAttempt(j, d.Attempt)
	if !d.Token.IsZero() {
		if a, err = j.Attempt(d.Token), nil; a == nil {
			err = fmt.Errorf("%w: job %s lists it no more", ErrNoAttempt, j.ID)
		}
	}
	if err != nil {
		return j, err
	}
	token, number := a.Token, a.Number
	if d.Response != nil {
		given := *d.Response
		given.Answered, given.Size = g.store.Now(), int64(len(given.Body))
		if j.KeySealed != nil && d.Keyring == nil {
			return j, fmt.Errorf("%w: the job is encrypted, and no route here has its space and encrypt_with, so that the response could only be written in clear", keystore.ErrSealed)
		}
		d.Response = d.Keyring.SealResponse(j.ID, storable(&given))
	}
	// A decision that was cut because its caller left might be carried out
	// without anybody being told.
	ctx = g.storeContext()
	var refused error
	var wrote bool
	res := keystore.Resolution{State: d.As, Actor: d.Actor, Evidence: d.Evidence, At: g.store.Now(), ID: keystore.NewWriteID(), Kept: d.Kept}
	j, err = g.update(ctx, j.Name, j, true, 3, func(present *keystore.Job) (*keystore.Job, bool) {
		wrote, refused = false, nil
		if present == nil || present.ID != d.Job {
			refused = fmt.Errorf("%w: %s; it has gone in the meantime", ErrNoJob, d.Job)
			return nil, false
		}
		if own := present.Attempt(token); own != nil && own.Resolution != nil && *own.Resolution == res {
			wrote = true
			return nil, false // an earlier send of this write
		}
		var next *keystore.Job
		next, refused = present.Resolve(token, res, d.Response)
		wrote = refused == nil
		return next, false
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return j, err
	}
	g.log.Warn("an unknown attempt was resolved", slog.String("job", j.ID), slog.Int("attempt", number),
		slog.String("as", d.As.String()), slog.String("actor", d.Actor))
	if wrote {
		g.observer.Event(Event{Name: EventResolved, Job: j, Attempt: number, Reason: "resolved as " + d.As.String() + " by " + d.Actor})
	}
	return j, nil
}

// decidedAttempt returns the attempt that a decision is about.
func decidedAttempt(j *keystore.Job, number int) (*keystore.Attempt, error) {
	var found *keystore.Attempt
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if (number != 0 && a.Number != number) || (number == 0 && a.State != keystore.AttemptUnknown) {
			continue
		}
		// A store that has lost a record can make two attempts carry one number;
		// of those the unknown one is meant.
		if found != nil && found.State == keystore.AttemptUnknown {
			if a.State == keystore.AttemptUnknown {
				return nil, fmt.Errorf("%w: job %s has several unknown attempts; name one", ErrNoAttempt, j.ID)
			}
			continue
		}
		found = a
	}
	switch {
	case found == nil && number == 0:
		return nil, fmt.Errorf("%w: job %s has no unknown attempt", keystore.ErrNotResolvable, j.ID)
	case found == nil:
		return nil, fmt.Errorf("%w: job %s has no attempt %d", ErrNoAttempt, j.ID, number)
	}
	return found, nil
}

// Forget drops a completed job, so that its key is new. It is refused with
// [keystore.ErrNotForgettable] while the job is not completed, or an attempt of
// it may still report.
func (g *Gateway) Forget(ctx context.Context, id, actor string) error {
	if actor == "" {
		return fmt.Errorf("%w: say who decides (actor)", ErrDecision)
	}
	j, err := g.Job(ctx, id)
	if err != nil {
		return err
	}
	defer g.forgets.Add(1) // also where it is not known whether it was done
	var refused error
	_, err = g.update(ctx, j.Name, j, true, 3, func(present *keystore.Job) (*keystore.Job, bool) {
		refused = nil
		if present == nil || present.ID != id {
			return nil, false
		}
		var next *keystore.Job
		next, refused = present.Forget(g.store.Now())
		return next, false
	})
	if err == nil {
		err = refused
	}
	if err == nil {
		g.log.Warn("a job was forgotten", slog.String("job", id), slog.String("actor", actor))
		g.observer.Event(Event{Name: EventForgotten, Job: j, Attempt: decisiveAttempt(j).Number, Reason: "forgotten by " + actor})
	}
	return err
}

// Census is what the index of unresolved jobs held when the gateway last went
// through it, as it does every few seconds. Reading it costs the store nothing.
type Census struct {
	At      time.Time     // zero: not yet
	Running int           // jobs older than about two seconds that are running
	Unknown int           // jobs that are unknown
	Oldest  keystore.Time // when the oldest unknown job was created; zero without one
}

func (c *Census) count(j *keystore.Job, now keystore.Time) {
	switch j.State(now) {
	case keystore.JobRunning:
		c.Running++
	case keystore.JobUnknown:
		c.Unknown++
		if c.Oldest.IsZero() || j.Created < c.Oldest {
			c.Oldest = j.Created
		}
	}
}

// Census returns the last one.
func (g *Gateway) Census() Census {
	if c := g.census.Load(); c != nil {
		return *c
	}
	return Census{}
}

// Busy returns how many attempts this gateway runs or listens to, and how many
// duplicates wait on it.
func (g *Gateway) Busy() (attempts, waiters int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.attempts), g.waiters
}

// Stats counts what is unresolved, and what this gateway is doing.
type Stats struct {
	Running       int           `json:"running"`        // jobs in the index that are running
	Unknown       int           `json:"unknown"`        // jobs that are unknown
	OldestUnknown time.Duration `json:"oldest_unknown"` // how long ago the oldest unknown job was created
	Attempts      int           `json:"attempts"`       // of this gateway, lingering ones included
	Waiters       int           `json:"waiters"`        // duplicates that wait on this gateway
}

// Stats returns counts. Jobs are counted through the index, so that a running
// one younger than about two seconds may be missing.
func (g *Gateway) Stats() (s Stats, err error) {
	now := g.store.Now()
	var counted Census
	err = g.pages(g.store.List, func(j *keystore.Job) error {
		counted.count(j, now)
		return nil
	})
	s.Running, s.Unknown = counted.Running, counted.Unknown
	if !counted.Oldest.IsZero() {
		s.OldestUnknown = now.Sub(counted.Oldest)
	}
	s.Attempts, s.Waiters = g.Busy()
	return s, err
}
