package caddymodule

import (
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// jobView is a job as the admin API shows it: never its key, its request's query
// or body, its result's body, or its owner in clear.
type jobView struct {
	ID      string    `json:"id"`
	Store   string    `json:"store"`
	Space   string    `json:"space"`
	Owner   string    `json:"owner"` // a digest
	State   string    `json:"state"`
	Created time.Time `json:"created"`
	Age     string    `json:"age"`
	Expires time.Time `json:"expires,omitzero"` // there is none while it is running or unknown
	Version uint64    `json:"version"`

	Request requestView `json:"request"`
	Result  *resultView `json:"result,omitempty"` // of a completed job

	AttemptCount int           `json:"attempt_count"` // with those no longer listed
	Attempts     []attemptView `json:"attempts"`
}

// requestView is what is shown of a job's request.
type requestView struct {
	Method    string `json:"method"`
	Host      string `json:"host,omitempty"`
	Path      string `json:"path"`
	MediaType string `json:"media_type,omitempty"`
	Size      int64  `json:"size"` // of the body, in bytes
	Label     string `json:"label,omitempty"`
}

// resultView is what is shown of a job's result.
type resultView struct {
	Attempt  int       `json:"attempt"` // the number of the one that won the slot
	Status   int       `json:"status"`
	Size     int64     `json:"size"` // of the body, in bytes
	Kept     bool      `json:"kept"` // whether the body is there to be replayed
	Answered time.Time `json:"answered,omitzero"`
}

// attemptView is an attempt.
type attemptView struct {
	Number       int             `json:"number"`
	Provider     string          `json:"provider,omitempty"` // there is none where it is the rest of the site's chain
	State        string          `json:"state"`
	Reason       string          `json:"reason,omitempty"`
	Started      time.Time       `json:"started"`
	Ended        time.Time       `json:"ended,omitzero"` // its gateway's last report
	Took         string          `json:"took,omitempty"`
	Lease        time.Time       `json:"lease"`                  // its end
	ListensUntil time.Time       `json:"listens_until,omitzero"` // after that no late result comes
	Evidence     evidenceView    `json:"evidence"`
	Violation    *violationView  `json:"violation,omitempty"`
	Kept         *keptView       `json:"kept,omitempty"`
	Resolution   *resolutionView `json:"resolution,omitempty"`
	Lookups      *lookupsView    `json:"lookups,omitempty"`
	Trace        string          `json:"trace,omitempty"` // of the request that it was started for, as W3C's traceparent
}

// evidenceView is what was seen of an attempt on the wire.
type evidenceView struct {
	Upstream string `json:"upstream,omitempty"` // address of the connection
	// Observed says whether the transport tells what it does. Without that the
	// counts mean nothing.
	Observed  bool `json:"observed"`
	Asked     int  `json:"asked"`      // for connections
	Connected int  `json:"connected"`  // how often it got one
	Sent      int  `json:"sent"`       // how often the whole request was written
	FirstByte int  `json:"first_byte"` // how often an answer began
	Resent    bool `json:"resent"`     // something below the gateway sent the request again

	Status int   `json:"status,omitempty"` // of a complete answer
	Size   int64 `json:"size,omitempty"`   // of the answer's body, in bytes

	Summary string `json:"summary"` // the counts in words
}

// violationView is how an answer breaks its route's contract.
type violationView struct {
	Path     string `json:"path,omitempty"` // JSON pointer into the body
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

// keptView is an answer that broke the contract and is kept, so that it can be
// made the result.
type keptView struct {
	Status int   `json:"status"`
	Size   int64 `json:"size"` // of the body, in bytes
}

// resolutionView is a decision on an attempt.
type resolutionView struct {
	As       string    `json:"as"`
	Actor    string    `json:"actor"`
	Evidence string    `json:"evidence"`
	At       time.Time `json:"at"`
}

// lookupsView is what was learned by asking the upstream about an attempt.
type lookupsView struct {
	Count  int       `json:"count"`
	Last   time.Time `json:"last,omitzero"`
	Status int       `json:"status,omitempty"` // of the last answer; none if none came
	Note   string    `json:"note,omitempty"`
}

// viewOf shows a job of the store with this name.
func viewOf(j *keystore.Job, store string, now keystore.Time) *jobView {
	v := &jobView{
		ID: j.ID, Store: store, Space: j.Space, Owner: j.Owner.String(),
		State: j.State(now).String(), Created: j.Created.Std(), Age: readable(now.Sub(j.Created)), Expires: instant(j.Expires),
		Version: j.Version, AttemptCount: j.AttemptCount(),
		Request: requestView{
			Method: j.Request.Method, Host: j.Request.Host, Path: j.Request.Path, MediaType: j.Request.MediaType, Size: j.Request.Size, Label: j.Request.Label,
		},
	}
	for i := range j.Attempts {
		v.Attempts = append(v.Attempts, viewOfAttempt(&j.Attempts[i]))
	}
	if r := j.Result; r != nil {
		v.Result = &resultView{Status: r.Status, Size: r.Size, Kept: !r.NotKept, Answered: instant(r.Answered)}
		if winner := j.Attempt(j.CompletedBy); winner != nil {
			v.Result.Attempt = winner.Number
		}
	}
	return v
}

func viewOfAttempt(a *keystore.Attempt) attemptView {
	e := &a.Evidence
	v := attemptView{
		Number: a.Number, Provider: a.Provider, State: a.State.String(), Reason: a.Reason,
		Started: a.Started.Std(), Ended: instant(a.Ended), Lease: a.Lease.Std(), ListensUntil: instant(a.ListensUntil), Trace: a.Trace,
		Evidence: evidenceView{
			Upstream: e.Upstream, Observed: e.Hooked,
			Asked: e.Asked, Connected: e.Connected, Sent: e.Wrote, FirstByte: e.FirstByte, Resent: e.Resent(),
			Status: e.Status, Size: e.Size,
		},
	}
	v.Evidence.Summary = v.Evidence.words()
	if !a.Ended.IsZero() {
		v.Took = readable(a.Ended.Sub(a.Started))
	}
	if broken := a.Violation; broken != nil {
		v.Violation = &violationView{Path: broken.Path, Expected: broken.Expected, Found: broken.Found}
	}
	if kept := a.Kept; kept != nil && !kept.NotKept {
		v.Kept = &keptView{Status: kept.Status, Size: kept.Size}
	}
	if r := a.Resolution; r != nil {
		v.Resolution = &resolutionView{As: r.State.String(), Actor: r.Actor, Evidence: r.Evidence, At: r.At.Std()}
	}
	if l := a.Lookups; l.Count > 0 || l.Note != "" {
		v.Lookups = &lookupsView{Count: l.Count, Last: instant(l.Last), Status: l.Status, Note: l.Note}
	}
	return v
}

// instant converts t; that there is none stays so.
func instant(t keystore.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.Std()
}

// readable writes a duration without digits that nobody reads.
func readable(d time.Duration) string {
	if d >= time.Second {
		d = d.Round(time.Second)
	}
	return d.Round(time.Millisecond).String()
}
