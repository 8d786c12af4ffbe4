package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// proveRequest says which providers are to be proven.
type proveRequest struct {
	Space    string `json:"space,omitempty"`    // default: all
	Provider string `json:"provider,omitempty"` // default: all
	// Unsafe runs cases too that are not marked as safe.
	Unsafe bool `json:"unsafe,omitempty"`
}

// proveAnswer tells how providers did.
type proveAnswer struct {
	Passed    bool         `json:"passed"` // all of them
	Providers []provenView `json:"providers"`
}

// provenView is how a provider did.
type provenView struct {
	Store    string    `json:"store"`
	Space    string    `json:"space"`
	Provider string    `json:"provider"`
	Contract string    `json:"contract"`
	Proven   bool      `json:"proven"`
	Until    time.Time `json:"until,omitzero"`
	Error    string    `json:"error,omitempty"` // the proof could not be kept
	// Outdated: files of the contract have changed since the configuration was
	// loaded, and this is about the contract as it was then.
	Outdated bool              `json:"outdated,omitempty"`
	Cases    proxy.ProofReport `json:"cases"`
}

// prove runs the cases of contracts against providers, and keeps the proofs.
func (c *adminCall) prove() (any, error) {
	var req proveRequest
	if err := c.body(&req); err != nil {
		return nil, err
	}
	var chosen []namedProvider
	for _, n := range c.named() {
		if n.h.contract != nil && len(n.h.contract.Cases()) > 0 &&
			(req.Space == "" || n.h.config.Space == req.Space) && (req.Provider == "" || n.p.Name == req.Provider) {
			chosen = append(chosen, n)
		}
	}
	if len(chosen) == 0 {
		return nil, badCall(errors.New("there is no such provider on a route with a contract that has cases; look at the providers that there are"))
	}
	c.alive()
	answer := proveAnswer{Passed: true}
	for _, n := range chosen {
		v := n.prove(c.r.Context(), req.Unsafe)
		answer.Passed = answer.Passed && v.Proven
		answer.Providers = append(answer.Providers, v)
	}
	return answer, nil
}

// namedProvider is a provider of the running configuration.
type namedProvider struct {
	store adminStore
	h     *Handler
	p     *Provider
}

// named returns the providers in the call's stores, in an order that depends on
// nothing but the configuration. A site with several addresses can have its
// handler several times; that is one.
func (c *adminCall) named() (all []namedProvider) {
	for _, s := range c.stores {
		for _, handlers := range c.app.handlers {
			for _, h := range handlers {
				for _, p := range h.Providers {
					n := namedProvider{s, h, p}
					if keyOf(h.opener) == s.key && !slices.ContainsFunc(all, n.same) {
						all = append(all, n)
					}
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b namedProvider) int {
		return cmp.Or(cmp.Compare(a.store.name, b.store.name), cmp.Compare(a.h.config.Space, b.h.config.Space),
			cmp.Compare(a.contract(), b.contract()), cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.p.Name, b.p.Name), slices.Compare(a.p.sum[:], b.p.sum[:]))
	})
	return all
}

func (n namedProvider) same(other namedProvider) bool {
	return n.store.key == other.store.key && n.subject() == other.subject()
}

func (n namedProvider) rank() int { return slices.Index(n.h.Providers, n.p) }

func (n namedProvider) contract() string {
	if n.h.Contract == nil {
		return ""
	}
	return n.h.Contract.Name
}

func (n namedProvider) subject() proxy.ProofSubject {
	if n.h.contract == nil {
		return proxy.ProofSubject{Space: n.h.config.Space, Provider: n.p.Name, Config: n.p.sum}
	}
	return n.h.subject(n.p)
}

// prove runs the cases of the provider's contract, and keeps the proof, or takes an
// earlier one back that was refuted.
func (n namedProvider) prove(ctx context.Context, unsafe bool) provenView {
	v := provenView{Store: n.store.name, Space: n.h.config.Space, Provider: n.p.Name, Contract: n.contract(), Outdated: n.h.contractOutdated(), Cases: proxy.ProofReport{}}
	done, err := n.store.proofs.turn(ctx, n.subject())
	if err != nil {
		v.Error = "it was broken off"
		return v
	}
	defer done()
	maxAge := n.h.Contract.proofMaxAge()
	// The cases may cost money, and would have been run for nothing.
	ready, cancel := context.WithTimeout(ctx, proofTime)
	_, err = n.store.gateway.Proof(ready, n.subject(), maxAge)
	cancel()
	if errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		v.Error = fmt.Errorf("no case was run, since the proof could not be kept: %w", err).Error()
		return v
	}
	began := n.store.store.Now()
	v.Cases = n.h.contract.Prove(ctx, unsafe, func(r *http.Request, key string) (*keystore.Response, error) { return n.h.sendCase(n.p, r, key) })
	defer n.store.proofs.forget(n.subject())
	// What has come to its end is worth to be kept though the caller has left.
	keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*proofTime)
	defer cancel()
	switch {
	case v.Cases.Passed():
		proof, err := n.store.gateway.KeepProof(keep, n.subject(), v.Cases, began, maxAge)
		if err != nil {
			v.Error = fmt.Errorf("the proof could not be kept: %w", err).Error()
			return v
		}
		v.Proven, v.Until = true, proof.Expires.Std()
	case v.Cases.Refuted():
		if _, err := n.store.gateway.DropProof(keep, n.subject(), began, maxAge); err != nil {
			v.Error = fmt.Errorf("an earlier proof could not be taken back: %w", err).Error()
		}
	case ctx.Err() != nil:
		v.Error = "it was broken off"
	}
	return v
}

// sendCase sends a request of a case the way of the attempts on a provider, in a
// context of its own.
func (h *Handler) sendCase(p *Provider, r *http.Request, key string) (*keystore.Response, error) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.config.Timeout, fmt.Errorf("no answer came within the timeout of %v", h.config.Timeout))
	defer cancel()
	r = r.WithContext(ctx)
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.RemoteAddr = "127.0.0.1:0" // it comes from this machine
	r.Header.Del("Accept-Encoding")
	if given := r.Header[h.config.KeyHeader]; len(given) != 1 || given[0] != strconv.Quote(key) { // the case's spelling
		r.Header[h.config.KeyHeader] = []string{key}
	}
	if header := http.CanonicalHeaderKey(cmp.Or(p.SendKey, h.SendKey)); header != "" {
		r.Header[header] = []string{proxy.SentKey(key)}
	}
	repl := caddy.NewReplacer()
	repl.Map(ofAttempt(key, 1, p.Name)) // there is no job, and the key is another one each time, too
	answer, err := proxy.AskOnce(func(w http.ResponseWriter, r *http.Request) error {
		return p.chain.ServeHTTP(w, caddyhttp.PrepareRequest(r, repl, w, h.server))
	}, r, h.config.MaxResponseBody)
	switch {
	case errors.Is(err, proxy.ErrLookupSilent):
		return nil, errors.New("none of the handlers answered")
	case errors.Is(err, proxy.ErrLookupLarge):
		return nil, fmt.Errorf("the answer is larger than max_response_body (%d bytes)", h.config.MaxResponseBody)
	case errors.Is(err, proxy.ErrLookupCut):
		return nil, errors.New("the answer broke off")
	}
	return answer, err
}
