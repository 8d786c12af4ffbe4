package caddymodule

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// lookup asks a route's upstream about attempts. A URL that is only a path goes
// the way of the attempts, through the handlers that follow; any other is asked
// directly.
type lookup struct {
	method string
	text   string // the URL as it was written, which is what logs may show of it
	url    urlTemplate
	header map[string]template
	limit  int64 // of an answer's body, in bytes

	// ways are those of the latest requests of the route, by the host that they
	// asked for. A handler learns what follows it only from a request, and one that
	// several sites invoke is followed by something else on each.
	mu   sync.Mutex
	ways map[string]*way

	// provider returns what carries out attempts on the provider of this name.
	provider func(name string, next caddyhttp.Handler) caddyhttp.Handler
}

// maxWays bounds how many hosts have a way. A client can name any.
const maxWays = 256

// way is what a request of the gateway's own needs to go through the handlers
// that follow. It has nothing of the request that it was learned from but
// whether that was encrypted.
type way struct {
	next   caddyhttp.Handler
	server *caddyhttp.Server
	tls    *tls.ConnectionState
	root   any // where the site's files are, which handlers such as php_fastcgi need
}

// newLookup makes a lookup out of its settings, which it checks as far as that
// can be done without the values of global placeholders.
//
// The key's header is that of the route.
func newLookup(settings *LookupRequest, keyHeader string, limit int64) (*lookup, error) {
	l := &lookup{method: settings.method(), text: settings.URL, header: make(map[string]template), limit: limit, ways: make(map[string]*way)}
	l.provider = func(_ string, next caddyhttp.Handler) caddyhttp.Handler { return next }
	if err := checkLookupMethod(l.method); err != nil {
		return nil, err
	}
	var err error
	if l.url, err = newURLTemplate(settings.URL); err != nil {
		return nil, fmt.Errorf("lookup: %w", err)
	}
	if l.url.static() {
		if _, err := l.url.expand(sampleJob); err != nil {
			return nil, fmt.Errorf("lookup: %w", err)
		}
	}
	for name, value := range settings.Header {
		t, err := newHeaderTemplate(name, value)
		if err != nil {
			return nil, err
		}
		name = http.CanonicalHeaderKey(name)
		if name == http.CanonicalHeaderKey(keyHeader) {
			return nil, errKeyHeader(name)
		}
		if _, twice := l.header[name]; twice {
			return nil, fmt.Errorf("header %s: given twice; keep one of them", name)
		}
		l.header[name] = t
	}
	return l, nil
}

// checkLookupMethod refuses methods that do something.
func checkLookupMethod(method string) error {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
		return nil
	}
	return fmt.Errorf("lookup %s: a lookup only asks; write GET, HEAD or POST", method)
}

// newHeaderTemplate makes the template of a header's value. Its errors don't show
// the value, which may be secret.
func newHeaderTemplate(name, value string) (template, error) {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return nil, fmt.Errorf("header %s: not the name of a header field", name)
	case slices.Contains(keyHeaders, http.CanonicalHeaderKey(name)):
		return nil, errKeyHeader(name)
	case http.CanonicalHeaderKey(name) == "Accept-Encoding":
		return nil, fmt.Errorf("header %s: the answer is kept for clients that may understand other encodings; leave it out", name)
	case !httpguts.ValidHeaderFieldValue(value) || value == "":
		return nil, fmt.Errorf("header %s: not a value that a header field can have", name)
	}
	t, err := newTemplate(value, asItIs)
	if err != nil {
		return nil, fmt.Errorf("header %s: %w", name, err)
	}
	if http.CanonicalHeaderKey(name) == "Host" {
		for _, used := range t.names() {
			if slices.Contains(jobPlaceholders, used) {
				return nil, fmt.Errorf("header %s: {%s} can't stand for where the upstream is; write the host, and use the placeholder in the URL", name, used)
			}
		}
	}
	return t, nil
}

// keyHeaders are the headers that upstreams commonly take a key from.
var keyHeaders = []string{"Idempotency-Key", "X-Idempotency-Key"}

// errKeyHeader refuses what would make a lookup look like an attempt.
func errKeyHeader(name string) error {
	return fmt.Errorf("header %s: a request that carries the key could be carried out as the job; "+
		"leave the header out, and ask by the URL, as in `lookup GET /charges?key={http.idempotency.key_sent}`", name)
}

// uses reports whether the placeholder of this name is in the lookup.
func (l *lookup) uses(name string) bool {
	all := []template{l.url.origin, l.url.path, l.url.query}
	for _, t := range l.header {
		all = append(all, t)
	}
	return slices.ContainsFunc(all, func(t template) bool { return slices.Contains(t.names(), name) })
}

// sampleJob stands for any job when settings are checked.
var sampleJob = map[string]string{
	"http.idempotency.key_sent": `"k"`,
	"http.idempotency.key":      "k",
	"http.idempotency.job":      "j",
	"http.idempotency.attempt":  "1",
}

