package caddymodule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// Provider is one way to carry out a request: handlers of its own, in place of
// those that follow.
type Provider struct {
	// The name, which stands in jobs, logs and metrics. Required.
	Name string `json:"name"`

	// The handlers, each of which may call the next one. Where none of them
	// answers, the request was not carried out. Required.
	HandlersRaw []json.RawMessage `json:"handle" caddy:"namespace=http.handlers inline_key=handler"`

	// A request header in which this provider gets a key that is made of the job's
	// id. Default: the handler's.
	SendKey string `json:"send_key,omitempty"`

	route caddyhttp.Route
	chain caddyhttp.Handler // of attempts
	sum   keystore.Digest   // of this configuration
}

// check reports what is wrong with the settings, as far as that can be told from
// what is written.
func (p *Provider) check() error {
	if len(p.HandlersRaw) == 0 {
		return fmt.Errorf("provider %s: has no handlers, so that it could carry nothing out; give it a block with directives, such as reverse_proxy", p.Name)
	}
	for _, raw := range p.HandlersRaw {
		config, err := decodeJSON(raw)
		if err != nil {
			return fmt.Errorf("provider %s: %w", p.Name, err)
		}
		if err := screenHandlers(config); err != nil {
			return fmt.Errorf("provider %s: %w", p.Name, err)
		}
	}
	return nil
}

