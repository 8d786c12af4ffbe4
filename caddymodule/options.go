package caddymodule

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// option reads an option, whose name the dispenser is at.
type option func(*parser) error

// options are those of the directive's block.
var options = map[string]option{
	"store": (*parser).store,
	"space": (*parser).space,

	"require_durable": (*parser).requireDurable,

	"owner":   (*parser).owner,
	"key":     (*parser).key,
	"methods": (*parser).methods,

	"key_format":  (*parser).keyFormat,
	"send_key":    (*parser).sendKey,
	"fingerprint": (*parser).fingerprint,

	"encrypt_with":  (*parser).encryptWith,
	"digest_secret": (*parser).digestSecret,

	"wait":      func(p *parser) error { return p.duration(&p.h.Wait) },
	"timeout":   func(p *parser) error { return p.duration(&p.h.Timeout) },
	"linger":    func(p *parser) error { return p.duration(&p.h.Linger) },
	"lease":     func(p *parser) error { return p.duration(&p.h.Lease) },
	"retention": func(p *parser) error { return p.duration(&p.h.Retention) },

	"stream_idle": func(p *parser) error { return p.duration(&p.h.StreamIdle) },

	"max_request_body":  func(p *parser) error { return p.size(&p.h.MaxRequestBody) },
	"max_response_body": func(p *parser) error { return p.size(&p.h.MaxResponseBody) },
	"buffer":            func(p *parser) error { return p.size(&p.h.Buffer) },

	"cache":    (*parser).cache,
	"waiters":  (*parser).waiters,
	"outcome":  (*parser).outcome,
	"statuses": (*parser).statuses,

	"keep_header":  (*parser).keepHeader,
	"replay_check": (*parser).replayCheck,

	"provider":     (*parser).provider,
	"failover":     (*parser).failover,
	"max_attempts": (*parser).maxAttempts,
	"race":         (*parser).race,
	"unproven":     (*parser).unproven,
	"contract":     (*parser).contract,

	"label":       (*parser).label,
	"reconcile":   (*parser).reconcile,
	"status_path": (*parser).statusPath,
}

func (p *parser) store() error {
	const usage = "write `store redis <url>` or `store bolt [<path>]`"
	if !p.d.NextArg() {
		return p.wrong("store", nil, usage)
	}
	name := p.d.Val()
	if _, err := caddy.GetModule(storesNamespace + "." + name); err != nil {
		return p.wrong("store", []string{name}, "there is no such store; %s", usage)
	}
	module, err := caddyfile.UnmarshalModule(p.d, storesNamespace+"."+name)
	if err != nil {
		return err
	}
	p.h.StoreRaw = caddyconfig.JSONModuleObject(module, "module", name, nil)
	return nil
}

func (p *parser) space() error {
	args, err := p.args(1, 1, "<name>")
	if err == nil {
		p.h.Space = args[0]
	}
	return err
}

func (p *parser) owner() error {
	args, err := p.args(1, 1, "{http.auth.user.id}`, or another placeholder for the caller, or `owner shared")
	if err == nil {
		p.h.Owner = args[0]
	}
	return err
}

func (p *parser) key() error {
	args, err := p.args(1, 2, "[<header>] [required|optional]")
	if err != nil {
		return err
	}
	switch last := args[len(args)-1]; {
	case last == "required", last == "optional":
		p.h.KeyRequired = last == "required"
		args = args[:len(args)-1]
	case len(args) == 2:
		return p.wrong("key", args, "the second word must be required or optional")
	}
	if len(args) == 1 {
		p.h.KeyHeader = args[0]
	}
	return nil
}

func (p *parser) keyFormat() error {
	args, err := p.args(1, 1, "any|uuid")
	if err != nil {
		return err
	}
	if !slices.Contains([]proxy.KeyFormat{proxy.KeyAny, proxy.KeyUUID}, proxy.KeyFormat(args[0])) {
		return p.wrong("key_format", args, "must be any or uuid")
	}
	p.h.KeyFormat = args[0]
	return nil
}

func (p *parser) methods() error {
	args, err := p.args(1, math.MaxInt, "<method...>")
	for _, method := range args {
		p.h.Methods = append(p.h.Methods, strings.ToUpper(method))
	}
	return err
}

