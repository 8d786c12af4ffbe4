package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(inTurn{})
	httpcaddyfile.RegisterHandlerDirective("in_turn", parseInTurn)
	httpcaddyfile.RegisterDirectiveOrder("in_turn", httpcaddyfile.Before, "reverse_proxy")
}

// inTurn asks handlers one after the other until one returns no error, and tells
// nobody: what a chain may well do, and the gateway has to be proof against.
type inTurn struct {
	HandlersRaw []json.RawMessage `json:"handle" caddy:"namespace=http.handlers inline_key=handler"`

	handlers []caddyhttp.MiddlewareHandler
}

// CaddyModule implements caddy.Module.
func (inTurn) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.in_turn", New: func() caddy.Module { return new(inTurn) }}
}

func parseInTurn(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	parsed, err := httpcaddyfile.ParseSegmentAsSubroute(h)
	if err != nil {
		return nil, err
	}
	subroute, ok := parsed.(*caddyhttp.Subroute)
	if !ok {
		return nil, h.Err("in_turn needs a block of directives")
	}
	all := new(inTurn)
	for _, route := range subroute.Routes {
		all.HandlersRaw = append(all.HandlersRaw, route.HandlersRaw...)
	}
	return all, nil
}

// Provision implements caddy.Provisioner.
func (t *inTurn) Provision(ctx caddy.Context) error {
	loaded, err := ctx.LoadModule(t, "HandlersRaw")
	if err != nil {
		return err
	}
	for _, handler := range loaded.([]any) {
		t.handlers = append(t.handlers, handler.(caddyhttp.MiddlewareHandler))
	}
	return nil
}

func (t *inTurn) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	err = errors.New("in_turn has no handlers")
	for _, handler := range t.handlers {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		if err = handler.ServeHTTP(w, again, next); err == nil {
			return nil
		}
	}
	return err
}