// screenHandlers refuses what can't be in a provider, however deep it is nested.
func screenHandlers(config any) error {
	switch c := config.(type) {
	case []any:
		for _, item := range c {
			if err := screenHandlers(item); err != nil {
				return err
			}
		}
	case map[string]any:
		balancing, _ := c["load_balancing"].(map[string]any)
		match, _ := balancing["retry_match"].([]any)
		switch {
		case len(match) > 0:
			return errors.New("lb_retry_match: would send a request again that may have been carried out, and hide it; remove it. " +
				"A connection that was refused is tried again without it (lb_retries, lb_try_duration), and another provider is a provider block of its own")
		case c["handler"] == "invoke":
			return fmt.Errorf("invoke %v: what a named route does would be no part of what is proven of the provider; write its directives into the provider, perhaps with import", c["name"])
		case c["handler"] == "idempotency":
			return errors.New("idempotency: a provider can't have jobs of its own; remove it")
		}
		for _, name := range slices.Sorted(maps.Keys(c)) {
			if err := screenHandlers(c[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// provision loads the handlers. What they are made of stays as it was written.
func (p *Provider) provision(ctx caddy.Context, keyHeader, sendKey string) (err error) {
	if p.sum, err = p.digest(keyHeader, sendKey); err != nil {
		return err
	}
	p.route = caddyhttp.Route{HandlersRaw: slices.Clone(p.HandlersRaw)}
	if err := p.route.ProvisionHandlers(ctx, nil); err != nil {
		return fmt.Errorf("provider %s: %w", p.Name, err)
	}
	// Nobody who answers is no answer: Caddy would make an empty 200 of it.
	p.chain = p.route.Compile(caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		return caddyhttp.Error(http.StatusNotFound, fmt.Errorf("none of the handlers of provider %s has answered the request", p.Name))
	}))
	return nil
}

// digest tells this configuration of a provider from others: what its handlers are
// made of, placeholders as they were written, what stands in the environment for
// those that are from there, and the headers in which it gets a key. In which order
// a handler's settings stand makes no difference.
func (p *Provider) digest(keyHeader, sendKey string) (keystore.Digest, error) {
	var handlers []any
	for _, raw := range p.HandlersRaw {
		config, err := decodeJSON(raw)
		if err != nil {
			return keystore.Digest{}, fmt.Errorf("provider %s: %w", p.Name, err)
		}
		handlers = append(handlers, config)
	}
	renameGroups(handlers, make(map[string]string))
	environment := make(map[string]string)
	readEnvironment(handlers, environment)
	text, err := json.Marshal(map[string]any{
		"recipe": 1, "handle": handlers, "environment": environment,
		"key": http.CanonicalHeaderKey(keyHeader), "send_key": http.CanonicalHeaderKey(cmp.Or(p.SendKey, sendKey)),
	})
	return keystore.DigestOf(text), err
}

var fromEnvironment = regexp.MustCompile(`\{env\.([^{}]+)\}`)

// readEnvironment notes the variables that handlers have placeholders for. With
// another upstream or model in one of them, it is another provider.
func readEnvironment(config any, values map[string]string) {
	switch c := config.(type) {
	case string:
		for _, found := range fromEnvironment.FindAllStringSubmatch(c, -1) {
			values[found[1]] = os.Getenv(found[1])
		}
	case []any:
		for _, item := range c {
			readEnvironment(item, values)
		}
	case map[string]any:
		for name, item := range c {
			readEnvironment(name, values)
			readEnvironment(item, values)
		}
	}
}

// renameGroups gives the groups of routes names that depend on nothing outside:
// those from a Caddyfile are numbered through all of it.
func renameGroups(config any, names map[string]string) {
	switch c := config.(type) {
	case []any:
		for _, item := range c {
			renameGroups(item, names)
		}
	case map[string]any:
		_, isRoute := c["handle"]
		if group, _ := c["group"].(string); group != "" && isRoute {
			if names[group] == "" {
				names[group] = "group" + strconv.Itoa(len(names))
			}
			c["group"] = names[group]
		}
		for _, name := range slices.Sorted(maps.Keys(c)) {
			renameGroups(c[name], names)
		}
	}
}

// decodeJSON decodes a text without rounding its numbers.
func decodeJSON(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// provider returns the provider of this name, or nil.
func (h *Handler) provider(name string) *Provider {
	for _, p := range h.Providers {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// handlerOf returns what carries out an attempt on the provider of this name: its
// own handlers, or those that follow where none is named.
func (h *Handler) handlerOf(name string, next caddyhttp.Handler) caddyhttp.Handler {
	p := h.provider(name)
	switch {
	case p != nil:
		return p.chain
	case len(h.Providers) == 0:
		return next
	}
	return caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		return caddyhttp.Error(http.StatusServiceUnavailable, fmt.Errorf("there is no provider %q any more", name))
	})
}

// plain returns what serves a request that is not protected. With providers it is
// the first of them, and then the handlers that follow, if it leaves the request
// to them.
func (h *Handler) plain(next caddyhttp.Handler) caddyhttp.Handler {
	if len(h.Providers) == 0 {
		return next
	}
	return h.Providers[0].route.Compile(next)
}

// namedProviders are the providers as a route knows them.
func (h *Handler) namedProviders() []proxy.NamedProvider {
	var named []proxy.NamedProvider
	for _, p := range h.Providers {
		named = append(named, proxy.NamedProvider{Name: p.Name, SendKey: p.SendKey})
	}
	return named
}

// Words of the settings about failover.
const (
	failoverOn    = "on"
	failoverOff   = "off"
	unprovenAllow = "allow"
)

// checkProviders reports what is wrong with the settings about providers.
func (h *Handler) checkProviders() error {
	for i, p := range h.Providers {
		if err := checkProviderName(p.Name); err != nil {
			return err
		}
		if h.provider(p.Name) != h.Providers[i] {
			return fmt.Errorf("provider %s: given twice; every provider needs a name of its own", p.Name)
		}
		if err := p.check(); err != nil {
			return err
		}
	}
	const twoNeeded = "has nothing to choose from; give two providers or more, or remove it"
	switch {
	case h.Failover != "" && h.Failover != failoverOn && h.Failover != failoverOff:
		return fmt.Errorf("failover %s: must be on or off", h.Failover)
	case h.Unproven != "" && h.Unproven != unprovenAllow:
		return fmt.Errorf("unproven %s: the only word is allow; without it a provider has to be proven", h.Unproven)
	case len(h.Providers) < 2 && h.Failover != "":
		return fmt.Errorf("failover %s: %s", h.Failover, twoNeeded)
	case len(h.Providers) < 2 && h.MaxAttempts != 0:
		return fmt.Errorf("max_attempts %d: %s", h.MaxAttempts, twoNeeded)
	case len(h.Providers) < 2 && h.Race != 0:
		return errors.New("race: " + twoNeeded)
	case len(h.Providers) < 2 && h.Unproven != "":
		return fmt.Errorf("unproven %s: %s", h.Unproven, twoNeeded)
	case h.Failover == failoverOff && h.Race == 0 && h.MaxAttempts != 0:
		return fmt.Errorf("max_attempts %d: with failover off there is one attempt for each request; remove one of them", h.MaxAttempts)
	// With failover off, too: there it is the client's repetition that brings it about.
	case len(h.Providers) < 2 || h.Unproven == unprovenAllow:
		return nil
	case h.Contract == nil:
		return fmt.Errorf("provider %s: would take the place of %s although nothing shows that it does the same; give a contract that providers prove to honour, "+
			"or write `unproven allow` to do without", h.Providers[1].Name, h.Providers[0].Name)
	case len(h.Contract.Cases) == 0:
		return fmt.Errorf("contract %s: has no case, so that no provider can be proven to honour it; give it some with `case <file>`, "+
			"or write `unproven allow` to do without", h.Contract.Name)
	}
	return nil
}

// checkProviderName refuses names that would be hard to tell apart, or to write
// on a command line.
func checkProviderName(name string) error {
	const most = 64
	ok := name != "" && len(name) <= most
	for _, c := range name {
		ok = ok && (c == '-' || c == '_' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if !ok {
		return fmt.Errorf("provider %q: not a name; write up to %d letters, digits, dots, hyphens and underscores, as in `provider primary { … }`", name, most)
	}
	return nil
}
