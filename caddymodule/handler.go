package caddymodule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// Handler makes one user intent have exactly one effect. A request with an
// idempotency key is carried out once by the handlers that follow; however often
// it is repeated, the repetitions get the answer of that one time, and repetitions
// that come meanwhile wait for it. Where it can't be known whether a request was
// carried out, repetitions are refused until that is settled, and never carried
// out again on a guess.
//
// Requests without a key, and those with a method that is not protected, pass
// untouched, unless a key is required.
//
// What is remembered of a request is kept in a store: a file on this machine, or
// Redis for any number of gateways.
//
// When the handler refuses a request, it answers with problem details (RFC 9457).
// On a site whose error routes match, the refusal is an error instead. For these,
// for headers and for logs there are placeholders. They are empty, or zero, as long as
// that is not known, or if it is not so; all of them come to be known before the first
// byte of the answer is given:
//
// Placeholder | Description
// ------------|------------
// `{http.idempotency.verdict}` | What became of the request, such as `executed`, `replayed` or `key_reused`; `bypassed` if it passes unprotected
// `{http.idempotency.attempt}` | The number of the attempt that the answer comes from, or that stands in the request's way
// `{http.idempotency.provider}` | The provider of that attempt
// `{http.idempotency.record}` | The digest of space, owner and key, with which the job's id begins
// `{http.idempotency.owner}` | The digest of the caller
// `{http.idempotency.wait_ms}` | How long the request waited for another one's attempt, in milliseconds
// `{http.idempotency.store_ms}` | How long it waited for the store, in milliseconds
// `{http.idempotency.code}` | If the request was refused: what is the matter, such as `key-reused` or `outcome-unknown`
// `{http.idempotency.advice}` | What the client can do, as a word: `fix-request`, `new-key`, `retry-same-key`, `wait-for-resolution` or `already-done`
// `{http.idempotency.title}` | What is the matter, in words
// `{http.idempotency.detail}` | What the client can do, in words
// `{http.idempotency.job}` | The id of the job that the request belongs to, where it is known
// `{http.idempotency.state}` | The job's state: `running`, `unknown`, `completed` or `open`
// `{http.idempotency.attempts}` | How many attempts the job has had
//
// To the handlers that carry out an attempt, which may be running when the request
// is over, job, attempt and provider are those of the attempt; there are no others.
// The access log has the same in the field `idempotency`.
type Handler struct {
	// The store in which jobs are kept. Default: `bolt`, with a file in Caddy's
	// data directory. Handlers whose stores have the same settings share one.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=http.handlers.idempotency.stores inline_key=module"`

	// Refuse requests with a key while the store is known to lose jobs that it has
	// acknowledged, or nothing is known of that yet: `danger` if that happens in
	// everyday operation (it evicts jobs, keeps nothing on its disk, can't write there,
	// or the disk is the machine's memory), `warning` also if it takes a failure.
	// Default: such findings are logged only.
	RequireDurable string `json:"require_durable,omitempty"`

	// Separates the jobs of independent routes or applications in one store.
	// Names that begin with `_` are reserved. Default: `main`.
	Space string `json:"space,omitempty"`

	// Whose a key is: a placeholder for the caller that the site has
	// authenticated, such as `{http.auth.user.id}`. Two callers can use the same
	// key without ever meeting. A request for which a placeholder in it is empty
	// or unknown is refused. Where several placeholders make it up, the characters
	// that stand between them are escaped in what they come to (`%3A` for a colon).
	// The word `shared` says that there is only one caller. Required.
	Owner string `json:"owner"`

	// The request header that carries the key. Default: `Idempotency-Key`.
	KeyHeader string `json:"key_header,omitempty"`

	// Refuse protected requests without a key. Otherwise they pass unprotected.
	KeyRequired bool `json:"key_required,omitempty"`

	// Which keys are taken: `any`, or `uuid` for keys that are written like a UUID.
	// As always, two keys are one only if they are the same characters.
	// Default: `any`.
	KeyFormat string `json:"key_format,omitempty"`

	// What of a request a key stands for. The key is refused when it comes back
	// with another request. Jobs that are there when this is changed are judged
	// as before. Default: host, query and body count as they were sent.
	Fingerprint *Fingerprint `json:"fingerprint,omitempty"`

	// The keys that encrypt what is kept of answers and of the keys as they were
	// sent (AES-256-GCM). The first one encrypts, all of them decrypt. Default: they
	// are not encrypted.
	EncryptWith []EncryptionKey `json:"encrypt_with,omitempty"`

	// A secret that makes HMACs of what is kept of owners and requests, and of the
	// names of records, in place of plain digests, with which guesses can be
	// compared. Written like the secret of a key that encrypts. With another secret
	// every key is new, and a repetition of an earlier request is carried out: set
	// it from the start, and change it together with `space` or not at all.
	// Default: plain digests.
	DigestSecret string `json:"digest_secret,omitempty"`

	// The methods that are protected. Default: all but GET, HEAD, OPTIONS, TRACE
	// and CONNECT.
	Methods []string `json:"methods,omitempty"`

	// How long a repetition waits for the first request to finish. Default: `10s`.
	Wait caddy.Duration `json:"wait,omitempty"`

	// How long a client is kept waiting for its request to be carried out. After
	// that, its outcome is unknown. Default: `60s`.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How long, after the timeout, a late answer is listened for. It is then
	// what repetitions get. Default: `10m`.
	Linger caddy.Duration `json:"linger,omitempty"`

	// How long a request is believed to be running without a sign of life from
	// the gateway that runs it. After that, its outcome is unknown. Default: the
	// timeout and 30 seconds.
	Lease caddy.Duration `json:"lease,omitempty"`

	// How long answers are kept. Must exceed timeout and linger together.
	// Default: `24h`.
	Retention caddy.Duration `json:"retention,omitempty"`

	// How long the upstream may be silent in the middle of an answer that is
	// passed on while it comes: an event stream, or one that is too large to be
	// kept. After that, the answer counts as cut. Timeout and linger don't bound
	// such an answer. Default: `60s`.
	StreamIdle caddy.Duration `json:"stream_idle,omitempty"`

	// The largest request body that is taken, in bytes. Default: 32 MiB.
	MaxRequestBody int64 `json:"max_request_body,omitempty"`

	// How much of a request body is held in memory, in bytes. A larger one goes
	// into a temporary file that is removed at once from its directory. Default:
	// 256 KiB.
	Buffer int64 `json:"buffer,omitempty"`

	// The largest answer that is kept, in bytes. A larger one is passed on, and
	// repetitions are told that the request was carried out. Default: 1 MiB.
	MaxResponseBody int64 `json:"max_response_body,omitempty"`

	// How many bytes of answers that were given are kept in memory for this route,
	// to be given again without asking the store. What is encrypted in the store is so there.
	// -1: none are. Default: 16 MiB.
	CacheSize int64 `json:"cache_size,omitempty"`

	// How long such an answer is kept in memory. A job that was forgotten through
	// another gateway can be replayed here for so long. Default: `10s`.
	CacheTTL caddy.Duration `json:"cache_ttl,omitempty"`

	// How many repetitions of one request may wait at once. Default: 1000.
	WaitersPerJob int `json:"waiters_per_job,omitempty"`

	// How many repetitions may wait at once in all. Default: 10000.
	Waiters int `json:"waiters,omitempty"`

	// What an answer's status proves, where that differs from the default:
	// `final` (it is the request's answer), `failed` (nothing has happened, and
	// a repetition is carried out) or `unknown`.
	Outcomes map[int]string `json:"outcomes,omitempty"`

	// The status with which a key is refused that comes back with another
	// request: `conflict` for 409, `ietf` for 422. Default: `conflict`.
	Statuses string `json:"statuses,omitempty"`

	// A request header in which the upstream gets a key that is made of the job's
	// id, for providers that take keys from a header of their own, such as
	// `PayPal-Request-Id`: a UUID that stays the same for all attempts of a job.
	// Default: none.
	SendKey string `json:"send_key,omitempty"`

	// The providers that can carry a request out, in order of preference. The first
	// one is the primary. Requests that are not protected are served by the primary
	// as well, and by the handlers that follow if it leaves them to these. Default:
	// the handlers that follow are the only one.
	Providers []*Provider `json:"providers,omitempty"`

	// Whether a request is carried out on the next provider, at once, when its
	// attempt certainly had no effect: `on`, or `off` to leave that to the client's
	// repetition. Default: `on`.
	Failover string `json:"failover,omitempty"`

	// How many attempts a request makes by itself; where providers race, how many a
	// job may have for another one to be started beside one that is unresolved.
	// Default: 3.
	MaxAttempts int `json:"max_attempts,omitempty"`

	// After what time another attempt is started beside one that still runs, on the
	// next provider. The first acceptable answer is the request's result. Only for
	// work that does no harm when it is done twice. Default: never.
	Race caddy.Duration `json:"race_after,omitempty"`

	// The word `allow` says that a provider may take another one's place without a
	// proof that it honours the contract.
	Unproven string `json:"unproven,omitempty"`

	// What all providers have to honour. Default: nothing.
	Contract *Contract `json:"contract,omitempty"`

	// Fields of answers that are stored although they belong to one delivery or
	// one caller's session, such as `Set-Cookie`. Default: none.
	KeepHeaders []string `json:"keep_headers,omitempty"`

	// Routes that a request has to pass before it is given a stored answer, such
	// as one that asks whether the caller may still have it. If they answer
	// themselves, or return an error, that is what the client gets. If they do
	// neither and call no next handler, the request is refused with 403. Default:
	// none.
	ReplayCheck caddyhttp.RouteList `json:"replay_check,omitempty"`

	// What operators are shown with a job, besides its method and path: a text
	// with placeholders, such as `{http.request.header.X-Order}`. It must not say
	// who the caller is, or what the key is.
	Label string `json:"label,omitempty"`

	// How to ask the upstream whether an attempt was carried out of which that is
	// not known. A handler with this has to have its space for itself on its
	// store. Default: it is not asked.
	Reconcile *Reconcile `json:"reconcile,omitempty"`

	// Where an `idempotency_status` handler answers clients who ask for the state
	// of their jobs: the path before the job's id. Refusals because a job is
	// running or unknown then have a `Location`. Default: none.
	StatusPath string `json:"status_path,omitempty"`

	config   proxy.Config
	contract *proxy.Contract // as it was read
	opener   StoreOpener
	lookup   *lookup // of a handler that reconciles
	server   *caddyhttp.Server
	log      *slog.Logger
	refusals proxy.Sampler // of their lines in the log
	bound    atomic.Pointer[boundRoute]
	enclosed enclosure
}

