package caddymodule

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// Fingerprint says what of a request its key stands for. Method, path, media type
// and body always are part of it.
type Fingerprint struct {
	// How bodies are compared. `raw`: byte by byte. `json`: JSON documents are the
	// same if they differ in white space, the order of members or the escapes of
	// strings only, with numbers compared as they are written; all other bodies
	// byte by byte, and so is what is larger than 1 MiB, nested in more than 128
	// levels, has a member twice, or is no proper JSON. Default: `raw`.
	Body string `json:"body,omitempty"`

	// Request headers that are part of it besides.
	IncludeHeader []string `json:"include_header,omitempty"`

	// Leave the query out.
	IgnoreQuery bool `json:"ignore_query,omitempty"`

	// Leave the host out.
	IgnoreHost bool `json:"ignore_host,omitempty"`

	// JSON pointers (RFC 6901) to what is left out of JSON bodies, such as the
	// time at which they were sent. Only with `json`.
	Ignore []string `json:"ignore,omitempty"`
}

// options returns what the settings mean to a route.
func (f *Fingerprint) options() (o proxy.FingerprintOptions, err error) {
	if f == nil {
		return o, nil
	}
	if f.Body != "" && f.Body != bodyRaw && f.Body != bodyJSON {
		return o, fmt.Errorf("fingerprint %s: must be %s or %s", f.Body, bodyRaw, bodyJSON)
	}
	return proxy.FingerprintOptions{
		JSON: f.Body == bodyJSON, IncludeHeader: f.IncludeHeader, IgnoreQuery: f.IgnoreQuery, IgnoreHost: f.IgnoreHost, Ignore: f.Ignore,
	}, nil
}

// How bodies are compared.
const (
	bodyRaw  = "raw"
	bodyJSON = "json"
)

// warn tells of headers that are likely to be another at each repetition.
func (f *Fingerprint) warn(log *slog.Logger) {
	if f == nil {
		return
	}
	for _, name := range f.IncludeHeader {
		switch http.CanonicalHeaderKey(name) {
		case "Authorization", "Cookie":
			log.Warn("clients renew such a header between repetitions, which are then refused as other requests; who the caller is belongs into owner",
				slog.String("fingerprint", "include_header "+name))
		case "Date", "Traceparent", "Tracestate", "X-Request-Id", "X-Correlation-Id", "User-Agent":
			log.Warn("clients send another value of such a header with each repetition, or with another version; repetitions are then refused as other requests",
				slog.String("fingerprint", "include_header "+name))
		}
	}
}

// fingerprint reads the option of that name with its block, if it has one.
func (p *parser) fingerprint() error {
	args, err := p.args(1, 1, "raw|json")
	if err != nil {
		return err
	}
	f := &Fingerprint{Body: args[0]}
	if _, err := f.options(); err != nil {
		return p.wrong("fingerprint", args, "must be raw, to compare bodies byte by byte, or json, to compare JSON bodies as documents")
	}
	block := newParser("fingerprint", p.h, p.d)
	block.options = map[string]option{
		"include_header": func(p *parser) error { return p.includeHeader(f) },
		"ignore_query":   func(p *parser) error { return p.flag(&f.IgnoreQuery) },
		"ignore_host":    func(p *parser) error { return p.flag(&f.IgnoreHost) },
		"ignore":         func(p *parser) error { return p.ignore(f) },
	}
	err = block.block()
	for name, place := range block.given {
		p.given["fingerprint "+name] = place
	}
	p.h.Fingerprint = f
	return err
}

func (p *parser) includeHeader(f *Fingerprint) error {
	args, err := p.args(1, math.MaxInt, "<name...>")
	if err != nil {
		return err
	}
	for _, arg := range args {
		// That it is not the key's header is known when all options are.
		if err := proxy.CheckIncludedHeader(arg, ""); err != nil {
			return p.wrong("include_header", []string{arg}, "%w", err)
		}
		name := http.CanonicalHeaderKey(arg)
		if slices.Contains(f.IncludeHeader, name) {
			return p.wrong("include_header", []string{arg}, "given twice; keep one of them")
		}
		f.IncludeHeader = append(f.IncludeHeader, name)
	}
	return nil
}

func (p *parser) ignore(f *Fingerprint) error {
	args := p.d.RemainingArgs()
	if len(args) == 0 {
		return p.wrong("ignore", args, "write `ignore <pointer...>`, as in `ignore /sent_at`")
	}
	if f.Body != bodyJSON {
		return p.wrong("ignore", args, "nothing can be left out of a body that is compared byte by byte; write `fingerprint json`, or remove it")
	}
	for _, arg := range args {
		if err := proxy.CheckIgnoredPointer(arg); err != nil {
			return p.wrong("ignore", []string{arg}, "%w", err)
		}
		if slices.Contains(f.Ignore, arg) {
			return p.wrong("ignore", []string{arg}, "given twice; keep one of them")
		}
		f.Ignore = append(f.Ignore, arg)
	}
	return nil
}

// flag reads an option that is on by being there.
func (p *parser) flag(setting *bool) error {
	name := p.d.Val()
	if args := p.d.RemainingArgs(); len(args) > 0 {
		return p.wrong(name, args, "takes no arguments; write `%s`, or leave it out", name)
	}
	*setting = true
	return nil
}
