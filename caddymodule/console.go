package caddymodule

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// consoleDirective is the console's name in the Caddyfile.
const consoleDirective = "idempotency_console"

// consoleHeader is a request header without which the console changes nothing. A
// page of another site can't make a browser send it.
const consoleHeader = "Idempotency-Console"

// Console serves a page that shows how requests fare, and lets people settle jobs
// whose outcome is unknown: those of all idempotency handlers of the
// configuration. It does what the admin API does, for those whom the site has
// authenticated.
//
// Everything under the path at which it is reached is its own. It needs a path
// that ends in a slash, to which it leads by itself.
type Console struct {
	// Who is using the console: a placeholder that is filled in by what
	// authenticates people in front of it, such as `{http.auth.user.id}`. A
	// request for which it is empty is refused. It is kept as the actor of each
	// decision. Required, unless the console is unprotected.
	User string `json:"user,omitempty"`

	// Serves everybody who reaches the console, which then asks people for their
	// names and believes them. It has to be reached by an address, or as localhost:
	// any other name could be one that somebody's page has led here.
	Unprotected bool `json:"unprotected,omitempty"`

	app *App
}

// CaddyModule returns the Caddy module information.
func (*Console) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.idempotency_console",
		New: func() caddy.Module { return new(Console) },
	}
}

func parseConsoleCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	console := new(Console)
	if err := console.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return console, nil
}

// UnmarshalCaddyfile sets up the console from Caddyfile tokens:
//
//	idempotency_console [<matcher>] {
//		user <placeholder>
//		unprotected
//	}
//
// One of the two has to be given.
func (c *Console) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	p := newParser(consoleDirective, nil, d)
	p.options = map[string]option{
		"user": func(p *parser) error {
			args, err := p.args(1, 1, "{http.auth.user.id}")
			if err == nil {
				c.User = args[0]
			}
			return err
		},
		"unprotected": func(p *parser) error {
			c.Unprotected = true
			if args := p.d.RemainingArgs(); len(args) > 0 {
				return p.wrong("unprotected", args, "stands alone")
			}
			return nil
		},
	}
	if d.NextArg() {
		return d.Errf("%s %s: takes no arguments but a matcher; write options into its block, one on each line", consoleDirective, d.Val())
	}
	if err := p.block(); err != nil {
		return err
	}
	return p.finish(c.Validate())
}

// Provision sets up the console.
func (c *Console) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	c.app = app
	app.hasConsole = true
	return nil
}

// Validate refuses a console of which it is not said who may use it. It can't see
// what stands in front of it; so it has to be told who that says the user is.
func (c *Console) Validate() error {
	const remedy = "put what authenticates people, such as basic_auth or forward_auth, in front of it, and write `user {http.auth.user.id}`, or the placeholder in which that leaves their name"
	switch {
	case c.Unprotected && c.User != "":
		return errors.New("unprotected: there is a user as well; keep one of them")
	case c.Unprotected:
		return nil
	case c.User == "":
		return fmt.Errorf("%s: everybody could settle jobs in it; %s; or write `unprotected`, if something else keeps everybody else away", consoleDirective, remedy)
	}
	if _, err := caddy.NewReplacer().ReplaceOrErr(c.User, false, true); err == nil {
		return fmt.Errorf("user %q: the same for everybody; %s", c.User, remedy)
	}
	for _, name := range placeholder.FindAllStringSubmatch(c.User, -1) {
		if ofAnybody.MatchString(name[1]) && !ofSomebody.MatchString(name[1]) {
			return fmt.Errorf("user %q: known of requests that nobody has authenticated; %s", c.User, remedy)
		}
	}
	return nil
}

var placeholder = regexp.MustCompile(`\{([^{}]+)\}`)

// Of each request Caddy knows who has sent it from where, what it asks for and what
// is answered. Its header and a certificate can say who has been authenticated, and so
// can variables but those that Caddy sets by itself.
var (
	ofAnybody  = regexp.MustCompile(`^http\.(request|response|error|shutting_down|time_until_shutdown|vars\.(client_ip|trusted_proxy|start_time|uuid|root|trace_id|span_id)$)`)
	ofSomebody = regexp.MustCompile(`^http\.request\.(header|tls\.client)\.`)
)