func (p *parser) duration(setting *caddy.Duration) error {
	name := p.d.Val()
	args, err := p.args(1, 1, "<duration>")
	if err != nil {
		return err
	}
	value, err := caddy.ParseDuration(args[0])
	switch {
	case err != nil:
		return p.wrong(name, args, "not a duration; write one such as 500ms, 30s, 10m or 1d")
	case value < time.Millisecond: // what the stores' clocks count in
		return p.wrong(name, args, "too short; write at least 1ms, or leave the option out for its default")
	}
	*setting = caddy.Duration(value)
	return nil
}

func (p *parser) size(setting *int64) error {
	name := p.d.Val()
	args, err := p.args(1, 1, "<size>")
	if err != nil {
		return err
	}
	value, err := humanize.ParseBytes(args[0])
	switch {
	case err != nil || value > math.MaxInt64:
		return p.wrong(name, args, "not a size; write one such as 512KiB or 32MiB")
	case value == 0:
		return p.wrong(name, args, "nothing at all; write at least 1, or leave the option out for its default")
	}
	*setting = int64(value)
	return nil
}

func (p *parser) cache() error {
	args, err := p.args(1, 2, "<size> [<duration>], or off")
	switch {
	case err != nil:
		return err
	case args[0] == cacheOff && len(args) == 1:
		p.h.CacheSize = noCache
		return nil
	}
	size, err := humanize.ParseBytes(args[0])
	if err != nil || size == 0 || size > math.MaxInt64 {
		return p.wrong("cache", args, "not a size; write one such as 16MiB, or off")
	}
	p.h.CacheSize = int64(size)
	if len(args) == 1 {
		return nil
	}
	ttl, err := caddy.ParseDuration(args[1])
	if err != nil || ttl < time.Millisecond {
		return p.wrong("cache", args, "how long answers are kept is not a duration of at least 1ms; write one such as 10s")
	}
	p.h.CacheTTL = caddy.Duration(ttl)
	return nil
}

func (p *parser) waiters() error {
	args, err := p.args(1, 2, "<per job> [<in all>]")
	if err != nil {
		return err
	}
	for i, setting := range []*int{&p.h.WaitersPerJob, &p.h.Waiters}[:len(args)] {
		value, err := strconv.Atoi(args[i])
		if err != nil || value <= 0 {
			return p.wrong("waiters", args, "%s is not a positive number; write one, or leave the option out for its default", args[i])
		}
		*setting = value
	}
	return nil
}

func (p *parser) outcome() error {
	args, err := p.args(2, math.MaxInt, "<status...> final|failed|unknown")
	if err != nil {
		return err
	}
	statuses, word := args[:len(args)-1], args[len(args)-1]
	if _, err := proxy.ParseOutcome(word); err != nil {
		return p.wrong("outcome", args, "the last word %w", err)
	}
	for _, arg := range statuses {
		status, err := strconv.Atoi(arg)
		if err != nil || status < 200 || status > 599 {
			return p.wrong("outcome", args, "%s is not the status of a complete answer; write a number from 200 to 599", arg)
		}
		if _, twice := p.h.Outcomes[status]; twice {
			return p.wrong("outcome", args, "%d has an outcome already; give it once", status)
		}
		if p.h.Outcomes == nil {
			p.h.Outcomes = make(map[int]string)
		}
		p.h.Outcomes[status] = word
	}
	return nil
}

func (p *parser) statuses() error {
	args, err := p.args(1, 1, "conflict|ietf")
	if err != nil {
		return err
	}
	if !slices.Contains([]proxy.Statuses{proxy.StatusesConflict, proxy.StatusesIETF}, proxy.Statuses(args[0])) {
		return p.wrong("statuses", args, "must be conflict (409 for a reused key) or ietf (422)")
	}
	p.h.Statuses = args[0]
	return nil
}

func (p *parser) label() error {
	args, err := p.args(1, 1, "<placeholder>")
	if err == nil {
		p.h.Label = args[0]
	}
	return err
}

func (p *parser) statusPath() error {
	args, err := p.args(1, 1, "<path>")
	if err == nil {
		p.h.StatusPath = args[0]
	}
	return err
}
