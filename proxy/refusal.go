package proxy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// The codes of refusals. They are the last part of the problem's type, and part
// of the contract with clients.
const (
	CodeKeyMissing       = "key-missing"
	CodeKeyInvalid       = "key-invalid"
	CodeOwnerMissing     = "owner-missing"
	CodeRequestTooLarge  = "request-too-large"
	CodeTooEarly         = "too-early"
	CodeKeyReused        = "key-reused"
	CodeInFlight         = "in-flight"
	CodeOutcomeUnknown   = "outcome-unknown"
	CodeNotExecuted      = "not-executed"
	CodeResultNotKept    = "result-not-kept"
	CodeStoreUnavailable = "store-unavailable"
	CodeRecordLost       = "record-lost"
	CodeTooManyWaiters   = "too-many-waiters"
	CodeLoop             = "loop"
	CodeReplayRefused    = "replay-refused"
	CodeNoSuchJob        = "no-such-job"
	CodeMethodNotAllowed = "method-not-allowed"
)

// refusalCodes are those of requests that a route refuses.
var refusalCodes = []string{
	CodeKeyMissing, CodeKeyInvalid, CodeOwnerMissing, CodeRequestTooLarge, CodeTooEarly, CodeKeyReused, CodeInFlight,
	CodeOutcomeUnknown, CodeNotExecuted, CodeResultNotKept, CodeStoreUnavailable, CodeRecordLost, CodeTooManyWaiters,
	CodeLoop, CodeReplayRefused,
}

const (
	problemType = "application/problem+json" // RFC 9457
	problemURN  = "urn:idempotency:"
)

// Advice is a word that a machine can act on.
type Advice string

// The advices.
const (
	AdviceFixRequest        Advice = "fix-request"
	AdviceNewKey            Advice = "new-key"
	AdviceRetrySameKey      Advice = "retry-same-key"
	AdviceWaitForResolution Advice = "wait-for-resolution"
	AdviceAlreadyDone       Advice = "already-done"
)

// Refusal is the gateway's own answer. It is an error, so that it can be handed
// to whatever writes a site's error pages; [Refusal.Write] writes it as problem
// details.
type Refusal struct {
	Code   string
	Status int
	Advice Advice
	// Title and Detail say to a person what is the matter and what to do. They
	// name no upstream, key or owner.
	Title, Detail string
	// RetryAfter is rounded up to whole seconds. Zero: none.
	RetryAfter time.Duration
	// Job is the job's id, where one is known, with its state and how many
	// attempts it has had.
	Job      string
	State    string
	Attempts int
	// The attempt that stands in the request's way, and its provider; for logs.
	attempt  int
	provider string
	// Location is where the job's status can be asked for, if anywhere.
	Location string
	// ExecutedStatus and ExecutedAt stand for a result that was not kept.
	ExecutedStatus int
	ExecutedAt     time.Time
	// Err is what led to the refusal; for logs, not for clients.
	Err error
}

// Error implements error.
func (r *Refusal) Error() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: %v", r.Code, r.Err)
	}
	return r.Code + ": " + r.Detail
}

// Unwrap returns what led to the refusal.
func (r *Refusal) Unwrap() error { return r.Err }

// verdict is what the observer is told of a request that was refused so.
func (r *Refusal) verdict() string { return verdictOf(r.Code) }

// SetHeaders sets the header fields that belong to the refusal, apart from those
// of its body.
func (r *Refusal) SetHeaders(h http.Header) {
	h.Set(HeaderRefused, r.Code)
	if r.Job != "" {
		h.Set(HeaderJob, r.Job)
	}
	if r.Location != "" {
		h.Set("Location", r.Location)
	}
	if r.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((r.RetryAfter+time.Second-1)/time.Second)))
	}
}

// errorObject says the same once more for SDKs that know an error by the member
// of that name, and take an answer without it for a success whatever its status:
// that of Stripe for Node does. The words of type are those that payment and AI
// APIs have in common.
type errorObject struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *Refusal) errorObject() errorObject {
	kind := "api_error"
	switch r.Advice {
	case AdviceFixRequest:
		kind = "invalid_request_error"
	case AdviceNewKey:
		kind = "idempotency_error"
	}
	return errorObject{Type: kind, Code: r.Code, Message: r.Title + ". " + r.Detail}
}

