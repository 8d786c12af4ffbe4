package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

const (
	cacheOff = "off"
	noCache  = -1 // as JSON has it

	defaultCacheSize = 16 << 20
	defaultCacheTTL  = 10 * time.Second
)

// proxyConfig returns the settings of the handler's route, with their defaults.
func (h *Handler) proxyConfig() (proxy.Config, error) {
	c := proxy.Config{
		Space:           h.Space,
		KeyHeader:       h.KeyHeader,
		KeyRequired:     h.KeyRequired,
		KeyFormat:       proxy.KeyFormat(h.KeyFormat),
		Methods:         h.Methods,
		Wait:            time.Duration(h.Wait),
		Timeout:         time.Duration(h.Timeout),
		Linger:          time.Duration(h.Linger),
		Lease:           time.Duration(h.Lease),
		Retention:       time.Duration(h.Retention),
		StreamIdle:      time.Duration(h.StreamIdle),
		MaxRequestBody:  h.MaxRequestBody,
		MaxResponseBody: h.MaxResponseBody,
		Buffer:          h.Buffer,
		CacheSize:       h.CacheSize,
		CacheTTL:        cmp.Or(time.Duration(h.CacheTTL), defaultCacheTTL),
		WaitersPerJob:   h.WaitersPerJob,
		Waiters:         h.Waiters,
		Statuses:        proxy.Statuses(h.Statuses),
		SendKey:         h.SendKey,
		KeepHeaders:     h.KeepHeaders,
	}
	switch h.CacheSize {
	case 0:
		c.CacheSize = defaultCacheSize
	case noCache:
		c.CacheSize = 0
	}
	var err error
	if c.Fingerprint, err = h.Fingerprint.options(); err != nil {
		return c, err
	}
	for status, word := range h.Outcomes {
		outcome, err := proxy.ParseOutcome(word)
		if err != nil {
			return c, fmt.Errorf("outcome %d %s: %w", status, word, err)
		}
		if c.Outcomes == nil {
			c.Outcomes = make(map[int]keystore.Outcome)
		}
		c.Outcomes[status] = outcome
	}
	c.Providers, c.NoFailover = h.namedProviders(), h.Failover == failoverOff
	c.MaxAttempts, c.Race = h.MaxAttempts, time.Duration(h.Race)
	if h.Contract != nil && h.contract == nil {
		if h.contract, err = h.Contract.compile(); err != nil {
			return c, err
		}
	}
	c.Contract = h.contract
	if h.Label != "" {
		c.Label = h.label
	}
	if h.Reconcile != nil {
		rc, err := h.Reconcile.config(h.ask)
		if err != nil {
			return c, err
		}
		c.Reconcile = rc
	}
	return c.WithDefaults(), nil
}

// label returns what operators are shown with the job of a request. It is called
// in that request's goroutine.
func (h *Handler) label(r *http.Request) string {
	return r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).ReplaceAll(h.Label, "")
}

// check reports what is wrong with the settings. Each error begins with the
// option's name in the Caddyfile.
func (h *Handler) check() error {
	if err := checkOwner(h.Owner); err != nil {
		return err
	}
	if err := checkSpace(h.Space); err != nil {
		return err
	}
	if err := h.checkSecrets(); err != nil {
		return err
	}
	if _, err := h.leastUnfit(); err != nil {
		return err
	}
	if err := h.checkLabel(); err != nil {
		return err
	}
	if err := checkStatusPath(h.StatusPath); err != nil {
		return err
	}
	if h.ReplayCheck != nil && len(h.ReplayCheck) == 0 {
		return errors.New("replay_check: has no routes, so that nothing is checked; give it some, or remove it")
	}
	for i, method := range h.Methods {
		switch {
		case method != strings.ToUpper(method):
			return fmt.Errorf("methods %s: methods are in upper case; write %s", method, strings.ToUpper(method))
		case method == http.MethodConnect || !httpguts.ValidHeaderFieldName(method):
			return fmt.Errorf("methods %s: requests with it can't be repeated; remove it", method)
		}
		if slices.Contains(h.Methods[:i], method) {
			return fmt.Errorf("methods %s: given twice; keep one", method)
		}
	}
	if err := h.checkProviders(); err != nil {
		return err
	}
	c, err := h.proxyConfig()
	if err != nil {
		return err
	}
	if h.Reconcile != nil && h.Reconcile.Lookup.URL != "" {
		if _, err := newLookup(&h.Reconcile.Lookup, c.KeyHeader, c.MaxResponseBody); err != nil {
			return fmt.Errorf("reconcile: %w", err)
		}
	}
	if c.Waiters < c.WaitersPerJob {
		return fmt.Errorf("waiters %d %d: fewer in all than for one job; raise the second number, or lower the first", c.WaitersPerJob, c.Waiters)
	}
	return c.Validate()
}

// checkSpace refuses names that would not do what they look like.
func checkSpace(space string) error {
	if strings.ContainsAny(space, "{}") {
		return fmt.Errorf("space %q: placeholders are not replaced in it; write a fixed name, and put into owner what differs from caller to caller", space)
	}
	if strings.HasPrefix(space, "_") {
		return fmt.Errorf("space %q: names that begin with _ are reserved; choose another", space)
	}
	return nil
}

// checkLabel refuses labels that are known to show what is kept only as a digest.
func (h *Handler) checkLabel() error {
	label := strings.ToLower(h.Label)
	key := h.KeyHeader
	if key == "" {
		key = proxy.DefaultKeyHeader
	}
	for _, secret := range []string{
		"http.request.body", "http.request.header." + key + "}", "http.request.header.authorization}",
		"http.request.header.cookie}", "http.request.cookie.", "http.auth.user.",
	} {
		if strings.Contains(label, "{"+strings.ToLower(secret)) {
			return fmt.Errorf("label %s: everybody who may list jobs would see it, who are not to learn key, owner or body; choose another placeholder", h.Label)
		}
	}
	if h.Owner != ownerShared && h.Owner != "" && strings.Contains(h.Label, h.Owner) {
		return fmt.Errorf("label %s: would show whose the key is, to everybody who may list jobs; choose another placeholder", h.Label)
	}
	return nil
}

// checkStatusPath refuses what is not the beginning of a path.
func checkStatusPath(path string) error {
	if path == "" {
		return nil
	}
	u, err := url.Parse(path)
	if err != nil || !strings.HasPrefix(path, "/") || u.Path != path || u.Host != "" || u.EscapedPath() != path {
		return fmt.Errorf("status_path %s: not a path; write the path that an idempotency_status handler answers on, beginning with a /, as in `status_path /jobs`", path)
	}
	return nil
}
