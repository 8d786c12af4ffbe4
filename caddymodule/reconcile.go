package caddymodule

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// Reconcile says how to ask the upstream whether an attempt was carried out of
// which that is not known, and what its answers mean. Only the answers that are
// named settle anything.
type Reconcile struct {
	// The request that asks. It must not change anything.
	Lookup LookupRequest `json:"lookup"`

	// How long after the first lookup the second one comes. From then on the
	// pause grows, up to twelve times as long. Default: `5s`.
	Every caddy.Duration `json:"every,omitempty"`

	// How long a gateway goes on asking about an attempt. With answers that mean
	// `failed` or `cancelled` it has to be longer than linger, their `after` and 30
	// seconds together. Default: `15m`.
	For caddy.Duration `json:"for,omitempty"`

	// What the lookup's answers mean. Required.
	Answers []ReconcileAnswer `json:"answers"`

	// A JSON pointer (RFC 6901) to the part of the lookup's answer that becomes
	// the result's body. Default: all of it.
	ReplayFrom string `json:"replay_from,omitempty"`
}

// LookupRequest is the request that asks about an attempt.
//
// These placeholders can be used in the URL, where they are escaped for their
// place, and in headers, besides those such as `{env.*}` and `{file.*}` that need
// no request; the latter are replaced anew for each lookup:
//
// Placeholder | Description
// ------------|------------
// `{http.idempotency.key_sent}` | The key in the spelling in which it was sent, and which the upstream got
// `{http.idempotency.key}` | The key, without the quotes that it may have been sent in
// `{http.idempotency.job}` | The id of the job
// `{http.idempotency.attempt}` | The attempt's number
type LookupRequest struct {
	// `GET`, `HEAD` or `POST`. Default: `GET`.
	Method string `json:"method,omitempty"`

	// What to ask. A path, as in `/charges?key={http.idempotency.key}`, goes the
	// way of the attempts, through the handlers that follow, with the host of the
	// job's own request unless the header `Host` says otherwise; before the first
	// request for that host with a key after a start it can't be asked. A URL with
	// `http://` or `https://` is asked directly.
	URL string `json:"url"`

	// The headers, by name. The one that carries the key is refused, since a
	// request with it could be carried out as the job.
	Header map[string]string `json:"header,omitempty"`
}

// ReconcileAnswer says what some of a lookup's answers mean.
type ReconcileAnswer struct {
	// The statuses.
	Statuses []int `json:"statuses"`

	// What they mean: `succeeded` (the answer becomes the job's result), `failed`
	// or `cancelled` (a repetition is carried out).
	As string `json:"as"`

	// How long has to have passed since the attempt is surely over: its lease has
	// ended, and its gateway does not listen any more. Required for `failed` and `cancelled`: a gateway that stands
	// still may yet be about to send.
	After caddy.Duration `json:"after,omitempty"`
}

func (l *LookupRequest) method() string { return cmp.Or(l.Method, http.MethodGet) }

// decisions are the words for what an answer can mean.
var decisions = map[string]keystore.AttemptState{
	keystore.AttemptSucceeded.String(): keystore.AttemptSucceeded,
	keystore.AttemptFailed.String():    keystore.AttemptFailed,
	keystore.AttemptCancelled.String(): keystore.AttemptCancelled,
}

// config returns the settings for the route. Without a URL there is no way to
// ask, of which the route complains.
func (rc *Reconcile) config(ask func(context.Context, *keystore.Job, *keystore.Attempt) (*keystore.Response, error)) (*proxy.Reconcile, error) {
	c := &proxy.Reconcile{
		Every:      cmp.Or(time.Duration(rc.Every), proxy.DefaultReconcileEvery),
		For:        cmp.Or(time.Duration(rc.For), proxy.DefaultReconcileFor),
		ReplayFrom: rc.ReplayFrom,
	}
	if rc.Lookup.URL != "" {
		c.Lookup = ask
	}
	for _, answer := range rc.Answers {
		as, known := decisions[answer.As]
		if !known {
			return nil, fmt.Errorf("reconcile: %s: an answer can mean succeeded, failed or cancelled", answer.As)
		}
		c.Rules = append(c.Rules, proxy.ReconcileRule{Statuses: answer.Statuses, As: as, After: time.Duration(answer.After)})
	}
	return c, nil
}

// ask asks about an attempt of the handler's route.
func (h *Handler) ask(ctx context.Context, j *keystore.Job, a *keystore.Attempt) (*keystore.Response, error) {
	return h.lookup.ask(ctx, j, a)
}

// provisionLookup prepares the lookup of a handler that has one.
func (h *Handler) provisionLookup() error {
	if h.Reconcile == nil || h.Reconcile.Lookup.URL == "" {
		return nil // of the latter, Validate complains
	}
	l, err := newLookup(&h.Reconcile.Lookup, h.config.KeyHeader, h.config.MaxResponseBody)
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	if h.Owner != ownerShared && !l.uses("http.idempotency.job") {
		h.log.Warn("a key is unique only for its owner, and the lookup does not name the job: if two owners use the same key, the answer about one's job could settle the other's; "+
			"ask by {http.idempotency.job}, which the upstream gets as Idempotency-Job, or make sure that keys are unique among all owners",
			slog.String("lookup", l.text))
	}
	l.provider = h.handlerOf
	h.lookup = l
	return nil
}

// place is where jobs are kept: a space of a store.
type place struct {
	store storeKey
	space string
}

// keepsJobs is how a handler says, while it is provisioned, where its jobs are.
// A reconciler finds the jobs of its route by their space. Those of another route
// would be asked about in the wrong place, where an answer that knows nothing of
// them would permit a second execution.
func (a *App) keepsJobs(h *Handler) error {
	at := place{locationOf(h.opener), h.config.Space}
	if a.handlers == nil {
		a.handlers = make(map[place][]*Handler)
	}
	a.handlers[at] = append(a.handlers[at], h)
	reconciles := func(h *Handler) bool { return h.Reconcile != nil }
	if len(a.handlers[at]) > 1 && slices.ContainsFunc(a.handlers[at], reconciles) {
		return fmt.Errorf("reconcile: a second idempotency handler keeps its jobs in the space %s of the same store, and they would be looked up in the wrong place; "+
			"give each a space of its own, as in `space payments` (a site with addresses on several ports has its handlers once for each)", at.space)
	}
	return a.agreeOnSecrets(at)
}

// showsJobs is how a status handler says, while it is provisioned, whose jobs it
// shows.
func (a *App) showsJobs(s *StatusHandler) error {
	at := place{locationOf(s.opener), s.space}
	if a.statuses == nil {
		a.statuses = make(map[place][]*StatusHandler)
	}
	a.statuses[at] = append(a.statuses[at], s)
	return a.agreeOnSecrets(at)
}

// startReconcilers begins to ask about the unknown attempts of the handlers that
// say how. The stores are open by then.
func (a *App) startReconcilers() error {
	ctx, stop := context.WithCancel(context.Background())
	a.stopReconcilers = stop
	for _, handlers := range a.handlers {
		for _, h := range handlers {
			if h.Reconcile == nil {
				continue
			}
			// A reference of its own, since the last lookups may end after the app.
			store, err := acquire(h.opener)
			if err != nil {
				return err
			}
			route, err := h.routeOn(store)
			if err != nil {
				store.release()
				return err
			}
			go func() {
				defer store.release()
				route.Reconcile(ctx)
			}()
		}
	}
	return nil
}
