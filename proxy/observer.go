package proxy

import "time"

// Verdicts of requests, as [Observer] is told of them. For refusals it is the
// refusal's code with underscores.
const (
	VerdictExecuted = "executed" // the request's own attempt answered, or failed for certain
	VerdictReplayed = "replayed" // a stored answer was given
	VerdictWaited   = "waited"   // a stored answer was given after waiting for it
	VerdictBypassed = "bypassed" // not protected, or without a key where keys are optional
	VerdictAborted  = "aborted"  // the client left, or its request could not be read
)

// Incident is something that is counted because an operator may have to know.
type Incident string

// The incidents.
const (
	IncidentLateResult   Incident = "late_result"   // an answer came after its attempt was given up on, and took the slot
	IncidentDiscarded    Incident = "discarded"     // an answer came too late, and was thrown away
	IncidentContradicted Incident = "contradicted"  // an answer contradicts a resolution
	IncidentClaimLost    Incident = "claim_lost"    // the store had forgotten a claim that it had acknowledged
	IncidentResent       Incident = "resent"        // something below the gateway sent an attempt's request again
	IncidentLapsed       Incident = "lease_lapsed"  // a lease ended without a sign of life
	IncidentRenewed      Incident = "lease_renewed" // an attempt outlived two thirds of its lease
	IncidentAborted      Incident = "claim_aborted" // a claim was given up before anything was sent
	IncidentUnrecorded   Incident = "unrecorded"    // an answer was given out before it could be recorded
)

// Observer is told what happens, for metrics. Its methods are called in the
// request's way and must not block.
type Observer interface {
	// Request is told of a request's end.
	Request(verdict string)
	// Attempt is told of an attempt's end and how long it took.
	Attempt(provider, outcome string, took time.Duration)
	// Incident is told of an incident.
	Incident(Incident)
}

// NopObserver ignores everything.
type NopObserver struct{}

// Request implements [Observer].
func (NopObserver) Request(string) {}

// Attempt implements [Observer].
func (NopObserver) Attempt(string, string, time.Duration) {}

// Incident implements [Observer].
func (NopObserver) Incident(Incident) {}
