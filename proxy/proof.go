package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// ProofSpace is the reserved space in which proofs are kept, as completed jobs.
const ProofSpace = "_proof"

// proofRecipe is the version of what a proof's digest is made of.
const proofRecipe = 1

// ErrNotProven says that a report proves nothing.
var ErrNotProven = errors.New("not proven")

// ProofSubject is what a proof is of: one provider of a route, exactly as it is
// configured, against one contract. Anything else has to be proven anew.
type ProofSubject struct {
	Space    string // of the route
	Provider string
	Config   keystore.Digest // of the provider's configuration
	Contract keystore.Digest // see [Contract.Digest]
}

// Proof is the evidence that a provider has passed its contract.
type Proof struct {
	Proved  keystore.Time
	Expires keystore.Time
	Cases   []ProvenCase
}

// ProvenCase is a case that was passed, and how often.
type ProvenCase struct {
	Case string `json:"case"`
	Runs int    `json:"runs"`
}

func (s ProofSubject) fingerprint() keystore.Fingerprint {
	return keystore.Fingerprint{Recipe: proofRecipe, Sum: keystore.DigestOf(append(s.Config[:], s.Contract[:]...))}
}

// key is the proof's key. The digest in it has a fixed length, so that no choice
// of a provider's name reaches another one's proof; gateways that are configured
// differently, as during an update, keep theirs side by side.
func (s ProofSubject) key() string {
	f := s.fingerprint()
	return fmt.Sprintf("%d:%s:%s", f.Recipe, f.Sum, s.Provider)
}

func (s ProofSubject) name() keystore.Name { return keystore.NameOf(ProofSpace, s.Space, s.key()) }

// Proof returns the living proof of a subject, nil if there is none. One that is
// older than maxAge is dead, whatever was said when it was kept.
func (g *Gateway) Proof(ctx context.Context, s ProofSubject, maxAge time.Duration) (*Proof, error) {
	j, err := g.store.Get(ctx, s.name())
	if err != nil || j == nil {
		return nil, err
	}
	now := g.store.Now()
	proved := j.Created
	switch {
	case j.State(now) != keystore.JobCompleted, j.Fingerprint != s.fingerprint(), j.Result.NotKept:
		return nil, nil
	case !j.Expires.IsZero() && j.Expires <= now, now.Sub(proved) >= maxAge, fromLater(j, now):
		return nil, nil
	}
	p := &Proof{Proved: proved, Expires: min(j.Expires, proved.Add(maxAge))}
	if err := json.Unmarshal(j.Result.Body, &p.Cases); err != nil {
		return nil, fmt.Errorf("%w: the proof of provider %s: %w", keystore.ErrCorrupt, s.Provider, err)
	}
	return p, nil
}

// fromLater reports whether a proof says of itself that it is from a time that has
// not come: the store's clock was put back, as by a failover to a machine with
// another one. Such a proof would live too long, and outlive later runs that fail.
func fromLater(j *keystore.Job, now keystore.Time) bool { return j.Created.Sub(now) > maxSkew }

// KeepProof keeps the proof that a report is, for maxAge from when it began, on
// the store's clock. It takes the place of an earlier one. A report that proves
// nothing is [ErrNotProven], and changes nothing: see [Gateway.DropProof].
func (g *Gateway) KeepProof(ctx context.Context, s ProofSubject, report ProofReport, began keystore.Time, maxAge time.Duration) (*Proof, error) {
	if !report.Passed() {
		return nil, fmt.Errorf("%w: provider %s has not passed every case", ErrNotProven, s.Provider)
	}
	p := &Proof{Proved: began, Expires: began.Add(maxAge)}
	for _, c := range report {
		p.Cases = append(p.Cases, ProvenCase{Case: c.Case, Runs: c.Passed})
	}
	body, err := json.Marshal(p.Cases)
	if err != nil {
		return nil, err
	}
	kept, err := g.update(ctx, s.name(), nil, false, 3, func(present *keystore.Job) (next *keystore.Job, create bool) {
		if present != nil && present.Created > began && !fromLater(present, g.store.Now()) {
			return nil, false // somebody else's, which is newer
		}
		return s.proven(p, body, maxAge), present == nil
	})
	switch {
	case err != nil:
		return nil, err
	case kept.CompletedBy.IsZero():
		return nil, fmt.Errorf("%w: provider %s has failed a case in a run that was begun later", ErrNotProven, s.Provider)
	}
	g.log.Info("a provider has proven that it honours its contract", slog.String("provider", s.Provider), slog.Int("cases", len(p.Cases)))
	g.observer.Event(Event{Name: EventProven, Job: kept, Attempt: 1, Reason: "provider " + s.Provider + " has passed every case"})
	return p, nil
}

// proven returns the completed job that a proof is.
func (s ProofSubject) proven(p *Proof, body []byte, maxAge time.Duration) *keystore.Job {
	return s.job(p.Proved, maxAge, keystore.Report{
		Outcome: keystore.OutcomeFinal, Reason: "passed every case",
		Response: &keystore.Response{
			Status: 200, Header: map[string][]string{"Content-Type": {"application/json"}},
			Body: body, Size: int64(len(body)), Answered: p.Proved,
		},
	})
}

// job returns the job of a run that began at this time. It lives for maxAge.
func (s ProofSubject) job(began keystore.Time, maxAge time.Duration, report keystore.Report) *keystore.Job {
	report.Token, report.At = keystore.NewToken(), began
	return keystore.NewJob(keystore.Job{
		Name: s.name(), ID: keystore.NewJobID(s.name()), Space: ProofSpace, Owner: keystore.OwnerDigest(s.Space), KeySent: s.key(),
		Fingerprint: s.fingerprint(), Request: keystore.RequestInfo{Label: "proof of " + s.Provider},
		Created: began, Retention: maxAge,
	}, keystore.NewAttempt{Token: report.Token, Provider: s.Provider, At: began, Lease: maxAge}).Report(report).Next
}

// DropProof takes a proof back, as after a run that has failed. It reports whether
// there was one from before that run began. For maxAge it is known that the run has
// failed: on another gateway one that was begun earlier may pass only then.
func (g *Gateway) DropProof(ctx context.Context, s ProofSubject, began keystore.Time, maxAge time.Duration) (dropped bool, err error) {
	var before *keystore.Job
	refuted := s.job(began, maxAge, keystore.Report{Outcome: keystore.OutcomeFailed, Reason: "has not passed every case"})
	_, err = g.update(ctx, s.name(), nil, false, 3, func(present *keystore.Job) (next *keystore.Job, create bool) {
		if present != nil && present.Created > began && !fromLater(present, g.store.Now()) {
			dropped = false
			return nil, false
		}
		before, dropped = present, present != nil && !present.CompletedBy.IsZero()
		return refuted, present == nil
	})
	if err == nil && dropped {
		g.log.Warn("a provider's proof was taken back: it has not passed its contract", slog.String("provider", s.Provider))
		g.observer.Event(Event{Name: EventUnproven, Job: before, Attempt: 1, Reason: "provider " + s.Provider + " has not passed every case"})
	}
	return dropped, err
}