// boundRoute is the handler's route on a store's gateway.
type boundRoute struct {
	store *sharedStore
	route *proxy.Route
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.idempotency",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the handler. It opens nothing.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.log = ctx.Slogger()
	config, err := h.proxyConfig()
	if err != nil {
		return err
	}
	h.config = config
	h.server, _ = ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if err := h.provisionSecrets(); err != nil {
		return err
	}
	if strings.ContainsAny(config.KeyHeader, "_.") {
		h.log.Warn("servers drop request headers with such a name unless they are told to expect it; no key may ever arrive",
			slog.String("key", config.KeyHeader))
	}
	h.Fingerprint.warn(h.log)
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	if h.opener, err = openerOf(ctx, h, &h.StoreRaw); err != nil {
		return err
	}
	app.use(h.opener, config.Timeout)
	if least, err := h.leastUnfit(); err == nil && least >= 0 {
		app.requireDurable(h.opener, least)
	}
	if err := h.ReplayCheck.Provision(ctx); err != nil {
		return fmt.Errorf("replay_check: %w", err)
	}
	for _, p := range h.Providers {
		if err := p.check(); err != nil { // before its handlers are begun
			return err
		}
		if err := p.provision(ctx, cmp.Or(config.KeyHeader, proxy.DefaultKeyHeader), h.SendKey); err != nil {
			return err
		}
	}
	if err := h.provisionLookup(); err != nil {
		return err
	}
	return app.keepsJobs(h)
}

