package proxy

import (
	"strings"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Verdicts of requests, as [Observer] is told of them. For refusals it is the
// refusal's code with underscores.
const (
	VerdictExecuted      = "executed"       // the request's own attempt answered, or failed for certain
	VerdictReplayed      = "replayed"       // a stored answer was given
	VerdictWaited        = "waited"         // a stored answer was given after waiting for it
	VerdictBypassed      = "bypassed"       // not protected, or without a key where keys are optional
	VerdictReplayRefused = "replay_refused" // the site's check let no stored answer out
	VerdictAborted       = "aborted"        // the client left, or its request could not be read
)

// Verdicts returns all that there are.
func Verdicts() []string {
	all := []string{VerdictExecuted, VerdictReplayed, VerdictWaited, VerdictBypassed, VerdictAborted}
	for _, code := range refusalCodes {
		all = append(all, verdictOf(code))
	}
	return all
}

// verdictOf is the verdict of a request that was refused with this code.
func verdictOf(code string) string { return strings.ReplaceAll(code, "-", "_") }

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
	// A request would have failed over, or raced, to a provider without a proof.
	IncidentFallbackUnproven Incident = "fallback_unproven"
	IncidentViolation        Incident = "violation"  // an answer broke the contract
	IncidentUnrecorded       Incident = "unrecorded" // an answer was given out before it could be recorded
)

// Incidents returns all that there are.
func Incidents() []Incident {
	return []Incident{
		IncidentLateResult, IncidentDiscarded, IncidentContradicted, IncidentClaimLost, IncidentResent, IncidentLapsed,
		IncidentRenewed, IncidentAborted, IncidentFallbackUnproven, IncidentViolation, IncidentUnrecorded,
	}
}

// EventName names an [Event].
type EventName string

// The events.
const (
	EventOutcomeUnknown EventName = "outcome_unknown" // an attempt became unknown
	EventResolved       EventName = "resolved"        // an unknown attempt was resolved
	EventLateResult     EventName = "late_result"     // an attempt that had been unknown came to its result
	// No attempt followed, or raced, since no other provider was proven.
	EventFallbackUnproven EventName = "fallback_unproven"
	EventContradicted     EventName = "contradicted" // an attempt's end contradicts how it was resolved
	EventClaimLost        EventName = "claim_lost"   // the store had forgotten a claim that it had acknowledged
	EventForgotten        EventName = "forgotten"    // a completed job was dropped, so that its key is new
	EventProven           EventName = "proven"       // a provider has passed its contract
	EventUnproven         EventName = "unproven"     // a provider's proof was taken back
)

// EventNames returns all that there are.
func EventNames() []EventName {
	return []EventName{
		EventOutcomeUnknown, EventResolved, EventLateResult, EventFallbackUnproven, EventContradicted, EventClaimLost,
		EventForgotten, EventProven, EventUnproven,
	}
}

// Event is something that people or programs elsewhere may want to be told of.
// It is told once the store has recorded it, by the gateway that recorded it.
type Event struct {
	Name    EventName
	Job     *keystore.Job // as it was recorded
	Attempt int           // the attempt's number
	Reason  string        // in words
}

// Observer is told what happens, for metrics and events. Its methods are called
// in the request's way and must not block.
type Observer interface {
	// Request is told of a request's end.
	Request(verdict string)
	// Waited is told how long a request has waited for another one's attempt,
	// whatever came of that.
	Waited(took time.Duration)
	// Attempt is told of an attempt's end and how long it took.
	Attempt(provider, outcome string, took time.Duration)
	// Incident is told of an incident.
	Incident(Incident)
	// Event is told of an event.
	Event(Event)
}

// ProviderObserver is what an [Observer] may be besides.
type ProviderObserver interface {
	// ProviderAttempt is told of the end of an attempt on a provider of a space, which
	// the observer is told of as well.
	ProviderAttempt(space, provider, outcome string)
	// ProviderIncident is told of an incident of such an attempt, likewise.
	ProviderIncident(space, provider string, i Incident)
}

// outcome tells of the end of this attempt.
func (a *attempt) outcome(word string) {
	a.g.observer.Attempt(a.provider, word, time.Since(a.began))
	if o, ok := a.g.observer.(ProviderObserver); ok {
		o.ProviderAttempt(a.route.Space, a.provider, word)
	}
}

// incident tells of an incident of this attempt.
func (a *attempt) incident(i Incident) {
	a.g.observer.Incident(i)
	if o, ok := a.g.observer.(ProviderObserver); ok {
		o.ProviderIncident(a.route.Space, a.provider, i)
	}
}

// NopObserver ignores everything.
type NopObserver struct{}

// Request implements [Observer].
func (NopObserver) Request(string) {}

// Waited implements [Observer].
func (NopObserver) Waited(time.Duration) {}

// Attempt implements [Observer].
func (NopObserver) Attempt(string, string, time.Duration) {}

// Incident implements [Observer].
func (NopObserver) Incident(Incident) {}

// Event implements [Observer].
func (NopObserver) Event(Event) {}
