package keystore

// Attempt is one try at fulfilling a job on one provider. It is identified by
// job and token, never by its number alone: a store that lost a record can make
// two attempts carry one number.
type Attempt struct {
	Number   int          `cbor:"1,keyasint"`
	Token    Token        `cbor:"2,keyasint"`
	Provider string       `cbor:"3,keyasint,omitempty"` // empty: the rest of the site's chain
	State    AttemptState `cbor:"4,keyasint"`

	// Version is the job's version after the write that started this attempt.
	Version uint64 `cbor:"5,keyasint"`
	Started Time   `cbor:"6,keyasint"`

	// Lease is until when the claim is believed without a sign of life from its
	// gateway. Its end means unknown, never free.
	Lease Time `cbor:"7,keyasint"`

	// ListensUntil is after when its gateway has nothing to say of it any more.
	ListensUntil Time `cbor:"8,keyasint"`

	// Ended is when its gateway made its last report; zero while it may still
	// make one, and for ever if it was lost.
	Ended Time `cbor:"9,keyasint,omitempty"`

	// Reason says in words what brought the attempt into its state.
	Reason     string      `cbor:"10,keyasint,omitempty"`
	Evidence   Evidence    `cbor:"11,keyasint,omitzero"`
	Resolution *Resolution `cbor:"12,keyasint,omitempty"`

	// Lookups is what a reconciler has learned by asking the upstream.
	Lookups Lookups `cbor:"13,keyasint,omitzero"`

	// Violation says how its answer breaks the route's contract; nil if none did.
	Violation *Violation `cbor:"40,keyasint,omitempty"`
	// Kept is the answer that broke the contract. It is there only as long as the
	// attempt is unknown, for whoever resolves it as succeeded with that answer.
	Kept *Response `cbor:"41,keyasint,omitempty"`

	// Trace is the trace context of the request that the attempt was started for, as
	// W3C's traceparent has it; empty if nobody traced that.
	Trace string `cbor:"60,keyasint,omitempty"`
}

// AttemptState is the state of one attempt.
type AttemptState uint8

// The states of an attempt, with who moves it there.
const (
	// AttemptStarting: a claim made it. Any state may follow.
	AttemptStarting AttemptState = iota + 1
	// AttemptSucceeded: a commit that won the result slot, or an operator or
	// reconciler who resolved it so. Final; a later answer is evidence only.
	AttemptSucceeded
	// AttemptFailed: it is certain that no effect happened, by the attempt's own
	// proof or by a resolution. The attempt's own proof is final; a resolution
	// can be contradicted by a late success, which then takes the empty slot or
	// makes the attempt discarded.
	AttemptFailed
	// AttemptUnknown: it may have been executed and nobody knows. Its own late
	// result or proof, or a resolution, moves it on.
	AttemptUnknown
	// AttemptCancelled: an operator or reconciler decided that it counts for
	// nothing. A late result makes it discarded.
	AttemptCancelled
	// AttemptDiscarded: it finished, or was cut short, after another attempt had
	// taken the slot or it had been cancelled. Final; its body is not kept.
	AttemptDiscarded
)

// String returns the state's word in the design.
func (s AttemptState) String() string {
	switch s {
	case AttemptStarting:
		return "starting"
	case AttemptSucceeded:
		return "succeeded"
	case AttemptFailed:
		return "failed"
	case AttemptUnknown:
		return "unknown"
	case AttemptCancelled:
		return "cancelled"
	case AttemptDiscarded:
		return "discarded"
	}
	return "invalid"
}

// Evidence is what was seen of an attempt on the wire. An operator decides on it.
type Evidence struct {
	Upstream string `cbor:"1,keyasint,omitempty"` // address of the connection

	// How often the transport asked for a connection, got one, wrote the whole
	// request, and saw the first byte of an answer. Hooked says whether it
	// reports such things at all.
	Hooked    bool `cbor:"2,keyasint,omitempty"`
	Asked     int  `cbor:"3,keyasint,omitempty"`
	Connected int  `cbor:"4,keyasint,omitempty"`
	Wrote     int  `cbor:"5,keyasint,omitempty"`
	FirstByte int  `cbor:"6,keyasint,omitempty"`

	Status int   `cbor:"7,keyasint,omitempty"` // of a complete answer; zero without one
	Size   int64 `cbor:"8,keyasint,omitempty"` // of the answer's body, in bytes
}

// Resent reports whether something below the gateway sent the request again.
func (e *Evidence) Resent() bool { return e.Connected > 1 }

// Resolution is an out-of-band decision on an unknown attempt.
type Resolution struct {
	State    AttemptState `cbor:"1,keyasint"` // succeeded, failed or cancelled
	Actor    string       `cbor:"2,keyasint"`
	Evidence string       `cbor:"3,keyasint"`
	At       Time         `cbor:"4,keyasint"`
	// ID tells two decisions apart that say the same.
	ID WriteID `cbor:"5,keyasint,omitzero"`
	// Kept says, with succeeded, that the result is the answer that the attempt
	// kept although it broke the contract.
	Kept bool `cbor:"40,keyasint,omitempty"`
}

// Lookups sums up how often an upstream was asked whether an attempt was
// executed, and what it said last.
type Lookups struct {
	Count  int    `cbor:"1,keyasint"`
	Last   Time   `cbor:"2,keyasint"`
	Status int    `cbor:"3,keyasint,omitempty"` // of the last answer; zero: none came
	Note   string `cbor:"4,keyasint,omitempty"` // in words
}

// Unresolved reports whether the attempt is starting or unknown: whether it may
// still turn out to have been executed.
func (a *Attempt) Unresolved() bool {
	return a.State == AttemptStarting || a.State == AttemptUnknown
}

// live reports whether the attempt is starting under a live lease. A lease that
// is missing is held, not abandoned: the absence of a deadline is no proof of
// anything.
func (a *Attempt) live(now Time) bool {
	return a.State == AttemptStarting && (a.Lease.IsZero() || now < a.Lease)
}

func (a *Attempt) mayReport(now Time) bool {
	return a.State == AttemptStarting || (a.Ended.IsZero() && now < a.ListensUntil)
}
