package keystore

import (
	"slices"
	"time"
)

// Job is the durable record of what a caller wants. Its identity is the name
// made of space, owner and key; it is bound to one fingerprint. There is one
// job per intent, with all attempts to fulfil it.
//
// A *Job that came from a store or from the state machine is not changed by
// anybody: every transition returns a new one.
type Job struct {
	// WriteID is that of the write that put this record into the store. A job
	// that a transition returned has none until the caller draws one.
	WriteID WriteID `cbor:"-"`
	// Unkept points to bodies that attempts had kept, and no longer do. Once the
	// record is written, a store that keeps bodies apart may let them go.
	Unkept []BodyRef `cbor:"-"`

	Name        Name        `cbor:"1,keyasint"`
	ID          string      `cbor:"2,keyasint"`
	Space       string      `cbor:"3,keyasint"`
	Owner       Digest      `cbor:"4,keyasint"`
	KeySent     string      `cbor:"5,keyasint"` // the header's value, in the spelling first sent; empty where it is sealed
	Fingerprint Fingerprint `cbor:"6,keyasint"`
	Request     RequestInfo `cbor:"7,keyasint"`
	Created     Time        `cbor:"8,keyasint"`

	// Retention is how long the job is kept once it is completed or open. It
	// stands in the record since whoever settles the job may not know the route.
	Retention time.Duration `cbor:"9,keyasint"`

	// Version is what an attempt reads at its start and must still find when it
	// commits. It grows when the result slot is taken, and in a write that
	// starts an attempt while no other one is starting or unknown.
	Version  uint64    `cbor:"10,keyasint"`
	Attempts []Attempt `cbor:"11,keyasint"`
	Dropped  int       `cbor:"12,keyasint,omitempty"` // attempts no longer listed

	// CompletedBy names the attempt that won the result slot. The slot is empty
	// as long as it is zero.
	CompletedBy Token     `cbor:"13,keyasint,omitzero"`
	Result      *Response `cbor:"14,keyasint,omitempty"`

	// Expires is when the store forgets the job. It is zero, never, while an
	// attempt is starting or unknown and the slot is empty: time alone never
	// frees a key.
	Expires Time `cbor:"15,keyasint,omitempty"`

	// KeySealed is KeySent where records are encrypted. It never changes either.
	KeySealed *Sealed `cbor:"16,keyasint,omitempty"`
}

// Sealed is something encrypted. Only a [Keyring] makes and opens it.
type Sealed struct {
	By  string `cbor:"1,keyasint"` // the id of the key
	Box []byte `cbor:"2,keyasint"`
}

// Fingerprint is a digest of what was asked, with the recipe that made it: its
// version, and in a text of the recipe's own what else was chosen. A job is
// judged by the recipe that its record names, whatever its route would use now.
type Fingerprint struct {
	Recipe   uint8  `cbor:"1,keyasint"`
	Sum      Digest `cbor:"2,keyasint"`
	Settings string `cbor:"3,keyasint,omitempty"`
}

// SameRecipe reports whether two fingerprints were made in the same way, so that
// their digests can be compared.
func (f Fingerprint) SameRecipe(other Fingerprint) bool {
	return f.Recipe == other.Recipe && f.Settings == other.Settings
}

// RequestInfo is what an operator is shown of the request; never its query,
// body, owner or key.
type RequestInfo struct {
	Method    string `cbor:"1,keyasint"`
	Path      string `cbor:"2,keyasint"`
	MediaType string `cbor:"3,keyasint,omitempty"`
	Size      int64  `cbor:"4,keyasint,omitempty"`
	Label     string `cbor:"5,keyasint,omitempty"`
	Host      string `cbor:"6,keyasint,omitempty"` // as the client asked for it
}

// Response is the one accepted answer of a job.
type Response struct {
	Status   int                 `cbor:"1,keyasint"`
	Header   map[string][]string `cbor:"2,keyasint,omitempty"`
	Trailer  map[string][]string `cbor:"3,keyasint,omitempty"`
	Body     []byte              `cbor:"4,keyasint,omitempty"`
	Size     int64               `cbor:"5,keyasint,omitempty"` // of the body, in bytes, kept or not
	NotKept  bool                `cbor:"6,keyasint,omitempty"` // executed, but the body is not here
	Answered Time                `cbor:"7,keyasint,omitempty"`
	Apart    *BodyRef            `cbor:"8,keyasint,omitempty"`

	// SealedBy is the id of the key with which the response is encrypted; empty if
	// it is not. Then Body is the whole of it, encrypted, there are neither header
	// nor trailer, and Sum stands for the body where sealed ones are compared.
	SealedBy string `cbor:"9,keyasint,omitempty"`
	Sum      Digest `cbor:"10,keyasint,omitzero"`
}

// WithoutBody returns the response as one that is not kept.
func (resp *Response) WithoutBody() *Response {
	without := *resp
	without.Body, without.Apart, without.NotKept = nil, nil, true
	return &without
}

