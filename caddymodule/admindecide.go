package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// What is written into a job's record by hand is bounded.
const (
	maxActor    = 256
	maxEvidence = 4 << 10
)

// resolveRequest is a decision on an unknown attempt.
type resolveRequest struct {
	Attempt  int    `json:"attempt,omitempty"` // default: the only unknown one
	As       string `json:"as"`                // succeeded, failed or cancelled
	Actor    string `json:"actor"`
	Evidence string `json:"evidence"`
	// Response becomes the job's result; with succeeded only.
	Response *givenResponse `json:"response,omitempty"`
	// Kept makes the answer the result that the attempt has kept; with succeeded
	// only, and in place of a response.
	Kept bool `json:"kept,omitempty"`
}

// givenResponse is a response that somebody has given.
type givenResponse struct {
	Status     int         `json:"status"`
	Header     http.Header `json:"header,omitempty"`
	Body       string      `json:"body,omitempty"`
	BodyBase64 []byte      `json:"body_base64,omitempty"` // instead of body
}

// forgetRequest says who wants a job forgotten.
type forgetRequest struct {
	Actor string `json:"actor"`
}

var resolutions = []keystore.AttemptState{keystore.AttemptSucceeded, keystore.AttemptFailed, keystore.AttemptCancelled}

// resolve decides on an unknown attempt.
func (c *adminCall) resolve() (any, error) {
	var req resolveRequest
	if err := c.body(&req); err != nil {
		return nil, err
	}
	req.Actor = cmp.Or(c.actor, req.Actor)
	d := proxy.Decision{Job: c.job, Attempt: req.Attempt, Actor: req.Actor, Evidence: req.Evidence, Kept: req.Kept}
	i := slices.IndexFunc(resolutions, func(s keystore.AttemptState) bool { return s.String() == req.As })
	switch {
	case i < 0:
		return nil, badCall(fmt.Errorf("as %q: an attempt is resolved as succeeded, failed or cancelled", req.As))
	case len(req.Actor) > maxActor:
		return nil, badCall(fmt.Errorf("actor has %d bytes; at most %d are kept", len(req.Actor), maxActor))
	case len(req.Evidence) > maxEvidence:
		return nil, badCall(fmt.Errorf("evidence has %d bytes; at most %d are kept", len(req.Evidence), maxEvidence))
	}
	d.As = resolutions[i]
	if req.Response != nil {
		response, err := req.Response.response()
		if err != nil {
			return nil, badCall(fmt.Errorf("response: %w", err))
		}
		d.Response = response
	}
	hit, err := c.byID()
	if err != nil {
		return nil, err
	}
	d.Keyring = hit.secrets(hit.job.Space).keyring
	j, err := hit.gateway.Resolve(c.r.Context(), d)
	switch {
	case errors.Is(err, keystore.ErrUnavailable) && !errors.Is(err, keystore.ErrNotApplied):
		return nil, fmt.Errorf("resolve: %w; it may have been recorded all the same, so look at the job before you decide again", err)
	case err != nil:
		p := adminErrorOf(fmt.Errorf("resolve: %w", err))
		if j != nil && j.ID == c.job {
			hit.job = j
			p.Job = hit.view()
		}
		return nil, p
	}
	hit.job = j
	return hit.view(), nil
}

// response returns the response as a result. Statuses without a body have none.
func (g *givenResponse) response() (*keystore.Response, error) {
	body := g.BodyBase64
	switch {
	case g.Status < 200 || g.Status > 599:
		return nil, fmt.Errorf("status %d: not one from 200 to 599", g.Status)
	case g.Body != "" && len(g.BodyBase64) > 0:
		return nil, errors.New("give the body as body or as body_base64, not both")
	case g.Body != "":
		body = []byte(g.Body)
	}
	bodiless := g.Status == http.StatusNoContent || g.Status == http.StatusNotModified
	if len(body) > 0 && bodiless {
		return nil, fmt.Errorf("status %d: such a response has no body", g.Status)
	}
	header := make(http.Header)
	for name, values := range g.Header {
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("header %q: not one of HTTP", name)
			}
			header.Add(name, value)
		}
	}
	if length := header.Get("Content-Length"); length != "" && length != "0" && len(body) == 0 && !bodiless {
		return nil, fmt.Errorf("there is no body, and Content-Length says that it has %s bytes; take that header out if that is right", length)
	}
	return &keystore.Response{Status: g.Status, Header: header, Body: body}, nil
}

// forget drops a completed job.
func (c *adminCall) forget() (any, error) {
	var req forgetRequest
	if err := c.body(&req); err != nil {
		return nil, err
	}
	req.Actor = cmp.Or(c.actor, req.Actor)
	if len(req.Actor) > maxActor {
		return nil, badCall(fmt.Errorf("actor has %d bytes; at most %d are taken", len(req.Actor), maxActor))
	}
	hit, err := c.byID()
	if err != nil {
		return nil, err
	}
	if err := hit.gateway.Forget(c.r.Context(), c.job, req.Actor); err != nil {
		p := adminErrorOf(fmt.Errorf("forget: %w", err))
		if j, err := hit.gateway.Job(c.r.Context(), c.job); err == nil && p.status == http.StatusConflict {
			hit.job = j
			p.Job = hit.view()
		}
		return nil, p
	}
	return forgetAnswer{Forgotten: c.job}, nil
}

// forgetAnswer names a job that was forgotten.
type forgetAnswer struct {
	Forgotten string `json:"forgotten"`
}
