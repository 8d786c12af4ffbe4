package caddymodule

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// provider reads a block of directives, which are those of a site, but for
// send_key.
func (p *parser) provider() error {
	const usage = "write `provider <name> { <directives> }` with what carries a request out, such as reverse_proxy"
	if p.helper == nil {
		return p.wrong("provider", nil, "can be given in a site of a Caddyfile only")
	}
	segment := p.d.NextSegment()
	block := caddyfile.NewDispenser(segment)
	block.Next()
	args := block.RemainingArgs()
	if len(args) != 1 {
		return p.wrong("provider", args, usage)
	}
	provider := &Provider{Name: args[0]}
	if err := checkProviderName(provider.Name); err != nil {
		place := p.given["provider"]
		return place.WrapErr(err)
	}
	if p.h.provider(provider.Name) != nil {
		return p.wrong("provider", args, "given twice; every provider needs a name of its own")
	}
	p.given["provider "+provider.Name] = p.given["provider"]
	directives := caddyfile.Segment{segment[0]}
	for nesting := block.Nesting(); block.NextBlock(nesting); {
		if len(directives) == 1 {
			directives = append(directives, segment[2]) // the brace that opens the block
		}
		line := block.NextSegment()
		if line.Directive() != "send_key" {
			directives = append(directives, line...)
			continue
		}
		place := caddyfile.NewDispenser(line)
		place.Next()
		header := place.RemainingArgs()
		switch {
		case len(header) != 1 || provider.SendKey != "":
			return place.Errf("send_key: write `send_key <header>` once in provider %s", provider.Name)
		default:
			if err := proxy.CheckSendKey(header[0]); err != nil {
				return place.WrapErr(fmt.Errorf("send_key %s: %w", header[0], err))
			}
		}
		provider.SendKey = header[0]
	}
	if len(directives) < 3 {
		return p.wrong("provider", args, "has no directives, so that it could carry nothing out; "+usage)
	}
	directives = append(directives, segment[len(segment)-1])
	handler, err := httpcaddyfile.ParseSegmentAsSubroute(p.helper.WithDispenser(caddyfile.NewDispenser(directives)))
	if err != nil {
		return fmt.Errorf("provider %s: %w", provider.Name, err)
	}
	subroute, ok := handler.(*caddyhttp.Subroute)
	if !ok || len(subroute.Routes) == 0 {
		return p.wrong("provider", args, "has no handlers, so that it could carry nothing out; "+usage)
	}
	provider.HandlersRaw = handlersOf(subroute)
	p.h.Providers = append(p.h.Providers, provider)
	return nil
}

// handlersOf returns the handlers of a subroute, without the subroute if its
// routes take everything.
func handlersOf(subroute *caddyhttp.Subroute) (handlers []json.RawMessage) {
	for _, route := range subroute.Routes {
		if len(route.MatcherSetsRaw) > 0 || route.Group != "" || route.Terminal || subroute.Errors != nil {
			return []json.RawMessage{caddyconfig.JSONModuleObject(subroute, "handler", "subroute", nil)}
		}
		handlers = append(handlers, route.HandlersRaw...)
	}
	return handlers
}

func (p *parser) failover() error {
	args, err := p.args(1, 1, "on|off")
	if err != nil {
		return err
	}
	if args[0] != failoverOn && args[0] != failoverOff {
		return p.wrong("failover", args, "must be on or off")
	}
	p.h.Failover = args[0]
	return nil
}

func (p *parser) maxAttempts() error {
	args, err := p.args(1, 1, "<number>")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 {
		return p.wrong("max_attempts", args, "not a number of attempts; write one from 1 to 16, or leave the option out for its default")
	}
	p.h.MaxAttempts = n
	return nil
}

func (p *parser) race() error {
	args, err := p.args(2, 2, "after <duration>")
	if err != nil {
		return err
	}
	after, err := caddy.ParseDuration(args[1])
	if args[0] != "after" || err != nil || after < time.Millisecond {
		return p.wrong("race", args, "write `race after <duration>`, with a duration such as 10s")
	}
	p.h.Race = caddy.Duration(after)
	return nil
}

func (p *parser) unproven() error {
	args, err := p.args(1, 1, "allow")
	if err != nil {
		return err
	}
	if args[0] != unprovenAllow {
		return p.wrong("unproven", args, "the only word is allow; without it a provider has to be proven")
	}
	p.h.Unproven = args[0]
	return nil
}

// contract reads the block of that name.
func (p *parser) contract() error {
	args := p.d.RemainingArgs()
	if len(args) != 1 || args[0] == "" {
		return p.wrong("contract", args, "write `contract <name> { … }`, with its options in the block, one on each line")
	}
	c := &Contract{Name: args[0]}
	block := newParser("contract", p.h, p.d)
	block.options = map[string]option{
		"status":         func(p *parser) error { return p.contractStatus(c) },
		"schema":         func(p *parser) error { return p.contractSchema(c) },
		"require_header": func(p *parser) error { return p.requireHeader(c) },
		"max_size":       func(p *parser) error { return p.size(&c.MaxSize) },
		"case":           func(p *parser) error { return p.contractCase(c) },
		"on_violation":   func(p *parser) error { return p.onViolation(c) },
		"proof_max_age":  func(p *parser) error { return p.duration(&c.ProofMaxAge) },
	}
	err := block.block()
	for name, place := range block.given {
		p.given["contract "+name] = place
	}
	p.h.Contract = c
	return err
}

func (p *parser) contractStatus(c *Contract) error {
	args, err := p.args(1, math.MaxInt, "<status...>")
	if err != nil {
		return err
	}
	for _, arg := range args {
		status, err := strconv.Atoi(arg)
		switch {
		case err != nil || status < 200 || status > 299:
			return p.wrong("status", args, "%s is not a status that a contract judges; write numbers from 200 to 299 (what other answers mean is said by outcome)", arg)
		case slices.Contains(c.Statuses, status):
			return p.wrong("status", args, "%d is given twice; keep one", status)
		}
		c.Statuses = append(c.Statuses, status)
	}
	return nil
}

func (p *parser) contractSchema(c *Contract) error {
	args, err := p.args(1, 1, "<file>")
	if err == nil {
		c.Schema = args[0]
	}
	return err
}

func (p *parser) requireHeader(c *Contract) error {
	args, err := p.args(1, 2, "<name> [<value>]")
	if err != nil {
		return err
	}
	h := RequiredHeader{Name: http.CanonicalHeaderKey(args[0])}
	if len(args) == 2 {
		h.Value = args[1]
	}
	for _, other := range c.RequireHeaders {
		if other.Name == h.Name {
			return p.wrong("require_header", args, "given twice; keep one of them")
		}
	}
	c.RequireHeaders = append(c.RequireHeaders, h)
	return nil
}

func (p *parser) contractCase(c *Contract) error {
	args, err := p.args(1, math.MaxInt, "<file...>")
	if err == nil {
		c.Cases = append(c.Cases, args...)
	}
	return err
}

func (p *parser) onViolation(c *Contract) error {
	args, err := p.args(1, 1, "failed|unknown")
	if err != nil {
		return err
	}
	if args[0] != "failed" && args[0] != "unknown" {
		return p.wrong("on_violation", args, "must be failed (an answer that breaks the contract had no effect) or unknown")
	}
	c.OnViolation = args[0]
	return nil
}
