package caddymodule

import (
	"maps"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// providersAnswer are the providers of the running configuration.
type providersAnswer struct {
	Providers []providerView `json:"providers"`
}

// providerView is a provider. The counts are those of the providers of its name and
// space in this process.
type providerView struct {
	Store    string `json:"store"`
	Space    string `json:"space"`
	Name     string `json:"name"`
	Contract string `json:"contract,omitempty"`
	// Proof is primary (none is needed), proven, unproven, or not-needed.
	Proof       string         `json:"proof"`
	Proved      time.Time      `json:"proved,omitzero"`
	ProvenUntil time.Time      `json:"proven_until,omitzero"`
	Why         string         `json:"why,omitempty"` // it can't take another one's place
	Upstreams   []upstreamView `json:"upstreams,omitempty"`

	Attempts    map[string]int `json:"attempts"` // by outcome
	LateResults int            `json:"late_results"`
	Discarded   int            `json:"discarded"`
	Violations  int            `json:"violations"`
}

// upstreamView is an upstream of a reverse_proxy.
type upstreamView struct {
	Address string `json:"address"`
	Healthy bool   `json:"healthy"` // as far as its health is checked
}

// providers returns the providers, of one space or all.
func (c *adminCall) providers() (any, error) {
	answer := providersAnswer{Providers: []providerView{}}
	space := c.r.URL.Query().Get("space")
	for _, n := range c.named() {
		if space == "" || n.h.config.Space == space {
			answer.Providers = append(answer.Providers, n.view())
		}
	}
	return answer, nil
}

func (n namedProvider) view() providerView {
	v := providerView{
		Store: n.store.name, Space: n.h.config.Space, Name: n.p.Name, Contract: n.contract(),
		Attempts: make(map[string]int), Upstreams: upstreamsOf(n.p.route.Handlers),
	}
	metrics.count(n.h.config.Space, n.p.Name, func(c *providerCounts) {
		maps.Copy(v.Attempts, c.attempts)
		v.LateResults, v.Discarded, v.Violations = c.incidents[proxy.IncidentLateResult], c.incidents[proxy.IncidentDiscarded], c.incidents[proxy.IncidentViolation]
	})
	switch {
	case n.rank() == 0:
		v.Proof = "primary"
	case !n.h.needsProof():
		v.Proof = "not-needed"
	default:
		v.Proof = "unproven"
	}
	if n.h.contract == nil {
		return v
	}
	proof, err := n.store.proofs.living(n.subject(), n.h.Contract.proofMaxAge())
	if proof != nil {
		v.Proved, v.ProvenUntil = proof.Proved.Std(), proof.Expires.Std()
	}
	switch {
	case v.Proof != "unproven":
	case proof != nil:
		v.Proof = "proven"
	case err != nil:
		v.Why = "whether it is proven can't be read: " + err.Error()
	default:
		v.Why = "it " + n.h.unproven(n.p)
	}
	return v
}

// upstreamsOf returns the upstreams that handlers name.
func upstreamsOf(handlers []caddyhttp.MiddlewareHandler) (all []upstreamView) {
	for _, handler := range handlers {
		switch h := handler.(type) {
		case *reverseproxy.Handler:
			for _, u := range h.Upstreams {
				all = append(all, upstreamView{u.Dial, u.Healthy()})
			}
		case *caddyhttp.Subroute:
			for _, route := range h.Routes {
				all = append(all, upstreamsOf(route.Handlers)...)
			}
		}
	}
	return all
}
