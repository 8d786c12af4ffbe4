package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

// callTime bounds one call of the API.
const callTime = time.Minute

// callError is a call of the API that was not done.
type callError struct {
	exit    int
	problem adminError
	answer  json.RawMessage // the API's, if it has answered
	err     error
}

func (r *callError) Error() string { return r.err.Error() }
func (r *callError) Unwrap() error { return r.err }

// adminClient calls the admin API of a running Caddy. Caddy's own helper for
// commands is of no use here: it makes one text of the answer's status and body.
type adminClient struct {
	address string // as it was given
	base    string
	origin  string
	token   string
	http    *http.Client
}

func (c *call) client() (*adminClient, error) {
	address, err := caddycmd.DetermineAdminAPIAddress(c.text("address"), nil, c.text("config"), c.text("adapter"))
	if err != nil {
		return nil, fmt.Errorf("find the address of the admin endpoint: %w", err)
	}
	parsed, err := caddy.ParseNetworkAddress(address)
	if err != nil || parsed.PortRangeSize() > 1 || parsed.IsFdNetwork() {
		return nil, fmt.Errorf("%q is not an address of one admin endpoint; give it as --address host:port or --address unix//path", address)
	}
	client := &adminClient{address: address, token: strings.TrimSpace(c.secret("token", envToken))}
	target := parsed.JoinHostPort(0)
	if parsed.IsUnixNetwork() {
		client.base = "http://127.0.0.1" // a host is needed, and means nothing
		target, _, _ = strings.Cut(parsed.Host, "|")
	} else {
		client.base = "http://" + target
		client.origin = client.base // for an endpoint that enforces it
	}
	client.http = &http.Client{
		Timeout: callTime,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, parsed.Network, target)
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return client, nil
}

// call makes a call of the API, and returns its answer.
func (a *adminClient) call(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, sent)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.origin != "" {
		req.Header.Set("Origin", a.origin)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := a.http.Do(req)
	if err != nil {
		return nil, &callError{exit: exitUnreachable, err: fmt.Errorf(
			"call Caddy's admin endpoint at %s: %w; is it running there? say where with --address or --config", a.address, err)}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, &callError{exit: exitUnreachable, err: fmt.Errorf("read the answer of the admin endpoint at %s: %w", a.address, err)}
	}
	if res.StatusCode == http.StatusOK {
		return answer, nil
	}
	return nil, a.refusal(res.StatusCode, answer)
}

// refusal tells what an answer means that is not the one hoped for.
func (a *adminClient) refusal(status int, answer []byte) *callError {
	r := &callError{exit: exitError}
	if err := json.Unmarshal(answer, &r.problem); err == nil {
		r.answer = answer
	}
	code := r.problem.Code
	switch {
	case code == codeNoJob:
		r.exit = exitNoJob
	case status == http.StatusConflict:
		r.exit = exitConflict
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusServiceUnavailable,
		status == http.StatusNotFound && code == "":
		r.exit = exitUnreachable
	}
	switch {
	case code == codeUnauthorized:
		r.err = errors.New("the admin token is missing or wrong; set " + envToken + " to the admin_token of the configuration that runs")
	case status == http.StatusNotFound && code == "":
		r.err = fmt.Errorf("the admin endpoint at %s knows nothing of idempotency: that Caddy was built without this module, or something else listens there", a.address)
	case r.problem.Message != "":
		r.err = errors.New(r.problem.Message)
	default:
		r.err = fmt.Errorf("the admin endpoint at %s answered with status %d", a.address, status)
	}
	return r
}