// Validate reports what is wrong with the settings, with the remedy.
func (h *Handler) Validate() error {
	if err := h.check(); err != nil {
		return err
	}
	h.logProtected()
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	route, release, err := h.route()
	if err != nil {
		return err
	}
	defer release()
	return newExchange(h, r, next).serve(route, w)
}

// route returns the handler's route on its store. It is held until release is
// called, also where the configuration has been replaced by then.
//
// A server may get its first requests before the app has started, and its last
// ones after the app was cleaned up. The store is then opened for the request
// alone.
func (h *Handler) route() (route *proxy.Route, release func(), err error) {
	store, err := acquire(h.opener)
	if err != nil {
		h.log.Error("the store can't be opened", slog.Any("error", err))
		return h.routeWithoutStore(err)
	}
	route, err = h.routeOn(store)
	if err != nil {
		store.release()
		return nil, nil, err
	}
	return route, store.release, nil
}

// routeOn returns the handler's route on a store.
func (h *Handler) routeOn(store *sharedStore) (*proxy.Route, error) {
	if b := h.bound.Load(); b != nil && b.store == store {
		return b.route, nil
	}
	config := h.config
	config.Eligible = h.eligible(store.proofs)
	config.Admit = h.admission(store.inspection)
	route, err := proxy.NewRoute(store.gateway, config)
	if err != nil {
		return nil, err
	}
	h.bound.Store(&boundRoute{store, route})
	return route, nil
}

// routeWithoutStore returns a route that passes what need not be protected, and
// refuses everything else.
func (h *Handler) routeWithoutStore(why error) (route *proxy.Route, release func(), err error) {
	gateway := proxy.NewGateway(unopened{why}, proxy.GatewayOptions{Observer: metrics})
	config := h.config
	config.Eligible = h.eligible(proofsOf(gateway))
	route, err = proxy.NewRoute(gateway, config)
	if err != nil {
		gateway.Close()
		return nil, nil, err
	}
	return route, gateway.Close, nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
