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
	if err := handler.unmarshal(h.Dispenser, &h); err != nil {
		return nil, err
	}
	return handler, nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens:
//
//	idempotency [<matcher>] {
//		store             redis [<url>] [{ <see RedisStore> }] | bolt [<path>]
//		require_durable   [danger|warning]
//		space             <name>
//		owner             <placeholder> | shared
//		key               [<header>] [required|optional]
//		key_format        any|uuid
//		fingerprint       raw|json [{
//			include_header <name...>
//			ignore_query
//			ignore_host
//			ignore         <pointer...>
//		}]
//		encrypt_with      <key id> {env.<name>}|{file.<path>}
//		digest_secret     {env.<name>}|{file.<path>}
//		methods           <method...>
//		wait              <duration>
//		timeout           <duration>
//		linger            <duration>
//		lease             <duration>
//		retention         <duration>
//		stream_idle       <duration>
//		max_request_body  <size>
//		max_response_body <size>
//		buffer            <size>
//		cache             <size> [<duration>] | off
//		waiters           <per job> [<in all>]
//		outcome           <status...> final|failed|unknown
//		statuses          conflict|ietf
//		send_key          <header>
//		keep_header       <name...>
//		replay_check {
//			<directives>
//		}
//		provider <name> {
//			<directives>
//			send_key <header>
//		}
//		failover          on|off
//		max_attempts      <number>
//		race              after <duration>
//		unproven          allow
//		contract <name> {
//			status         <status...>
//			schema         <file>
//			require_header <name> [<value>]
//			max_size       <size>
//			case           <file...>
//			on_violation   failed|unknown
//			proof_max_age  <duration>
//		}
//		label             <placeholder>
//		status_path       <path>
//		reconcile {
//			lookup      GET|HEAD|POST <path>|<url>
//			header      <name> <value>
//			every       <duration>
//			for         <duration>
//			succeeded   <status...> [after <duration>]
//			failed      <status...> after <duration>
//			cancelled   <status...> after <duration>
//			replay_from <pointer>
//		}
//	}
//
// Only owner has to be given, and with reconcile its lookup and one of succeeded,
// failed and cancelled. All options can be given once, but for encrypt_with,
// outcome, keep_header, include_header, ignore, these three, header and
// require_header, each header once, provider, each name once, and case. The order of
// the providers is that of preference.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return h.unmarshal(d, nil) }

// unmarshal is UnmarshalCaddyfile with what directives in a directive's block
// are read with.
func (h *Handler) unmarshal(d *caddyfile.Dispenser, helper *httpcaddyfile.Helper) error {
	d.Next()
	p := newParser(directive, h, d)
	p.options, p.helper = options, helper
	if d.NextArg() {
		return d.Errf("%s %s: takes no arguments but a matcher; write options into its block, one on each line", directive, d.Val())
	}
	if err := p.block(); err != nil {
		return err
	}
	return p.finish(h.check())
}

// parser reads one block of options.
type parser struct {
	name      string // the block's, for errors
	h         *Handler
	d         *caddyfile.Dispenser
	directive caddyfile.Dispenser
	options   map[string]option
	helper    *httpcaddyfile.Helper // nil outside of sites
	// given are the options that there were, each with its place.
	given map[string]caddyfile.Dispenser
}

// newParser returns a parser of the block at whose name the dispenser is.
func newParser(name string, h *Handler, d *caddyfile.Dispenser) *parser {
	return &parser{name: name, h: h, d: d, directive: *d, given: make(map[string]caddyfile.Dispenser)}
}

// repeatable are the options that can be given more than once.
var repeatable = []string{
	"encrypt_with", "outcome", "keep_header", "include_header", "ignore", "header", "succeeded", "failed", "cancelled",
	"provider", "require_header", "case",
}

// block reads the options.
func (p *parser) block() error {
	for nesting := p.d.Nesting(); p.d.NextBlock(nesting); {
		if err := p.option(); err != nil {
			return err
		}
	}
	return nil
}

// option reads the option at which the dispenser is.
func (p *parser) option() error {
	name := p.d.Val()
	parse, known := p.options[name]
	if !known {
		return p.d.Errf("%s: there is no such option of %s; the options are %s", name, p.name, strings.Join(slices.Sorted(maps.Keys(p.options)), ", "))
	}
	if _, twice := p.given[name]; twice && !slices.Contains(repeatable, name) {
		return p.d.Errf("%s: given twice; keep one of them", name)
	}
	p.given[name] = *p.d
	return parse(p)
}

// finish gives an error that shows only when all options are known the place of
// the option that it names.
func (p *parser) finish(err error) error {
	if err == nil {
		return nil
	}
	words := strings.Fields(err.Error())
	for i := range words {
		words[i] = strings.TrimRight(words[i], ":")
	}
	culprits := []string{words[0]}
	switch words[0] {
	case "retention":
		culprits = append(culprits, "linger", "timeout") // it can be its default that is too short
	case "reconcile", "fingerprint", "contract", "provider":
		// One of its own options, perhaps one of its headers.
		culprits = append([]string{words[0] + " " + strings.Join(words[1:min(3, len(words))], " "), words[0] + " " + words[1]}, culprits...)
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
