package caddymodule

import (
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// placeholderPrefix begins the names of the placeholders.
const placeholderPrefix = "http.idempotency."

// expose makes the placeholders known. They are looked up only where somebody uses
// them.
func (x *exchange) expose() {
	if !x.exposed {
		x.exposed = true
		x.repl.Map(x.placeholder)
	}
}

// noRefusal is that of a request that was not refused.
var noRefusal proxy.Refusal

// placeholder returns what is known by now.
func (x *exchange) placeholder(name string) (any, bool) {
	name, ours := strings.CutPrefix(name, placeholderPrefix)
	if !ours {
		return nil, false
	}
	refusal := &noRefusal
	if x.refusal != nil {
		refusal = x.refusal
	}
	a := &x.account
	switch name {
	case "verdict":
		return a.Verdict, true
	case "code":
		return refusal.Code, true
	case "advice":
		return string(refusal.Advice), true
	case "title":
		return refusal.Title, true
	case "detail":
		return refusal.Detail, true
	case "job":
		return a.Job, true
	case "state":
		return a.State, true
	case "attempts":
		return a.Attempts, true
	case "attempt":
		return a.Attempt, true
	case "provider":
		return a.Provider, true
	case "record":
		if a.Record == (keystore.Name{}) {
			return "", true
		}
		return a.Record.String(), true
	case "owner":
		if a.Owner == (keystore.Digest{}) {
			return "", true
		}
		return a.Owner.String(), true
	case "wait_ms":
		return milliseconds(a.Wait), true
	case "store_ms":
		return milliseconds(a.Store), true
	}
	return nil, false
}

// milliseconds has three digits after the point.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// logAccess adds what became of the request to its line in the access log, if the
// server has one.
func (x *exchange) logAccess() {
	if x.account.Verdict == proxy.VerdictBypassed || (x.h.server != nil && x.h.server.Logs == nil) {
		return
	}
	if extra, ok := x.r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		extra.Set(zap.Object("idempotency", (*accountFields)(&x.account)))
	}
}

// accountFields are what an access log is told.
type accountFields proxy.Account

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (a *accountFields) MarshalLogObject(to zapcore.ObjectEncoder) error {
	to.AddString("verdict", a.Verdict)
	if a.Record != (keystore.Name{}) {
		to.AddString("record", a.Record.String())
	}
	if a.Job != "" {
		to.AddString("job", a.Job)
		to.AddString("state", a.State)
		to.AddInt("attempt", a.Attempt)
		to.AddString("provider", a.Provider)
	}
	to.AddFloat64("wait_ms", milliseconds(a.Wait))
	to.AddFloat64("store_ms", milliseconds(a.Store))
	return nil
}

// ofAttempt returns the placeholders that the handlers of an attempt find: those of
// the attempt itself.
func ofAttempt(job string, number int, provider string) caddy.ReplacerFunc {
	return func(name string) (any, bool) {
		switch name {
		case placeholderPrefix + "job":
			return job, true
		case placeholderPrefix + "attempt":
			return number, true
		case placeholderPrefix + "provider":
			return provider, true
		}
		return nil, false
	}
}

var _ zapcore.ObjectMarshaler = (*accountFields)(nil)
