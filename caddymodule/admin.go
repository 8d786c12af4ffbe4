package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

func init() { caddy.RegisterModule(adminAPI{}) }

// adminPrefix is where the API is on Caddy's admin endpoint.
const adminPrefix = "/idempotency/"

// maxAdminBody bounds the body of a call. A response that resolves an attempt is
// the largest thing to come.
const maxAdminBody = 16 << 20

// adminAPI shows jobs and settles them, on Caddy's admin endpoint:
//
//	GET  /idempotency/jobs               a page of jobs
//	GET  /idempotency/jobs/{id}          one job
//	POST /idempotency/find               one job, by space, owner and key
//	POST /idempotency/jobs/{id}/resolve  decide on an unknown attempt
//	POST /idempotency/jobs/{id}/forget   drop a completed job
//	GET  /idempotency/stats              counts
//	GET  /idempotency/providers          providers, and whether they are proven
//	POST /idempotency/prove              run the cases of contracts
//	GET  /idempotency/doctor             what the stores run on, and what that can cost
//	GET  /idempotency/verdicts           requests by what became of them, on this gateway
//	GET  /idempotency/ready              whether requests should be led here; needs no token
//
// Caddy makes one for each of its admin endpoints, before there is any app, and
// never cleans it up. So it owns nothing: what it works on is looked for at each
// call.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.idempotency",
		New: func() caddy.Module { return new(adminAPI) },
	}
}

// Routes implements caddy.AdminRouter.
func (adminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{
		Pattern: adminPrefix,
		Handler: caddy.AdminHandlerFunc(serveAdmin),
	}}
}

// adminCall is one call of the API.
type adminCall struct {
	r      *http.Request
	app    *App
	alive  func() // is to be called before anything that takes long
	job    string // the id in the path, where it has one
	actor  string // who decides, where that is known; whom the call names does not matter then
	stores []adminStore
}

// adminOperation is what a path of the API stands for.
type adminOperation struct {
	method string
	run    func(*adminCall) (any, error)
	job    string
}

// adminOperationAt returns what the path in the API stands for, nil for nothing.
func adminOperationAt(path string) *adminOperation {
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 1 && parts[0] == "jobs":
		return &adminOperation{http.MethodGet, (*adminCall).list, ""}
	case len(parts) == 1 && parts[0] == "find":
		return &adminOperation{http.MethodPost, (*adminCall).find, ""}
	case len(parts) == 1 && parts[0] == "stats":
		return &adminOperation{http.MethodGet, (*adminCall).stats, ""}
	case len(parts) == 1 && parts[0] == "providers":
		return &adminOperation{http.MethodGet, (*adminCall).providers, ""}
	case len(parts) == 1 && parts[0] == "doctor":
		return &adminOperation{http.MethodGet, (*adminCall).doctor, ""}
	case len(parts) == 1 && parts[0] == "verdicts":
		return &adminOperation{http.MethodGet, (*adminCall).verdicts, ""}
	case len(parts) == 1 && parts[0] == "prove":
		return &adminOperation{http.MethodPost, (*adminCall).prove, ""}
	case len(parts) == 2 && parts[0] == "jobs":
		return &adminOperation{http.MethodGet, (*adminCall).show, parts[1]}
	case len(parts) == 3 && parts[0] == "jobs" && parts[2] == "resolve":
		return &adminOperation{http.MethodPost, (*adminCall).resolve, parts[1]}
	case len(parts) == 3 && parts[0] == "jobs" && parts[2] == "forget":
		return &adminOperation{http.MethodPost, (*adminCall).forget, parts[1]}
	}
	return nil
}

// serveAdmin answers a call. It writes errors itself: Caddy would leave out their
// codes, and the job that they are about.
func serveAdmin(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxAdminBody)
	answer, err := answerAdmin(r, func() {
		// Caddy's endpoint takes a call that lasts longer than its read timeout for
		// one whose caller has left.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	})
	writeAnswer(w, r, answer, err)
	return nil
}

// writeAnswer writes what a call has come to.
func writeAnswer(w http.ResponseWriter, r *http.Request, answer any, err error) {
	status := http.StatusOK
	if err != nil {
		p := adminErrorOf(err)
		p.setHeader(w.Header())
		answer, status = p, p.status
		if status == http.StatusUnauthorized || status == http.StatusForbidden {
			slog.New(currentLog{}).Warn("a call of the admin API was refused",
				slog.String("code", p.Code), slog.String("method", r.Method), slog.String("remote", r.RemoteAddr))
		}
	}
	if a, ok := answer.(readyAnswer); ok {
		status = a.status()
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // to a caller who may have left
}

func answerAdmin(r *http.Request, alive func()) (any, error) {
	if err := checkSameOrigin(r); err != nil {
		return nil, err
	}
	if r.URL.Path == adminPrefix+"ready" {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return nil, notAllowed(r, http.MethodGet)
		}
		return ready(), nil
	}
	app, err := runningApp()
	if err != nil {
		return nil, err
	}
	if err := app.authorize(r); err != nil {
		return nil, err
	}
	call := &adminCall{r: r, app: app, alive: alive}
	return call.answer(strings.TrimPrefix(r.URL.Path, adminPrefix))
}

// answer does what the path in the API stands for.
func (c *adminCall) answer(path string) (any, error) {
	op := adminOperationAt(path)
	switch {
	case op == nil:
		return nil, newAdminError(http.StatusNotFound, codeNotFound, "there is nothing at %s; the API has jobs, find, stats, providers, prove, doctor, verdicts and, on the admin endpoint, ready", c.r.URL.Path)
	case c.r.Method != op.method && (c.r.Method != http.MethodHead || op.method != http.MethodGet):
		return nil, notAllowed(c.r, op.method)
	case op.method == http.MethodPost:
		// A browser sends this type to another site only after asking that site.
		if mediaType, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
			return nil, newAdminError(http.StatusUnsupportedMediaType, codeMediaType, "send the body as application/json, in a Content-Type header")
		}
	}
	stores, err := c.app.storesFor(c.r.URL.Query().Get("store"))
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range stores {
			s.release()
		}
	}()
	c.job, c.stores = op.job, stores
	return op.run(c)
}

func notAllowed(r *http.Request, method string) error {
	p := newAdminError(http.StatusMethodNotAllowed, codeMethod, "%s takes %s, not %s", r.URL.Path, method, r.Method)
	p.allow = method
	return p
}

// checkSameOrigin refuses what a page of another site makes a browser send, and
// "another site" includes other ports of this machine. The API has nothing for
// such pages to read either, so that all methods are treated as unsafe ones.
func checkSameOrigin(r *http.Request) error {
	unsafe := *r
	unsafe.Method = http.MethodPost
	if err := new(http.CrossOriginProtection).Check(&unsafe); err != nil {
		return newAdminError(http.StatusForbidden, codeCrossOrigin, "refused: %w; a page of another site can't use this API", err)
	}
	return nil
}

// body reads the call's body into v.
func (c *adminCall) body(v any) error {
	d := json.NewDecoder(c.r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is something after it")
		}
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return newAdminError(http.StatusRequestEntityTooLarge, codeTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return badCall(fmt.Errorf("the body is not the JSON that %s takes: %w", c.r.URL.Path, err))
	}
	return nil
}

// Interface guards
var (
	_ caddy.Module      = adminAPI{}
	_ caddy.AdminRouter = adminAPI{}
)