// Write answers with the refusal as problem details (RFC 9457).
func (r *Refusal) Write(w http.ResponseWriter) error {
	problem := struct {
		Type           string      `json:"type"`
		Title          string      `json:"title"`
		Status         int         `json:"status"`
		Detail         string      `json:"detail"`
		Code           string      `json:"code"`
		Advice         Advice      `json:"advice"`
		Job            string      `json:"job,omitempty"`
		State          string      `json:"state,omitempty"`
		Attempts       int         `json:"attempts,omitempty"`
		ExecutedStatus int         `json:"executed_status,omitempty"`
		ExecutedAt     string      `json:"executed_at,omitempty"`
		Error          errorObject `json:"error"`
	}{
		Type: problemURN + r.Code, Title: r.Title, Status: r.Status, Detail: r.Detail, Code: r.Code,
		Advice: r.Advice, Job: r.Job, State: r.State, Attempts: r.Attempts, ExecutedStatus: r.ExecutedStatus, Error: r.errorObject(),
	}
	if !r.ExecutedAt.IsZero() {
		problem.ExecutedAt = r.ExecutedAt.UTC().Format(time.RFC3339)
	}
	body, err := json.Marshal(problem)
	if err != nil {
		return fmt.Errorf("encode refusal %s: %w", r.Code, err)
	}
	r.SetHeaders(w.Header())
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(r.Status)
	_, err = w.Write(append(body, '\n'))
	return err
}

// about adds what is known of a job.
func (r *Refusal) about(j *keystore.Job, now keystore.Time) *Refusal {
	if j != nil {
		decisive := decisiveAttempt(j)
		r.Job, r.State, r.Attempts = j.ID, j.State(now).String(), j.AttemptCount()
		r.attempt, r.provider = decisive.Number, decisive.Provider
	}
	return r
}

func refuseRequest(code, detail string) *Refusal {
	r := &Refusal{Code: code, Status: http.StatusBadRequest, Advice: AdviceFixRequest, Detail: detail}
	switch code {
	case CodeKeyMissing:
		r.Title = "An idempotency key is required"
	case CodeKeyInvalid:
		r.Title = "The idempotency key is not valid"
	case CodeOwnerMissing:
		r.Title = "The caller is not known"
	case CodeRequestTooLarge:
		r.Title, r.Status = "The request is too large", http.StatusRequestEntityTooLarge
	}
	return r
}

func refuseStore(err error) *Refusal {
	return &Refusal{
		Code: CodeStoreUnavailable, Status: http.StatusServiceUnavailable, Advice: AdviceRetrySameKey,
		Title:      "The record of requests is not available",
		Detail:     "This request was not passed on. Repeat it with the same key.",
		RetryAfter: jitter(time.Second), Err: err,
	}
}

// refuseHeld refuses a request whose body has no place to stay in meanwhile.
func refuseHeld(err error) *Refusal {
	r := refuseStore(err)
	r.Title = "There is no room for the request's body"
	return r
}

func (c *Config) refuseReused() *Refusal {
	status := http.StatusConflict
	if c.Statuses == StatusesIETF {
		status = http.StatusUnprocessableEntity
	}
	return &Refusal{
		Code: CodeKeyReused, Status: status, Advice: AdviceNewKey,
		Title:  "The idempotency key was used for another request",
		Detail: "A key stands for one request: same " + c.Fingerprint.compared() + ". Use a new key for a new request.",
	}
}

func refuseEarly(keyHeader string) *Refusal {
	return &Refusal{
		Code: CodeTooEarly, Status: http.StatusTooEarly, Advice: AdviceRetrySameKey,
		Title: "The request came too early",
		Detail: "It came before the TLS handshake was over, so that somebody in between could send it again, and it has no " + keyHeader +
			" by which that would be noticed. Repeat it as it is after the handshake.",
	}
}

func refuseReplay() *Refusal {
	return &Refusal{
		Code: CodeReplayRefused, Status: http.StatusForbidden, Advice: AdviceFixRequest,
		Title:  "The stored answer is not given out",
		Detail: "The site's check of who may have stored answers did not let this request pass. Nothing is executed again.",
	}
}

