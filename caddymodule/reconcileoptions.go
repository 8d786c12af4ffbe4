package caddymodule

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// reconcile reads the block of that name.
func (p *parser) reconcile() error {
	if args := p.d.RemainingArgs(); len(args) > 0 {
		return p.wrong("reconcile", args, "takes no arguments; write its options into a block, one on each line, beginning with lookup")
	}
	rc := new(Reconcile)
	block := newParser("reconcile", p.h, p.d)
	block.options = map[string]option{
		"lookup":      func(p *parser) error { return p.lookup(&rc.Lookup) },
		"header":      func(p *parser) error { return p.lookupHeader(&rc.Lookup) },
		"every":       func(p *parser) error { return p.duration(&rc.Every) },
		"for":         func(p *parser) error { return p.duration(&rc.For) },
		"succeeded":   func(p *parser) error { return p.answer(rc) },
		"failed":      func(p *parser) error { return p.answer(rc) },
		"cancelled":   func(p *parser) error { return p.answer(rc) },
		"replay_from": func(p *parser) error { return p.replayFrom(rc) },
	}
	err := block.block()
	for name, place := range block.given {
		p.given["reconcile "+name] = place
	}
	p.h.Reconcile = rc
	return err
}

func (p *parser) lookup(l *LookupRequest) error {
	args, err := p.args(2, 2, "GET <path or url>")
	if err != nil {
		return err
	}
	l.Method, l.URL = strings.ToUpper(args[0]), args[1]
	if err := checkLookupMethod(l.Method); err != nil {
		return p.place(err)
	}
	if _, err := newLookup(&LookupRequest{Method: l.Method, URL: l.URL}, "", math.MaxInt64); err != nil {
		return p.wrong("lookup", args, "%w", err)
	}
	return nil
}

// lookupHeader does not show in errors what it was given: it may be a secret.
func (p *parser) lookupHeader(l *LookupRequest) error {
	args := p.d.RemainingArgs()
	if len(args) != 2 {
		return p.wrong("header", args[:min(1, len(args))], "write `header <name> <value>`, with a value of several words in quotes")
	}
	name := http.CanonicalHeaderKey(args[0])
	if _, err := newHeaderTemplate(name, args[1]); err != nil {
		return p.place(err)
	}
	if _, twice := l.Header[name]; twice {
		return p.wrong("header", args[:1], "given twice; keep one of them")
	}
	p.given["header "+name] = p.given["header"]
	if l.Header == nil {
		l.Header = make(map[string]string)
	}
	l.Header[name] = args[1]
	return nil
}

// answer reads what some statuses of a lookup's answer mean.
func (p *parser) answer(rc *Reconcile) error {
	name := p.d.Val()
	const usage = "<status...> after <duration>"
	args, err := p.args(1, math.MaxInt, usage)
	if err != nil {
		return err
	}
	answer := ReconcileAnswer{As: name}
	statuses := args
	if n := len(args); n >= 2 && args[n-2] == "after" {
		after, err := caddy.ParseDuration(args[n-1])
		if err != nil || after < time.Millisecond {
			return p.wrong(name, args, "%s is not a duration; write one such as 2m", args[n-1])
		}
		answer.After, statuses = caddy.Duration(after), args[:n-2]
	}
	if len(statuses) == 0 {
		return p.wrong(name, args, "names no status; write `%s %s`", name, usage)
	}
	for _, arg := range statuses {
		status, err := strconv.Atoi(arg)
		if err != nil || status < 200 || status > 599 {
			return p.wrong(name, args, "%s is not the status of a complete answer; write a number from 200 to 599", arg)
		}
		answer.Statuses = append(answer.Statuses, status)
	}
	if decision := decisions[name]; answer.After == 0 && decision != decisions["succeeded"] {
		return p.wrong(name, args, "permits another execution, so say how long after the end of the attempt the answer can be trusted, as in `%s %s after 2m`",
			name, strings.Join(args, " "))
	}
	for _, other := range rc.Answers {
		for _, status := range other.Statuses {
			for _, own := range answer.Statuses {
				if status == own {
					return p.wrong(name, args, "%d means %s already; give it once", own, other.As)
				}
			}
		}
	}
	rc.Answers = append(rc.Answers, answer)
	return nil
}

func (p *parser) replayFrom(rc *Reconcile) error {
	args, err := p.args(1, 1, "<pointer>")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(args[0], "/") {
		return p.wrong("replay_from", args, "a JSON pointer begins with a /, as in /data/0")
	}
	rc.ReplayFrom = args[0]
	return nil
}

// place gives an error the place at which the dispenser is.
func (p *parser) place(err error) error { return p.d.WrapErr(fmt.Errorf("reconcile: %w", err)) }
