package caddymodule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// directive is the handler's name in the Caddyfile.
const directive = "idempotency"

func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return handler, nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens:
//
//	idempotency [<matcher>] {
//		store             redis <url> | bolt [<path>]
//		space             <name>
//		owner             <placeholder> | shared
//		key               [<header>] [required|optional]
//		methods           <method...>
//		wait              <duration>
//		timeout           <duration>
//		linger            <duration>
//		lease             <duration>
//		retention         <duration>
//		max_request_body  <size>
//		max_response_body <size>
//		waiters           <per job> [<in all>]
//		outcome           <status...> final|failed|unknown
//		statuses          conflict|ietf
//	}
//
// Only owner has to be given. All options but outcome can be given once.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	p := parser{h: h, d: d, directive: *d, given: make(map[string]caddyfile.Dispenser)}
	if d.NextArg() {
		return d.Errf("%s %s: takes no arguments but a matcher; write options into its block, one on each line", directive, d.Val())
	}
	for d.NextBlock(0) {
		if err := p.option(); err != nil {
			return err
		}
	}
	return p.finish()
}

// parser reads one block of options.
type parser struct {
	h         *Handler
	d         *caddyfile.Dispenser
	directive caddyfile.Dispenser
	// given are the options that there were, each with its place.
	given map[string]caddyfile.Dispenser
}

// option reads the option at which the dispenser is.
func (p *parser) option() error {
	name := p.d.Val()
	parse, known := options[name]
	if !known {
		return p.d.Errf("%s: there is no such option; the options are %s", name, strings.Join(slices.Sorted(maps.Keys(options)), ", "))
	}
	if _, twice := p.given[name]; twice && name != "outcome" {
		return p.d.Errf("%s: given twice; keep one of them", name)
	}
	p.given[name] = *p.d
	return parse(p)
}

// finish checks what can be seen only when all options are known. An error says
// where the option is that it names.
func (p *parser) finish() error {
	err := p.h.check()
	if err == nil {
		return nil
	}
	culprits := []string{strings.TrimRight(strings.Fields(err.Error())[0], ":")}
	if culprits[0] == "retention" {
		culprits = append(culprits, "linger", "timeout") // it can be its default that is too short
	}
	for _, name := range culprits {
		if place, given := p.given[name]; given {
			return place.WrapErr(err)
		}
	}
	return p.directive.WrapErr(err)
}

// args reads the option's arguments, of which there are at least and at most so
// many; the usage says how to write it.
func (p *parser) args(least, most int, usage string) ([]string, error) {
	name := p.d.Val()
	args := p.d.RemainingArgs()
	if len(args) < least || len(args) > most {
		return nil, p.wrong(name, args, "write `%s %s`", name, usage)
	}
	if slices.Contains(args, "") {
		return nil, p.wrong(name, args, "an argument is empty; write `%s %s`", name, usage)
	}
	return args, nil
}

// wrong says what is wrong with an option as it was written.
func (p *parser) wrong(name string, args []string, format string, a ...any) error {
	place := p.given[name]
	written := strings.Join(append([]string{name}, args...), " ")
	return place.WrapErr(fmt.Errorf("%s: "+format, append([]any{written}, a...)...))
}

var _ caddyfile.Unmarshaler = (*Handler)(nil)
