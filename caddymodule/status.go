package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// statusDirective is the handler's name in the Caddyfile.
const statusDirective = "idempotency_status"

// StatusHandler tells clients how a job of theirs stands. The job's id, which they
// got in the header `Idempotency-Job`, is the last segment of the path. Only the
// job's own owner is answered; for everybody else there is no such job.
type StatusHandler struct {
	// The store in which the jobs are kept. Default: `bolt`, with a file in
	// Caddy's data directory.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=http.handlers.idempotency.stores inline_key=module"`

	// The space of the jobs. Default: `main`.
	Space string `json:"space,omitempty"`

	// Whose the jobs are: the same as that of the handler that keeps them.
	// Required.
	Owner string `json:"owner"`

	// The secret of the digests: the same as that of the handler that keeps the
	// jobs.
	DigestSecret string `json:"digest_secret,omitempty"`

	space    string
	digester keystore.Digester
	opener   StoreOpener
	log      *slog.Logger
}

// CaddyModule returns the Caddy module information.
func (*StatusHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.idempotency_status",
		New: func() caddy.Module { return new(StatusHandler) },
	}
}

func parseStatusCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(StatusHandler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return handler, nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens:
//
//	idempotency_status [<matcher>] {
//		store redis <url> | bolt [<path>]
//		space <name>
//		owner <placeholder> | shared
//		digest_secret {env.<name>}|{file.<path>}
//	}
//
// Only owner has to be given.
func (s *StatusHandler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	given := new(Handler) // which has the same options and more
	p := newParser(statusDirective, given, d)
	p.options = map[string]option{"store": options["store"], "space": options["space"], "owner": options["owner"], "digest_secret": options["digest_secret"]}
	if d.NextArg() {
		return d.Errf("%s %s: takes no arguments but a matcher; write options into its block, one on each line", statusDirective, d.Val())
	}
	if err := p.block(); err != nil {
		return err
	}
	s.StoreRaw, s.Space, s.Owner, s.DigestSecret = given.StoreRaw, given.Space, given.Owner, given.DigestSecret
	return p.finish(s.Validate())
}

// Provision sets up the handler. It opens nothing.
func (s *StatusHandler) Provision(ctx caddy.Context) error {
	s.log = ctx.Slogger()
	s.space = proxy.Config{Space: s.Space}.WithDefaults().Space
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	if s.digester, err = digesterOf(s.DigestSecret); err != nil {
		return err
	}
	if s.opener, err = openerOf(ctx, s, &s.StoreRaw); err != nil {
		return err
	}
	app.use(s.opener, 0)
	return app.showsJobs(s)
}

// Validate reports what is wrong with the settings, with the remedy.
func (s *StatusHandler) Validate() error {
	if err := checkOwner(s.Owner); err != nil {
		return err
	}
	if err := checkDigestSecret(s.DigestSecret); err != nil {
		return err
	}
	return checkSpace(s.Space)
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (s *StatusHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	w.Header().Set("Cache-Control", "no-store")
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	status, refusal := s.status(r, repl)
	if refusal != nil {
		if refusal.Code == proxy.CodeMethodNotAllowed {
			w.Header().Set("Allow", "GET, HEAD")
		}
		return refuse(w, r, askedOf(r), repl, refusal)
	}
	body, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("encode the status of a job: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	_, _ = w.Write(append(body, '\n')) // the client may have left
	return nil
}

// status returns what the request's caller may know of the job.
func (s *StatusHandler) status(r *http.Request, repl *caddy.Replacer) (*jobStatus, *proxy.Refusal) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil, &proxy.Refusal{
			Code: proxy.CodeMethodNotAllowed, Status: http.StatusMethodNotAllowed, Advice: proxy.AdviceFixRequest,
			Title: "A job can only be asked about", Detail: "Use GET.",
		}
	}
	owner := ownerOf(s.Owner, repl)
	if owner == "" {
		return nil, &proxy.Refusal{
			Code: proxy.CodeOwnerMissing, Status: http.StatusBadRequest, Advice: proxy.AdviceFixRequest,
			Title: "The caller is not known", Detail: "The site could not tell whose request this is.",
		}
	}
	store, err := acquire(s.opener)
	if err != nil {
		s.log.Error("the store can't be opened", slog.Any("error", err))
		return nil, s.unavailable(err)
	}
	defer store.release()
	id := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	job, err := store.gateway.Job(r.Context(), id)
	switch {
	case err != nil && !errors.Is(err, proxy.ErrNoJob):
		return nil, s.unavailable(err)
	// The answer is the same whether there is none, or it is somebody else's.
	case err != nil, job.Space != s.space, job.Owner != s.digester.OwnerDigest(owner):
		return nil, &proxy.Refusal{
			Code: proxy.CodeNoSuchJob, Status: http.StatusNotFound, Advice: proxy.AdviceFixRequest,
			Title: "There is no such job", Detail: "You have no job with this id. It may have expired.",
		}
	}
	return statusOf(job, store.store.Now()), nil
}

func (s *StatusHandler) unavailable(err error) *proxy.Refusal {
	s.log.Error("the state of a job could not be read", slog.Any("error", err))
	return &proxy.Refusal{
		Code: proxy.CodeStoreUnavailable, Status: http.StatusServiceUnavailable, Advice: proxy.AdviceRetrySameKey,
		Title: "The record of requests is not available", Detail: "Ask again later.", RetryAfter: time.Second, Err: err,
	}
}

// jobStatus is what a client is told of a job of its own: nothing that it did
// not send or get itself, but for how its attempts went.
type jobStatus struct {
	Job      string          `json:"job"`
	State    string          `json:"state"`
	Created  time.Time       `json:"created"`
	Expires  time.Time       `json:"expires,omitzero"`
	Attempts []attemptStatus `json:"attempts"`
	// AttemptCount includes attempts that are no longer listed.
	AttemptCount int           `json:"attempt_count"`
	Result       *resultStatus `json:"result,omitempty"`
}

type attemptStatus struct {
	Number  int       `json:"number"`
	State   string    `json:"state"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
}

type resultStatus struct {
	Status   int       `json:"status"`
	Answered time.Time `json:"answered,omitzero"`
	Kept     bool      `json:"kept"` // whether a repetition gets it
}

func statusOf(j *keystore.Job, now keystore.Time) *jobStatus {
	s := &jobStatus{
		Job: j.ID, State: j.State(now).String(), Created: j.Created.Std(), Expires: instant(j.Expires),
		AttemptCount: j.AttemptCount(), Attempts: make([]attemptStatus, 0, len(j.Attempts)),
	}
	for i := range j.Attempts {
		a := &j.Attempts[i]
		s.Attempts = append(s.Attempts, attemptStatus{
			Number: a.Number, State: a.State.String(), Started: a.Started.Std(), Ended: instant(a.Ended),
		})
	}
	if j.Result != nil {
		s.Result = &resultStatus{Status: j.Result.Status, Answered: instant(j.Result.Answered), Kept: !j.Result.NotKept}
	}
	return s
}

// Interface guards
var (
	_ caddy.Provisioner           = (*StatusHandler)(nil)
	_ caddy.Validator             = (*StatusHandler)(nil)
	_ caddyfile.Unmarshaler       = (*StatusHandler)(nil)
	_ caddyhttp.MiddlewareHandler = (*StatusHandler)(nil)
)
