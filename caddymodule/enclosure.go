package caddymodule

import (
	"sync"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/intercept"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// enclosure is what is known of the routes around a handler, once somebody has asked:
// it takes a walk through all of the server's.
type enclosure struct {
	once   sync.Once
	caught bool
}

// caught reports whether an error of the handler would be caught by a subroute that
// could have the request carried out: unclaimed, and each time that it is repeated. A
// Caddyfile makes none.
func (h *Handler) caught() bool {
	h.enclosed.once.Do(func() {
		if h.server != nil {
			w := enclosureWalk{handler: h, named: h.server.NamedRoutes, invoked: make(map[invocation]bool)}
			h.enclosed.caught = w.catches(h.server.Routes, false)
		}
	})
	return h.enclosed.caught
}

// enclosureWalk goes through routes in search of a handler.
type enclosureWalk struct {
	handler *Handler
	named   map[string]*caddyhttp.Route
	invoked map[invocation]bool
}

type invocation struct {
	name   string
	caught bool
}

// catches reports whether the handler is in routes that are caught so, or is in a
// subroute in them that is.
func (w *enclosureWalk) catches(routes caddyhttp.RouteList, caught bool) bool {
	for _, route := range routes {
		for _, handler := range route.Handlers {
			if handler == caddyhttp.MiddlewareHandler(w.handler) && caught {
				return true
			}
			for _, part := range w.partsOf(handler, caught) {
				if w.catches(part.routes, part.caught) {
					return true
				}
			}
		}
	}
	return false
}

type part struct {
	routes caddyhttp.RouteList
	caught bool
}

func (w *enclosureWalk) partsOf(handler caddyhttp.MiddlewareHandler, caught bool) (parts []part) {
	var responses []caddyhttp.ResponseHandler
	switch handler := handler.(type) {
	case *caddyhttp.Subroute:
		if handler.Errors == nil {
			return []part{{handler.Routes, caught}}
		}
		return []part{{handler.Routes, w.carriesOut(handler.Errors.Routes)}, {handler.Errors.Routes, caught}}
	case *caddyhttp.Invoke:
		named, as := w.named[handler.Name], invocation{handler.Name, caught}
		if named != nil && !w.invoked[as] {
			w.invoked[as] = true
			return []part{{caddyhttp.RouteList{*named}, caught}}
		}
	case *intercept.Intercept:
		responses = handler.HandleResponse
	case *reverseproxy.Handler:
		responses = handler.HandleResponse
	}
	for _, response := range responses {
		parts = append(parts, part{response.Routes, caught})
	}
	return parts
}

// carriesOut reports whether error routes of a subroute could have a request carried
// out. What they don't answer goes on to the handlers behind the subroute.
func (w *enclosureWalk) carriesOut(errors caddyhttp.RouteList) bool {
	walk := routeWalk{named: w.named, invoked: make(map[string]bool)}
	if walk.passOn(errors) {
		return true
	}
	for _, route := range errors {
		if len(route.MatcherSets) > 0 {
			continue
		}
		for _, handler := range route.Handlers {
			if _, answers := handler.(*caddyhttp.StaticResponse); answers {
				return false
			}
		}
	}
	return true
}
