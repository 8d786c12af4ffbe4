package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// ownerShared is the word of the configuration that says that there is only one
// caller.
const ownerShared = "shared"

// proxyConfig returns the settings of the handler's route, with their defaults.
func (h *Handler) proxyConfig() (proxy.Config, error) {
	c := proxy.Config{
		Space:           h.Space,
		KeyHeader:       h.KeyHeader,
		KeyRequired:     h.KeyRequired,
		Methods:         h.Methods,
		Wait:            time.Duration(h.Wait),
		Timeout:         time.Duration(h.Timeout),
		Linger:          time.Duration(h.Linger),
		Lease:           time.Duration(h.Lease),
		Retention:       time.Duration(h.Retention),
		MaxRequestBody:  h.MaxRequestBody,
		MaxResponseBody: h.MaxResponseBody,
		WaitersPerJob:   h.WaitersPerJob,
		Waiters:         h.Waiters,
		Statuses:        proxy.Statuses(h.Statuses),
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
	return c.WithDefaults(), nil
}

// check reports what is wrong with the settings. Each error begins with the
// option's name in the Caddyfile.
func (h *Handler) check() error {
	if err := checkOwner(h.Owner); err != nil {
		return err
	}
	if strings.ContainsAny(h.Space, "{}") {
		return fmt.Errorf("space %q: placeholders are not replaced in it; write a fixed name, and put into owner what differs from caller to caller", h.Space)
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
	c, err := h.proxyConfig()
	if err != nil {
		return err
	}
	if c.Waiters < c.WaitersPerJob {
		return fmt.Errorf("waiters %d %d: fewer in all than for one job; raise the second number, or lower the first", c.WaitersPerJob, c.Waiters)
	}
	return c.Validate()
}

// checkOwner refuses an owner that is the same for every caller: their keys
// would be one, and they would get to see each other's answers.
func checkOwner(owner string) error {
	const remedy = "write `owner {http.auth.user.id}`, or another placeholder for the caller that the site has authenticated; or `owner shared` if there is only one caller"
	// Placeholders that are known without a request, such as {env.…}, don't
	// depend on the caller.
	_, err := caddy.NewReplacer().ReplaceOrErr(owner, false, true)
	switch {
	case owner == "":
		return errors.New("owner: not given; " + remedy)
	case owner != ownerShared && err == nil:
		return fmt.Errorf("owner %q: the same for all callers, who would get each other's answers; %s", owner, remedy)
	}
	return nil
}
