package caddymodule

import (
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// exchange is one request on its way through the handler.
type exchange struct {
	h     *Handler
	r     *http.Request
	next  caddyhttp.Handler
	repl  *caddy.Replacer
	asked *http.Request // as the client sent it

	account proxy.Account  // what becomes of the request
	refusal *proxy.Refusal // if it was refused
	exposed bool           // whether the placeholders are known

	passedOn bool     // whether the handlers that follow were called
	bypassed bool     // whether that was all there was to do
	chains   []*chain // the attempts that this request has started
}

func newExchange(h *Handler, r *http.Request, next caddyhttp.Handler) *exchange {
	x := &exchange{h: h, r: r, next: next, asked: askedOf(r)}
	x.repl = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	return x
}

// askedOf returns the request as the client sent it, before any rewrite.
func askedOf(r *http.Request) *http.Request {
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok {
		return r
	}
	// Caddy keeps neither host nor header of the original.
	original.Host, original.Header = r.Host, r.Header
	return &original
}

func (x *exchange) serve(route *proxy.Route, w http.ResponseWriter) error {
	exchange := proxy.Exchange{
		Asked:    x.asked,
		Owner:    x.owner,
		Next:     x.passOn,
		Provider: x.provider,
		Account:  &x.account,
	}
	defer x.logAccess() // also if the answer is broken off by a panic
	if len(x.h.ReplayCheck) > 0 {
		exchange.ReplayCheck = x.replayCheck
	}
	err := route.Serve(w, x.r, exchange)
	x.tellOfUpstream()
	if refusal, ok := errors.AsType[*proxy.Refusal](err); ok {
		return x.refuse(w, refusal)
	}
	if err != nil {
		x.expose() // for error pages that say both
		if !x.passedOn {
			err = bodyError(err)
		}
		if !x.bypassed && (x.h.caught() || sitePassesOn(x.r, x.asked, err)) {
			w.WriteHeader(errorStatus(err)) // as Caddy does where no error route matches
			return nil
		}
	}
	return err
}

// tellOfUpstream gives the upstream's placeholders to the handlers before this one,
// those of the latest attempt first. Of an attempt that still runs nothing is told.
// Few logs ask for any of them, so that they are looked up when one does.
func (x *exchange) tellOfUpstream() {
	over := slices.DeleteFunc(slices.Clone(x.chains), func(c *chain) bool { return !c.over() })
	if len(over) == 0 {
		return
	}
	slices.Reverse(over)
	x.repl.Map(func(name string) (any, bool) {
		if !strings.HasPrefix(name, "http.reverse_proxy.") || !slices.Contains(upstreamPlaceholders, name) {
			return nil, false
		}
		for _, c := range over {
			if value, ok := c.repl.Get(name); ok {
				return value, true
			}
		}
		return nil, false
	})
}

// owner returns the caller whom the request's key belongs to. It is asked for
// requests with a key only, so that these tell how the upstream can be reached.
func (x *exchange) owner() string {
	x.expose()
	owner := ownerOf(x.h.Owner, x.repl)
	if owner != "" && x.h.lookup != nil {
		x.h.lookup.learn(x.asked.Host, x.r, x.next)
	}
	return owner
}

// passOn serves a request that is not protected.
func (x *exchange) passOn(w http.ResponseWriter, r *http.Request) error {
	x.passedOn, x.bypassed = true, true
	x.expose()
	return x.h.plain(x.next).ServeHTTP(w, r)
}

// replayCheck lets the site's own handlers decide whether a stored answer may be
// given to the request: it passes if they call the next handler.
func (x *exchange) replayCheck(w http.ResponseWriter, r *http.Request) (passed bool, err error) {
	x.passedOn = true // an error is theirs
	end := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		passed = true
		return nil
	})
	err = x.h.ReplayCheck.Compile(end).ServeHTTP(w, r)
	return passed, err
}

// provider returns what runs an attempt of this request on the provider of this
// name.
func (x *exchange) provider(name string) proxy.Provider {
	x.passedOn = true
	c := newChain(x.r, name, x.h.handlerOf(name, x.next))
	x.chains = append(x.chains, c)
	return c
}

// errorStatus returns the status with which Caddy answers an error.
func errorStatus(err error) int {
	if handled, ok := errors.AsType[caddyhttp.HandlerError](err); ok && handled.StatusCode != 0 {
		return handled.StatusCode
	}
	return http.StatusInternalServerError
}

// bodyError gives an error of reading the request's body its status.
func bodyError(err error) error {
	if _, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		return err // a handler that has wrapped the body knows better
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return caddyhttp.Error(http.StatusInternalServerError, err) // of our temporary file
	}
	return caddyhttp.Error(http.StatusBadRequest, err) // the client did not finish it
}