// BodyRef points to a body that its store keeps under a name of its own,
// because it is large. Only stores make and follow it. The token is drawn for
// this one body; size and sum tell whether it is whole, not who wrote it.
type BodyRef struct {
	Token Token  `cbor:"1,keyasint"`
	Size  int64  `cbor:"2,keyasint"`
	Sum   uint64 `cbor:"3,keyasint"` // the store's own
}

// JobState is derived from a job's attempts and its result slot, and never
// stored beside them.
type JobState uint8

// The states of a job.
const (
	// JobOpen: no attempt is starting or unknown and the slot is empty. A fresh
	// request may start the next attempt.
	JobOpen JobState = iota + 1
	// JobRunning: an attempt is starting under a live lease.
	JobRunning
	// JobUnknown: an attempt is unknown, or starting under a lapsed lease, and
	// none is running. New attempts are blocked until that is resolved.
	JobUnknown
	// JobCompleted: the slot is taken.
	JobCompleted
)

// String returns the state's word in the design.
func (s JobState) String() string {
	switch s {
	case JobOpen:
		return "open"
	case JobRunning:
		return "running"
	case JobUnknown:
		return "unknown"
	case JobCompleted:
		return "completed"
	}
	return "invalid"
}

// State derives the job's state at the given instant of the store's clock.
func (j *Job) State(now Time) JobState {
	if !j.CompletedBy.IsZero() {
		return JobCompleted
	}
	state := JobOpen
	for i := range j.Attempts {
		switch a := &j.Attempts[i]; {
		case a.live(now):
			return JobRunning
		case a.Unresolved():
			state = JobUnknown
		}
	}
	return state
}

// Unresolved reports whether the job is running or unknown: whether it belongs
// in the index of unresolved jobs.
func (j *Job) Unresolved() bool {
	return j.CompletedBy.IsZero() && slices.ContainsFunc(j.Attempts, func(a Attempt) bool { return a.Unresolved() })
}

// LeaseEnd is when the last lease of a starting attempt ends; for a job that is
// unknown without one it is when its latest attempt's lease ended. It orders the
// index of unresolved jobs.
func (j *Job) LeaseEnd() Time {
	var starting, end Time
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if a.State == AttemptStarting {
			starting = max(starting, a.Lease)
		}
		end = max(end, a.Lease)
	}
	if starting != 0 {
		return starting
	}
	return end
}

// Attempt returns the attempt with this token, or nil.
func (j *Job) Attempt(t Token) *Attempt {
	for i := range j.Attempts {
		if j.Attempts[i].Token == t {
			return &j.Attempts[i]
		}
	}
	return nil
}

// AttemptCount is how many attempts the job has had, those no longer listed included.
func (j *Job) AttemptCount() int { return len(j.Attempts) + j.Dropped }

// LastAttempt returns the attempt that was started last.
func (j *Job) LastAttempt() *Attempt {
	if len(j.Attempts) == 0 {
		return nil
	}
	return &j.Attempts[len(j.Attempts)-1]
}

// MayReport reports whether the gateway of some attempt may still have
// something to say about it. Forgetting the job before that would let the
// answer of an executed attempt fall on nothing.
func (j *Job) MayReport(now Time) bool {
	return slices.ContainsFunc(j.Attempts, func(a Attempt) bool { return a.mayReport(now) })
}

// clone returns a copy whose attempts can be changed. What attempts and result
// point to is shared: nobody changes that.
func (j *Job) clone() *Job {
	c := *j
	c.WriteID = WriteID{}
	c.Attempts = slices.Clone(j.Attempts)
	return &c
}

// keptAttempts is how many of a job's latest attempts stay listed.
const keptAttempts = 16

// trim drops the middle of a long history: the first attempt, the winner, all
// unresolved ones and the latest keptAttempts stay.
func (j *Job) trim() {
	cut := len(j.Attempts) - keptAttempts
	if cut <= 1 {
		return
	}
	kept := j.Attempts[:0:0]
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if i == 0 || i >= cut || a.Unresolved() || a.Token == j.CompletedBy {
			kept = append(kept, *a)
		}
	}
	j.Dropped += len(j.Attempts) - len(kept)
	j.Attempts = kept
}

// trimmed reports whether an attempt with this number is one that trim would
// have dropped: it is older than the latest keptAttempts and not the first.
func (j *Job) trimmed(number int) bool {
	return j.Dropped > 0 && number > 1 && number <= j.AttemptCount()-keptAttempts
}

// fixExpiry gives the job the expiry that follows from its state. The write
// that completes or opens a job fixes it, as an absolute time; later writes keep
// it, and a job with an unresolved attempt has none.
func (j *Job) fixExpiry(at Time, completes bool) {
	switch {
	case j.Unresolved():
		j.Expires = 0
	case completes || j.Expires.IsZero():
		j.Expires = at.Add(j.Retention)
	}
}