func refuseLoop() *Refusal {
	return &Refusal{
		Code: CodeLoop, Status: http.StatusLoopDetected, Advice: AdviceFixRequest,
		Title:  "Two gateways in a row share one space",
		Detail: "The gateway before this one has sent the request on and waits for its answer, which this one would wait for too. Give the inner gateway a space of its own.",
	}
}

func refuseInFlight(j *keystore.Job, now keystore.Time) *Refusal {
	return &Refusal{
		Code: CodeInFlight, Status: http.StatusConflict, Advice: AdviceRetrySameKey,
		Title:      "The first request with this key is still running",
		Detail:     "Its answer will be given to a repetition with the same key.",
		RetryAfter: retryHint(j, now),
	}
}

// retryHint grows with what is left of the running attempt's lease, so that the
// duplicates of a slow job don't all come back at once, again and again.
func retryHint(j *keystore.Job, now keystore.Time) time.Duration {
	left := time.Second
	if j != nil {
		left = j.LeaseEnd().Sub(now)
	}
	return jitter(min(max(left/8, time.Second), 30*time.Second))
}

// jitter adds up to a half.
func jitter(d time.Duration) time.Duration {
	return d + rand.N(d/2+1)
}

// refuseUnknown invites to come back only where something will settle the job by
// itself.
func (c *Config) refuseUnknown() *Refusal {
	r := &Refusal{
		Code: CodeOutcomeUnknown, Status: http.StatusGatewayTimeout, Advice: AdviceWaitForResolution,
		Title: "It is not known whether the request was executed",
		Detail: "The request may have been executed. It will not be executed again before that is settled. " +
			"Don't send it under another key; ask the operator about this job.",
	}
	if c.Reconcile != nil {
		r.RetryAfter = jitter(c.Reconcile.Every)
	}
	return r
}

func refuseNotExecuted(j *keystore.Job) *Refusal {
	status := http.StatusBadGateway
	if j != nil {
		if a := j.LastAttempt(); a != nil && a.Evidence.Status >= 400 {
			status = a.Evidence.Status
		}
	}
	return &Refusal{
		Code: CodeNotExecuted, Status: status, Advice: AdviceRetrySameKey,
		Title:      "The request was not executed",
		Detail:     "The attempt that this request waited for certainly had no effect. Repeat the request with the same key.",
		RetryAfter: jitter(time.Second),
	}
}

func refuseNotKept(result *keystore.Response) *Refusal {
	return &Refusal{
		Code: CodeResultNotKept, Status: http.StatusGone, Advice: AdviceAlreadyDone,
		Title:          "The request was executed; its answer was not kept",
		Detail:         "The request was executed once and is not executed again. Its answer was too large to be kept, or is no longer there.",
		ExecutedStatus: result.Status, ExecutedAt: result.Answered.Std(),
	}
}

// refuseIncomplete says what became of an attempt whose answer could neither be
// kept whole nor be passed on as it came: there is only a part of it.
func refuseIncomplete(rep reply) *Refusal {
	if rep.outcome == keystore.OutcomeFailed {
		return refuseNotExecuted(rep.job)
	}
	return refuseNotKept(rep.answer) // the job as it is known may be that from before
}

func refuseLost(known *keystore.Job) *Refusal {
	r := &Refusal{
		Code: CodeRecordLost, Status: http.StatusServiceUnavailable, Advice: AdviceWaitForResolution,
		Title:  "The record of this request has vanished",
		Detail: "The first request with this key was running, and its record is gone. It may have been executed.",
	}
	if known != nil {
		r.Job, r.Attempts = known.ID, known.AttemptCount()
	}
	return r
}

func refuseWaiters() *Refusal {
	return &Refusal{
		Code: CodeTooManyWaiters, Status: http.StatusServiceUnavailable, Advice: AdviceRetrySameKey,
		Title:      "Too many repetitions of this request are waiting",
		Detail:     "The first request with this key is still running. Repeat later with the same key.",
		RetryAfter: jitter(2 * time.Second),
	}
}
