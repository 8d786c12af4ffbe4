package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// observation is what was seen when an attempt's handler returned.
type observation struct {
	answer   *keystore.Response // nil where nothing was written
	complete bool               // the answer's end was seen, and it was whole
	err      error              // what the handler returned
	header   http.Header        // what it had set for the answer to that error
	failure  Failure            // what that error says
	panicked any                // what the handler panicked with
	ended    error              // why the attempt's context had ended; nil if it had not
	trace    *trace

	recording time.Time // when the gateway began to record it
}

// verdict is what an observation proves.
type verdict struct {
	outcome keystore.Outcome
	reason  string
	status  int // of the answer or error that proves a failure
	// violation says how the answer breaks the contract.
	violation *keystore.Violation
}

// under returns what an answer comes to under a contract: one that breaks it
// never becomes the job's result, nor is it given to the client where its status
// says that nothing has happened.
func (v verdict) under(contract *Contract, answer *keystore.Response) verdict {
	if contract == nil || answer == nil || v.outcome == keystore.OutcomeUnknown {
		return v
	}
	if v.violation = contract.Judge(answer); v.violation != nil {
		if v.outcome == keystore.OutcomeFinal {
			v.outcome = contract.OutcomeOfViolation()
		}
		v.reason = fmt.Sprintf("answered with status %d, which breaks the contract", answer.Status)
	}
	return v
}

// classify decides what an attempt's end proves. The order matters: facts of
// the transport first, then why we ended the attempt ourselves, and the returned
// error last, since that one can lie: a connection that was refused on a second
// try says nothing about the first.
func classify(seen observation, overrides map[int]keystore.Outcome) verdict {
	if seen.answer == nil && !seen.failure.Answered && seen.trace.soughtInVain() {
		reason := "never sent: no connection was obtained"
		if seen.trace.shut.Load() > 0 {
			reason = keystore.ReasonNeverDispatched + ": the lease was half over when a connection was obtained"
		}
		return verdict{outcome: keystore.OutcomeFailed, reason: reason, status: http.StatusBadGateway}
	}
	switch {
	case seen.ended != nil && !seen.undoubted():
		return verdict{outcome: keystore.OutcomeUnknown, reason: seen.ended.Error()}
	case isAbort(seen.panicked):
		return verdict{outcome: keystore.OutcomeUnknown, reason: "the answer was cut, or its handler aborted"}
	case seen.panicked != nil:
		return verdict{outcome: keystore.OutcomeUnknown, reason: fmt.Sprintf("its handler panicked (%T)", seen.panicked)}
	case seen.err != nil:
		return classifyError(seen)
	case !seen.complete:
		return verdict{outcome: keystore.OutcomeUnknown, reason: "the answer was shorter than it had announced"}
	}
	return classifyAnswer(seen.answer, overrides)
}

// undoubted reports whether a whole answer has come all the same although we had
// ended the attempt by then. Many a handler takes the end of its context for the
// end of its answer, and returns as if nothing were wrong; only an answer that
// has said how long it is can't deceive.
func (o *observation) undoubted() bool {
	return o.err == nil && o.panicked == nil && o.complete && o.answer.Header["Content-Length"] != nil &&
		outcomeOfStatus(o.answer.Status, o.answer.Header) == keystore.OutcomeFinal
}

func classifyError(seen observation) verdict {
	status := seen.failure.Status
	// Of a gateway in the same chain, whose site has pages for errors.
	if refusal, ok := errors.AsType[*Refusal](seen.err); ok && seen.answer == nil && outcomeOfRefusal(refusal.Code) == keystore.OutcomeFailed {
		return verdict{outcome: keystore.OutcomeFailed, reason: "a gateway behind this one refused with " + refusal.Code, status: refusal.Status}
	}
	if seen.failure.Answered { // by handlers that may have carried it out themselves
		return verdict{outcome: keystore.OutcomeUnknown, reason: fmt.Sprintf("a handler made an error with status %d of the answer", status)}
	}
	if seen.answer == nil && seen.trace.connected.Load() == 0 {
		hooked, unseen := seen.trace.asked.Load() > 0, seen.trace.unseen()
		switch {
		case !hooked && seen.failure.DialFailed && !seen.failure.Retried && unseen <= 1:
			return verdict{outcome: keystore.OutcomeFailed, reason: "never sent: the connection was refused", status: http.StatusBadGateway}
		case unseen > 0: // whoever says no says it after somebody else may have been asked
		case status == http.StatusRequestTimeout, status == 499:
		case status >= 400 && status < 500, status == http.StatusServiceUnavailable:
			return verdict{outcome: keystore.OutcomeFailed, reason: fmt.Sprintf("refused with status %d before any connection was sought", status), status: status}
		}
	}
	return verdict{outcome: keystore.OutcomeUnknown, reason: "broke off: no complete answer came"}
}

func classifyAnswer(answer *keystore.Response, overrides map[int]keystore.Outcome) verdict {
	status := answer.Status
	v := verdict{status: status}
	if code := refusalCode(answer); code != "" {
		v.outcome = outcomeOfRefusal(code)
		v.reason = fmt.Sprintf("a gateway behind this one refused with %s", code)
		return v
	}
	outcome, overridden := overrides[status]
	if !overridden {
		outcome = outcomeOfStatus(status, answer.Header)
	}
	v.outcome = outcome
	v.reason = fmt.Sprintf("answered with status %d", status)
	if outcome == keystore.OutcomeUnknown && !overridden {
		v.reason += fmt.Sprintf(", which may be somebody else's guess; if it proves that nothing happened, set `outcome %d failed` on the route", status)
	}
	return v
}

// outcomeOfStatus is what a complete answer proves by its status.
func outcomeOfStatus(status int, header http.Header) keystore.Outcome {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return keystore.OutcomeFailed
	case http.StatusServiceUnavailable:
		if header.Get("Retry-After") != "" {
			return keystore.OutcomeFailed
		}
		return keystore.OutcomeUnknown
	case http.StatusRequestTimeout, 499, http.StatusBadGateway, http.StatusGatewayTimeout,
		520, 521, 522, 523, 524, 525, 526, 527, 530, 598, 599:
		return keystore.OutcomeUnknown
	}
	return keystore.OutcomeFinal
}

// outcomeOfRefusal is what the refusal of another gateway like this one proves.
func outcomeOfRefusal(code string) keystore.Outcome {
	switch code {
	case CodeStoreUnavailable, CodeNotExecuted, CodeLoop, CodeKeyMissing, CodeKeyInvalid, CodeOwnerMissing, CodeRequestTooLarge, CodeTooEarly:
		return keystore.OutcomeFailed
	case CodeKeyReused, CodeResultNotKept:
		return keystore.OutcomeFinal
	}
	return keystore.OutcomeUnknown
}

// refusalCode returns the code of an answer that is a refusal of a gateway like
// this one, or nothing. Its site may have given it another body, and another status:
// some APIs have 200 for whatever goes wrong.
func refusalCode(answer *keystore.Response) string {
	if code := http.Header(answer.Header).Get(HeaderRefused); code != "" {
		return code
	}
	if answer.Status < 400 {
		return ""
	}
	if t, _, err := mime.ParseMediaType(http.Header(answer.Header).Get("Content-Type")); err != nil || t != problemType {
		return ""
	}
	var problem struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(answer.Body, &problem) != nil {
		return ""
	}
	code, ok := strings.CutPrefix(problem.Type, problemURN)
	if !ok {
		return ""
	}
	return code
}

// isAbort reports whether a handler panicked to say that an answer is not whole.
func isAbort(panicked any) bool {
	err, ok := panicked.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}
