package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// The codes of the admin API's refusals.
const (
	codeBadCall        = "bad-request"        // 400: incomplete or not understood
	codeNoAttempt      = "no-such-attempt"    // 400: no attempt has this number, or several are meant
	codeAmbiguous      = "several-stores"     // 400: several stores have such a job
	codeUnauthorized   = "unauthorized"       // 401: the token is missing or wrong
	codeCrossOrigin    = "cross-origin"       // 403: sent by a page of another site
	codeNobody         = "unknown-user"       // 403: the console does not know whom it would serve
	codeNoJob          = "no-such-job"        // 404
	codeNotFound       = "not-found"          // 404: no such path
	codeMethod         = "method-not-allowed" // 405
	codeNotResolvable  = "not-resolvable"     // 409: the attempt is not unknown, or not any more
	codeNotForgettable = "not-forgettable"    // 409: not completed, or an attempt may still report
	codeEncrypted      = "encrypted"          // 409: the job is encrypted, and no route here has its key
	codeTooLarge       = "request-too-large"  // 413
	codeMediaType      = "media-type"         // 415: the body is not said to be JSON
	codeUnreadable     = "record-unreadable"  // 500: the store has a record that this version can't read
	codeInternal       = "internal"           // 500
	codeNotRunning     = "not-running"        // 503: the running configuration has no idempotency handler
	codeNoStore        = "store-unavailable"  // 503
)

// adminError is the answer to a call that was not done.
type adminError struct {
	Message string `json:"error"`
	Code    string `json:"code"`
	// Job is the job as it is at present, where it is the reason.
	Job *jobView `json:"job,omitempty"`

	status int
	allow  string // the method that would be allowed
	err    error
}

func (p *adminError) Error() string { return p.Message }
func (p *adminError) Unwrap() error { return p.err }

func newAdminError(status int, code, format string, args ...any) *adminError {
	err := fmt.Errorf(format, args...)
	return &adminError{Message: err.Error(), Code: code, status: status, err: errors.Unwrap(err)}
}

func badCall(err error) *adminError {
	return newAdminError(http.StatusBadRequest, codeBadCall, "%w", err)
}

// adminErrorOf returns what is answered to a call that ended with this error.
func adminErrorOf(err error) *adminError {
	if p, ok := errors.AsType[*adminError](err); ok {
		return p
	}
	p := newAdminError(http.StatusInternalServerError, codeInternal, "%w", err)
	for _, known := range []struct {
		err    error
		status int
		code   string
	}{
		{proxy.ErrNoJob, http.StatusNotFound, codeNoJob},
		{proxy.ErrNoAttempt, http.StatusBadRequest, codeNoAttempt},
		{proxy.ErrDecision, http.StatusBadRequest, codeBadCall},
		{keystore.ErrNotResolvable, http.StatusConflict, codeNotResolvable},
		{keystore.ErrNotForgettable, http.StatusConflict, codeNotForgettable},
		{keystore.ErrSealed, http.StatusConflict, codeEncrypted},
		{keystore.ErrCorrupt, http.StatusInternalServerError, codeUnreadable},
		{keystore.ErrUnavailable, http.StatusServiceUnavailable, codeNoStore},
		{keystore.ErrClosed, http.StatusServiceUnavailable, codeNoStore},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, codeNoStore},
		{context.Canceled, http.StatusServiceUnavailable, codeNoStore},
	} {
		if errors.Is(err, known.err) {
			p.status, p.Code = known.status, known.code
			break
		}
	}
	return p
}

func (p *adminError) setHeader(h http.Header) {
	if p.allow != "" {
		h.Set("Allow", p.allow)
	}
	if p.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="idempotency"`)
	}
}
