package caddymodule

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/intercept"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// refuse gives the gateway's own answer.
func (x *exchange) refuse(w http.ResponseWriter, refusal *proxy.Refusal) error {
	x.logRefusal(refusal)
	// Those who have to wait are told where they can ask how it stands.
	if waits := refusal.Code == proxy.CodeInFlight || refusal.Code == proxy.CodeOutcomeUnknown; waits && x.h.StatusPath != "" && refusal.Job != "" {
		refusal.Location = strings.TrimSuffix(x.h.StatusPath, "/") + "/" + refusal.Job
	}
	x.refusal = refusal
	x.expose()
	if x.h.caught() {
		return refusal.Write(w)
	}
	return answerRefusal(w, x.r, x.asked, refusal)
}

// refusalLevels are those of refusals that an operator may have to do something
// about, besides those with an error. All others stand in the access log only.
var refusalLevels = map[string]slog.Level{
	proxy.CodeTooManyWaiters: slog.LevelWarn,  // or more waiters are to be allowed
	proxy.CodeRecordLost:     slog.LevelError, // the store forgets
	proxy.CodeLoop:           slog.LevelError, // the configuration is wrong
}

func (x *exchange) logRefusal(refusal *proxy.Refusal) {
	level, tells := refusalLevels[refusal.Code]
	if refusal.Err != nil {
		level, tells = slog.LevelError, true
	}
	if !tells {
		return
	}
	heldBack, ok := x.h.refusals.Lets()
	if !ok {
		return
	}
	var cause slog.Attr
	if refusal.Err != nil {
		cause = slog.Any("error", refusal.Err)
	}
	// In the request's context, Caddy adds a stack trace to every error.
	x.h.log.LogAttrs(context.Background(), level, "a request was refused",
		slog.String("code", refusal.Code), slog.String("job", refusal.Job), cause, heldBack)
}

// refuse gives the gateway's own answer: by the site's error routes, or where
// none of them would answer by itself, as problem details.
func refuse(w http.ResponseWriter, r, asked *http.Request, repl *caddy.Replacer, refusal *proxy.Refusal) error {
	describe(repl, refusal)
	return answerRefusal(w, r, asked, refusal)
}

func answerRefusal(w http.ResponseWriter, r, asked *http.Request, refusal *proxy.Refusal) error {
	err := caddyhttp.Error(refusal.Status, refusal)
	if siteHandles(r, asked, err) {
		refusal.SetHeaders(w.Header())
		return err
	}
	return refusal.Write(w)
}

// describe sets the placeholders that error routes may use.
func describe(repl *caddy.Replacer, refusal *proxy.Refusal) {
	for name, value := range map[string]any{
		"code":     refusal.Code,
		"advice":   string(refusal.Advice),
		"title":    refusal.Title,
		"detail":   refusal.Detail,
		"job":      refusal.Job,
		"state":    refusal.State,
		"attempts": refusal.Attempts,
	} {
		repl.Set(placeholderPrefix+name, value)
	}
}

// siteHandles reports whether an error route would answer the error. Caddy's
// own answer to an error that none of them matches has no body.
func siteHandles(r, asked *http.Request, err error) bool {
	server, r := errorRoutes(r, asked, err)
	return server != nil && answers(server.Errors.Routes, r) && !passesOn(server, r)
}

// sitePassesOn reports whether an error route would pass the request on to a server,
// which could carry it out: unclaimed, and each time that it is repeated.
func sitePassesOn(r, asked *http.Request, err error) bool {
	server, r := errorRoutes(r, asked, err)
	return server != nil && passesOn(server, r)
}

// errorRoutes returns the server if it has error routes, and the request as they see
// it: as the client sent it.
func errorRoutes(r, asked *http.Request, err error) (*caddyhttp.Server, *http.Request) {
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || server == nil || server.Errors == nil {
		return nil, r
	}
	r = server.Errors.WithError(r, err)
	r.Method, r.RequestURI = asked.Method, asked.RequestURI
	r.URL = new(url.URL)
	*r.URL = *asked.URL
	return server, r
}

// passesOn reports whether one of the server's error routes has a reverse proxy in it.
func passesOn(server *caddyhttp.Server, r *http.Request) bool {
	w := routeWalk{named: server.NamedRoutes, r: r, invoked: make(map[string]bool)}
	return w.passOn(server.Errors.Routes)
}

// routeWalk goes through routes in search of what passes a request on.
type routeWalk struct {
	named   map[string]*caddyhttp.Route
	r       *http.Request   // nil behind a handler that may have rewritten it: no route is ruled out from there on
	invoked map[string]bool // named routes that were looked into
}

func (w *routeWalk) passOn(routes caddyhttp.RouteList) bool {
	for _, route := range routes {
		certain := w.r != nil
		if certain {
			if matches, err := route.MatcherSets.AnyMatchWithError(w.r); err != nil || !matches {
				continue
			}
		}
		for _, handler := range route.Handlers {
			switch handler := handler.(type) {
			case *reverseproxy.Handler:
				return true
			case *caddyhttp.Subroute:
				if w.passOn(handler.Routes) || handler.Errors != nil && w.passOn(handler.Errors.Routes) {
					return true
				}
			case *intercept.Intercept:
				w.r = nil // who answers is behind it
				for _, response := range handler.HandleResponse {
					if w.passOn(response.Routes) {
						return true
					}
				}
			case *caddyhttp.Invoke:
				w.r = nil // a named route is looked into once, for wherever it is invoked
				if named := w.named[handler.Name]; named != nil && !w.invoked[handler.Name] {
					w.invoked[handler.Name] = true
					if w.passOn(caddyhttp.RouteList{*named}) {
						return true
					}
				}
			default:
				w.r = nil
			}
		}
		if certain && route.Terminal { // as each site is: what follows is another one's
			return false
		}
	}
	return false
}

// answers reports whether a handler of these routes would get the request.
func answers(routes caddyhttp.RouteList, r *http.Request) bool {
	for _, route := range routes {
		if matches, err := route.MatcherSets.AnyMatchWithError(r); err != nil || !matches {
			continue
		}
		for _, handler := range route.Handlers {
			nested, ok := handler.(*caddyhttp.Subroute)
			if !ok || answers(nested.Routes, r) {
				return true
			}
		}
	}
	return false
}
