package caddymodule

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// chain runs the handlers that follow for one attempt. It shares nothing that
// changes with the request that asked for the attempt, since that request may
// end first: the attempt has its own Caddy vars, route groups and placeholders.
type chain struct {
	next     caddyhttp.Handler
	provider string
	server   *caddyhttp.Server
	original any // Caddy's note of the request as the client sent it
	vars     map[string]any
	outer    *caddy.Replacer
	repl     *caddy.Replacer
	done     chan struct{} // closed when the handlers have returned
}

// newChain is to be called in the request's goroutine.
func newChain(r *http.Request, provider string, next caddyhttp.Handler) *chain {
	c := &chain{next: next, provider: provider, repl: caddy.NewReplacer(), done: make(chan struct{})}
	c.server, _ = r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	c.original = r.Context().Value(caddyhttp.OriginalRequestCtxKey)
	// A copy, since handlers may add providers of placeholders to the request's
	// own while the attempt still runs. The attempt's own reads files.
	c.outer = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).WithoutFile()
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	c.vars = maps.Clone(vars)
	return c
}

// ServeHTTP implements proxy.Provider.
func (c *chain) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	defer close(c.done)
	r = caddyhttp.PrepareRequest(r, c.repl, w, c.server)
	// In place, since the replacer refers to this very request.
	*r = *r.WithContext(&chainContext{r.Context(), c})
	c.repl.Map(ofAttempt(r.Header.Get(proxy.HeaderJob), proxy.AttemptNumber(r.Header), c.provider))
	c.repl.Map(c.inherited)
	return c.next.ServeHTTP(w, r)
}

// chainContext has, in place of what Caddy has prepared for a new request, what the
// chain has taken over from the one that asked for the attempt.
type chainContext struct {
	context.Context
	chain *chain
}

// Value implements context.Context.
func (c *chainContext) Value(key any) any {
	switch {
	case key == caddyhttp.OriginalRequestCtxKey:
		return c.chain.original
	case key == caddyhttp.VarsCtxKey && c.chain.vars != nil:
		return c.chain.vars
	}
	return c.Context.Value(key)
}

// inherited are the placeholders that the handlers before this one have set.
// What they say of request and answer is left out: it is that of the request
// that asked for the attempt, which goes its own way. So is what became of what
// proxies before this handler have asked, which is not the attempt's.
func (c *chain) inherited(name string) (any, bool) {
	if strings.HasPrefix(name, "http.request.") || strings.HasPrefix(name, "http.response.") || strings.HasPrefix(name, placeholderPrefix) {
		return nil, false
	}
	switch name {
	case "http.reverse_proxy." + statusCode, "http.reverse_proxy.retries", "http.intercept." + statusCode:
		return nil, false
	}
	return c.outer.Get(name)
}

// Inspect implements proxy.Provider.
func (c *chain) Inspect(err error) proxy.Failure {
	var f proxy.Failure
	if handled, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		f.Status = handled.StatusCode
	}
	_, f.DialFailed = errors.AsType[reverseproxy.DialError](err)
	if retries, ok := c.repl.Get("http.reverse_proxy.retries"); ok {
		n, isInt := retries.(int)
		f.Retried = !isInt || n > 0
	}
	f.Replaced = c.answer("http.intercept.")
	f.Answered = f.Replaced.Status != 0
	return f
}

// Progress tells of the latest answer that a proxy of the chain has had.
func (c *chain) Progress() proxy.Progress { return c.answer("http.reverse_proxy.") }

// answer returns what the placeholders with this prefix say of an answer.
func (c *chain) answer(prefix string) (p proxy.Progress) {
	status, _ := c.repl.Get(prefix + statusCode)
	p.Status, _ = status.(int)
	retryAfter, _ := c.repl.GetString(prefix + "header.Retry-After")
	p.RetryAfter = retryAfter != ""
	return p
}

// statusCode ends the names of the placeholders for the status of an answer.
const statusCode = "status_code"

// upstreamPlaceholders are what an access log may want to say of the upstream.
var upstreamPlaceholders = []string{
	"http.reverse_proxy.upstream.address",
	"http.reverse_proxy.upstream.hostport",
	"http.reverse_proxy.upstream.host",
	"http.reverse_proxy.upstream.port",
	"http.reverse_proxy.upstream.requests",
	"http.reverse_proxy.upstream.max_requests",
	"http.reverse_proxy.upstream.fails",
	"http.reverse_proxy.upstream.latency",
	"http.reverse_proxy.upstream.latency_ms",
	"http.reverse_proxy.upstream.duration",
	"http.reverse_proxy.upstream.duration_ms",
	"http.reverse_proxy.duration",
	"http.reverse_proxy.duration_ms",
	"http.reverse_proxy.retries",
	"http.reverse_proxy.status_code",
	"http.reverse_proxy.status_text",
}

// over reports whether the handlers have returned.
func (c *chain) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

var _ proxy.Provider = (*chain)(nil)