// check reports whether the lookup can be made, with the global placeholders as
// they are now.
func (l *lookup) check() error {
	if _, err := l.url.expand(sampleJob); err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	for name, value := range l.header {
		text, err := value.expand(sampleJob)
		if err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
		if !httpguts.ValidHeaderFieldValue(text) {
			return fmt.Errorf("header %s: what it comes to is not a value that a header field can have; is there a line break in one of its environment variables or files?", name)
		}
	}
	return nil
}

// ask asks about an attempt.
func (l *lookup) ask(ctx context.Context, j *keystore.Job, a *keystore.Attempt) (*keystore.Response, error) {
	r, err := l.request(ctx, j, a)
	if err != nil {
		return nil, err
	}
	if r.URL.Host != "" {
		return l.askDirectly(r)
	}
	if r.Host == "" {
		r.Host = j.Request.Host // the request went where that had sent it
	}
	return l.askProvider(r, j.Request.Host, a.Provider)
}

// request returns the lookup about an attempt. Placeholders of the environment
// and of files are replaced anew each time, so that a secret can be changed.
func (l *lookup) request(ctx context.Context, j *keystore.Job, a *keystore.Attempt) (*http.Request, error) {
	of := map[string]string{
		"http.idempotency.key_sent": j.KeySent,
		"http.idempotency.key":      proxy.KeyOf(j),
		"http.idempotency.job":      j.ID,
		"http.idempotency.attempt":  strconv.Itoa(a.Number),
	}
	u, err := l.url.expand(of)
	if err != nil {
		return nil, err
	}
	r := (&http.Request{
		Method: l.method, URL: u, Host: u.Host, Header: make(http.Header),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	for name, value := range l.header {
		text, err := value.expand(of)
		switch {
		case err != nil:
			return nil, err
		case !httpguts.ValidHeaderFieldValue(text):
			return nil, proxy.LookupError("what the header " + name + " comes to is no value of a header field")
		case name == "Host":
			r.Host = text
		default:
			r.Header.Set(name, text)
		}
	}
	return r, nil
}

// learn notes the way of a request of the route, which the client sent to this
// host.
func (l *lookup) learn(host string, r *http.Request, next caddyhttp.Handler) {
	w := &way{next: next, root: caddyhttp.GetVar(r.Context(), "root")}
	w.server, _ = r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if r.TLS != nil {
		// That it was encrypted is told to upstreams; who the client was is not.
		w.tls = &tls.ConnectionState{
			Version: r.TLS.Version, HandshakeComplete: true, CipherSuite: r.TLS.CipherSuite, ServerName: r.TLS.ServerName,
		}
	}
	host = strings.ToLower(host)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.ways[host]; !known && len(l.ways) >= maxWays {
		for other := range l.ways { // in no order
			delete(l.ways, other)
			break
		}
	}
	l.ways[host] = w
}

// wayOf returns the way of attempts for a host, or nil if none is known.
func (l *lookup) wayOf(host string) *way {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ways[strings.ToLower(host)]
}

// askProvider sends a lookup the way that attempts of the host's jobs go, in a
// context of its own: it has none of the vars and placeholders of anybody's
// request.
func (l *lookup) askProvider(r *http.Request, host, provider string) (*keystore.Response, error) {
	way := l.wayOf(host)
	if way == nil {
		return nil, proxy.ErrNotAskable
	}
	r.TLS = way.tls
	r.RemoteAddr = "127.0.0.1:0" // it comes from this machine
	r.RequestURI = l.text        // what Caddy logs of a request, and the real one has the key
	r.Body = http.NoBody
	return proxy.Ask(func(w http.ResponseWriter, r *http.Request) error {
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, way.server)
		if way.root != nil {
			caddyhttp.SetVar(r.Context(), "root", way.root)
		}
		return l.provider(provider, way.next).ServeHTTP(w, r)
	}, r, l.limit)
}

// direct is the client of lookups that don't go the way of attempts. It keeps
// no connections, since lookups are rare, and no cookies.
var direct = &http.Client{
	Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DisableKeepAlives:     true,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: 10 * time.Second,
	},
	// A redirection is an answer like any other, and settles nothing unless a
	// rule names it.
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// askDirectly asks without the handlers that follow. Its errors don't show the
// URL.
func (l *lookup) askDirectly(r *http.Request) (*keystore.Response, error) {
	res, err := direct.Do(r)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return nil, fmt.Errorf("ask %s: %w", r.URL.Host, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, l.limit+1))
	switch {
	case err != nil:
		return nil, errors.Join(proxy.ErrLookupCut, err)
	case int64(len(body)) > l.limit:
		return nil, proxy.ErrLookupLarge
	}
	return &keystore.Response{
		Status: res.StatusCode, Header: res.Header, Trailer: res.Trailer, Body: body, Size: int64(len(body)),
		Answered: keystore.TimeOf(time.Now()),
	}, nil
}