// consoleFiles are what the page consists of. It asks for nothing else.
//
//go:embed console
var consoleFiles embed.FS

// consoleTypes are the media types of the files by their extensions: those that
// the machine knows may be others.
var consoleTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// consolePolicy lets the page load its own files and call its own API. Nothing
// that a job has in it could make it do anything else.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	for name, value := range map[string]string{
		"Content-Security-Policy":      consolePolicy,
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cache-Control":                "no-store",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
	} {
		w.Header().Set(name, value)
	}
	// Links in the page are relative to where the browser has it from.
	asked := askedOf(r).URL.Path
	operation, isCall := afterLast(asked, "/_api/")
	user := ""
	switch {
	case c.Unprotected && !isLocal(r.Host):
		err := newAdminError(http.StatusForbidden, codeNobody,
			"an unprotected console is reached by an address or as localhost only; for another name, let the site authenticate people, and write `user`")
		writeAnswer(w, r, nil, err)
		return nil
	case !c.Unprotected:
		user = ownerOf(c.User, r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer))
		if user == "" {
			err := newAdminError(http.StatusForbidden, codeNobody,
				"the console serves only people whom the site has authenticated, and %s is empty; put what authenticates them, such as basic_auth or forward_auth, in front of it", c.User)
			writeAnswer(w, r, nil, err)
			return nil
		}
	}
	if isCall {
		answer, err := c.call(w, r, operation, user)
		writeAnswer(w, r, answer, err)
		return nil
	}
	return serveConsoleFile(w, r, asked)
}

// isLocal reports whether a host is an address, or a name of this machine. A name of
// somebody else's can be made to lead here, and the page from there be taken for ours.
func isLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	return net.ParseIP(host) != nil || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

func afterLast(s, sep string) (after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", false
	}
	return s[i+len(sep):], true
}

// session tells the page for whom it is.
type session struct {
	User        string `json:"user,omitempty"`
	Unprotected bool   `json:"unprotected"`
}

// call answers a call of the page.
func (c *Console) call(w http.ResponseWriter, r *http.Request, operation, user string) (any, error) {
	if err := checkSameOrigin(r); err != nil {
		return nil, err
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Header.Get(consoleHeader) == "" {
		return nil, newAdminError(http.StatusForbidden, codeCrossOrigin, "refused: there is no header %s, which the console's page sends", consoleHeader)
	}
	if operation == "session" {
		return session{user, c.Unprotected}, nil
	}
	if err := c.app.hasHandlers(); err != nil {
		return nil, err
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxAdminBody)
	call := &adminCall{r: r, app: c.app, actor: user, alive: func() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}}
	return call.answer(operation)
}

// serveConsoleFile serves the page and its files.
func serveConsoleFile(w http.ResponseWriter, r *http.Request, asked string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return caddyhttp.Error(http.StatusMethodNotAllowed, fmt.Errorf("the console takes no %s here", r.Method))
	}
	name := asked[strings.LastIndex(asked, "/")+1:]
	if name != "" && path.Ext(name) == "" {
		w.Header().Set("Location", "./"+url.PathEscape(name)+"/")
		w.WriteHeader(http.StatusFound)
		return nil
	}
	name = cmp.Or(name, "index.html")
	content, err := fs.ReadFile(consoleFiles, "console/"+name)
	if err != nil {
		return caddyhttp.Error(http.StatusNotFound, fmt.Errorf("the console has no file %q", name))
	}
	w.Header().Set("Content-Type", consoleTypes[path.Ext(name)])
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	_, _ = w.Write(content)
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Console)(nil)
	_ caddy.Validator             = (*Console)(nil)
	_ caddyfile.Unmarshaler       = (*Console)(nil)
	_ caddyhttp.MiddlewareHandler = (*Console)(nil)
)
