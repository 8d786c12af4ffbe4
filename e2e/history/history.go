// Package history judges what has happened in a run with faults: what clients
// asked for and were told, what the upstream executed, what was decided by hand,
// and when a store may have lost what it had acknowledged. It sees the gateway
// from outside only, so that nothing which the gateway believes can excuse it.
package history

import "time"

// History is what happened. All instants are counted from the run's start.
type History struct {
	Requests   []Request
	Executions []Execution
	Decisions  []Decision
	// Failovers are the spans in which the store changed its primary.
	Failovers []Span
	// Full are the spans in which the store had no memory for new records.
	Full []Span
	// Durable: the store was told to wait for copies, so that what it acknowledges
	// outlives a failover.
	Durable bool
	// Jumps are the steps of the store's clock, in their order.
	Jumps []Jump
	// Unknown are the jobs that are unknown at the end, by their ids.
	Unknown map[string]bool
}

// Span is a time between two instants.
type Span struct {
	From, To time.Duration
	// Beyond: a failover that is beyond what a number of copies protects from. A primary
	// was replaced that was alive, and went on acknowledging to a replica which had not
	// been told yet; or the replica was promoted that has less than the other one.
	Beyond bool
}

// Jump says how far the store's clock is ahead of the real one from then on.
type Jump struct{ At, Ahead time.Duration }

// Request is one request of a client, and how it ended.
type Request struct {
	Key          string
	Asked        string // what was asked for: the same for equal bodies
	Began, Ended time.Duration

	// Heard: an answer came, whole. Without, all that follows is empty.
	Heard    bool
	Status   int
	Code     string // of a refusal by the gateway
	Job      string
	Answer   string // the answer's body, if it is not a refusal
	Replayed bool
	// Unrecorded: the answer was marked as one that could not be recorded in time.
	Unrecorded bool
	// Passed: the upstream's word that it has done nothing, passed on as it came.
	Passed bool
	// Last: asked when all faults were over, until there was an answer.
	Last bool
}

// answered reports whether the request was told its job's result.
func (r *Request) answered() bool { return r.Heard && r.Code == "" && !r.Passed }

// Execution is one request that the upstream has read to its end.
type Execution struct {
	Key, Asked string
	At         time.Duration
	Job        string
	Attempt    int
	Token      string // what tells the attempt from all others
	Answer     string // what its answer's body says; no two executions say the same
	// Refused: it was answered in a way that proves that it had no effect.
	Refused bool
	// Racing: its route lets several attempts run at the same time.
	Racing bool
	// Retention is how long its route keeps an answer.
	Retention time.Duration
}

// Decision is what somebody has decided of an attempt that was unknown, and was
// not refused.
type Decision struct {
	Job          string
	Attempt      int
	As           string // succeeded, failed or cancelled
	Answer       string // with succeeded: the result that was given
	Began, Ended time.Duration
}
