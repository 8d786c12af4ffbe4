package caddymodule

import (
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

func (p *parser) sendKey() error {
	args, err := p.args(1, 1, "<header>")
	if err != nil {
		return err
	}
	if err := proxy.CheckSendKey(args[0]); err != nil {
		return p.wrong("send_key", args, "%w", err)
	}
	p.h.SendKey = args[0]
	return nil
}

func (p *parser) keepHeader() error {
	args, err := p.args(1, math.MaxInt, "<name...>")
	if err != nil {
		return err
	}
	for _, arg := range args {
		if err := proxy.CheckKeptHeader(arg); err != nil {
			return p.wrong("keep_header", []string{arg}, "%w", err)
		}
		name := http.CanonicalHeaderKey(arg)
		if slices.Contains(p.h.KeepHeaders, name) {
			return p.wrong("keep_header", []string{arg}, "given twice; keep one of them")
		}
		p.h.KeepHeaders = append(p.h.KeepHeaders, name)
	}
	return nil
}

// replayCheck reads a block of directives, which are those of a site.
func (p *parser) replayCheck() error {
	const usage = "write `replay_check { <directives> }` with what has to let a repetition pass, such as forward_auth"
	if p.helper == nil {
		return p.wrong("replay_check", nil, "can be given in a site of a Caddyfile only")
	}
	segment := p.d.NewFromNextSegment()
	line := *segment
	line.Next()
	if args := line.RemainingArgs(); len(args) > 0 {
		return p.wrong("replay_check", args, usage)
	}
	handler, err := httpcaddyfile.ParseSegmentAsSubroute(p.helper.WithDispenser(segment))
	if err != nil {
		return fmt.Errorf("replay_check: %w", err)
	}
	subroute, ok := handler.(*caddyhttp.Subroute)
	if !ok || len(subroute.Routes) == 0 {
		return p.wrong("replay_check", nil, "nothing is checked; "+usage)
	}
	p.h.ReplayCheck = subroute.Routes
	return nil
}
