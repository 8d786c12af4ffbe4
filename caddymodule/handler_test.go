package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

func protect(u *upstream, options string) string {
	return fmt.Sprintf("idempotency {\n%s\n}\nreverse_proxy %s", options, u.Listener.Addr())
}

func TestExecutesOnceAndReplays(t *testing.T) {
	for name, store := range map[string]string{"bolt": "store bolt", "default": "", "redis": "store redis redis://" + fakeRedis(t).Addr()} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			load(t, site(t, protect(u, "owner shared\n"+store)))
			first, replay := post(t, "/pay", "k1"), post(t, "/pay", `"k1"`)
			if first.status != 200 || first.body != "k1 /pay execution 1" || first.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("first: %+v", first)
			}
			if replay.status != 200 || replay.body != first.body || replay.header.Get("Idempotent-Replayed") != "true" ||
				replay.header.Get("Idempotency-Job") != first.header.Get("Idempotency-Job") {
				t.Errorf("replay: %+v", replay)
			}
			if other := post(t, "/refund", "k1"); other.status != 409 || other.code() != "key-reused" {
				t.Errorf("other path: %+v", other)
			}
			if bypass := post(t, "/pay", ""); bypass.status != 200 || bypass.header.Get("Idempotency-Job") != "" {
				t.Errorf("without a key: %+v", bypass)
			}
			if n := u.executions("k1"); n != 1 {
				t.Errorf("%d executions", n)
			}
		})
	}
}

// What is left of an owner whose placeholder is empty would be one owner for
// everybody.
func TestSEC04EmptyOwnerIsRefused(t *testing.T) {
	for _, owner := range []string{
		"{http.request.header.X-User}", "{http.vars.nosuch}", "{http.auth.user.id}", "{no.such.placeholder}",
		"tenant-{http.request.header.X-User}", "{http.request.host}/{http.vars.nosuch}",
	} {
		t.Run(owner, func(t *testing.T) {
			u := newUpstream(t)
			load(t, site(t, protect(u, "owner "+owner)))
			for range 2 {
				if a := post(t, "/pay", "an"); a.status != 400 || a.code() != "owner-missing" {
					t.Errorf("got %+v", a)
				}
			}
			if a := post(t, "/pay", "an", "X-User", "  "); a.status != 400 {
				t.Errorf("a blank owner: %+v", a)
			}
			if n := u.executions("an"); n != 0 {
				t.Errorf("%d executions", n)
			}
		})
	}
}

func TestOwnersDoNotMeet(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, `
	@known header X-User *
	handle @known {
		`+protect(u, "owner {http.request.header.X-User}")+`
	}
	handle {
		`+protect(u, "owner shared")+`
	}`))
	jobs := make(map[string]bool)
	for _, header := range [][]string{{"X-User", "alice"}, {"X-User", "bob"}, {"X-User", "shared"}, nil} {
		jobs[post(t, "/pay", "k", header...).header.Get("Idempotency-Job")] = true
		if a := post(t, "/pay", "k", header...); a.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%v: %+v", header, a)
		}
	}
	if len(jobs) != 4 || u.executions("k") != 4 {
		t.Errorf("4 callers have %d jobs and %d executions", len(jobs), u.executions("k"))
	}
}

// A handler that returns an error instead of writing an answer proves something
// only by that error, which still gets the site's error page.
func TestREP19AnErrorIsNotAnEmptyAnswer(t *testing.T) {
	u := newUpstream(t)
	closed := "127.0.0.1:" + testport.Take(t)
	load(t, site(t, `
	idempotency {
		owner shared
	}
	handle /gone/* {
		reverse_proxy `+closed+`
	}
	handle /refused/* {
		error "no such thing" 404
	}
	handle {
		reverse_proxy `+u.Listener.Addr().String()+`
	}
	handle_errors {
		respond "page {err.status_code} {http.idempotency.code}" {err.status_code}
	}`))

	if a := post(t, "/gone/x", "never-sent"); a.status != 502 || a.body != "page 502 " || a.header.Get("Idempotency-Job") == "" {
		t.Errorf("refused connection: %+v", a)
	}
	l, err := net.Listen("tcp", closed)
	if err != nil {
		t.Fatal(err)
	}
	late := &http.Server{Handler: u}
	go func() { _ = late.Serve(l) }()
	t.Cleanup(func() { late.Close() })
	if a := post(t, "/gone/x", "never-sent"); a.status != 200 || a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("second try: %+v", a)
	}

	for range 2 {
		if a := post(t, "/die", "sent"); a.status != 504 || a.body != "page 504 outcome-unknown" {
			t.Errorf("connection that died after sending: %+v", a)
		}
		if a := post(t, "/refused/x", "refused"); a.status != 404 || a.body != "page 404 " {
			t.Errorf("error of a handler: %+v", a)
		}
	}
	if n := u.executions("sent"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// Error routes that don't match leave an error of Caddy's without a body.
func TestRefusalsAreProblemDetailsUnlessAnErrorRouteMatches(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, `
	uri strip_prefix /v1
	`+protect(u, "owner shared")+`
	handle_errors 5xx {
		respond "server error"
	}
	@v1 path /v1/*
	handle_errors {
		respond @v1 "{err.status_code} {http.idempotency.code} {http.idempotency.advice} {http.idempotency.state} {http.idempotency.attempts}"
	}`))
	for _, path := range []string{"/pay", "/v1/pay"} {
		post(t, path, "k"+path)
	}
	if a := post(t, "/other", "k/pay"); a.status != 409 || a.code() != "key-reused" || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("no error route matches: %+v", a)
	}
	if a := post(t, "/v1/other", "k/v1/pay"); a.body != "409 key-reused new-key completed 1" || a.header.Get("Idempotency-Job") == "" {
		t.Errorf("an error route matches: %+v", a)
	}
}

// An error route that passes requests on would have what was refused carried out,
// unclaimed: it is not asked.
func TestErrorRoutesPassNothingOn(t *testing.T) {
	u, backup := newUpstream(t), newUpstream(t)
	closed := "127.0.0.1:" + testport.Take(t)
	load(t, site(t, `
	idempotency {
		owner shared
		methods DELETE
	}
	handle /gone/* {
		reverse_proxy `+closed+`
	}
	handle {
		reverse_proxy `+u.Listener.Addr().String()+`
	}
	handle_errors {
		handle {
			rewrite * /errors{uri}
			reverse_proxy `+backup.Listener.Addr().String()+`
		}
	}`))
	ask := func(path, key string) answer {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", key)
		return once(t, req)
	}
	for range 2 {
		if a := ask("/die", "k"); a.status != 504 || a.code() != "outcome-unknown" {
			t.Errorf("unknown: %+v", a)
		}
		if a := ask("/gone/x", "gone"); a.status != 502 || a.body != "" || a.header.Get("Idempotency-Job") == "" {
			t.Errorf("refused connection: %+v", a)
		}
	}
	if a := ask("/other", "k"); a.status != 409 || a.code() != "key-reused" {
		t.Errorf("reused: %+v", a)
	}
	for _, key := range []string{"k", "gone"} {
		if n := backup.executions(key); n != 0 {
			t.Errorf("%s: %d executions by the error routes", key, n)
		}
	}
	if n := u.executions("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

func TestCAD06ClientThatLeavesMissesNothing(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, protect(u, "owner shared")))
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() {
		_, err := send(ctx, "/hold", "cg")
		left <- err
	}()
	<-u.entered
	cancel()
	if err := <-left; err == nil {
		t.Fatal("the client got an answer")
	}
	waiter := make(chan answer)
	go func() { waiter <- post(t, "/hold", "cg") }()
	close(u.release)
	if a := <-waiter; a.status != 200 || a.body != "cg /hold execution 1" {
		t.Errorf("repetition meanwhile: %+v", a)
	}
	if a := post(t, "/hold", "cg"); a.body != "cg /hold execution 1" || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("repetition: %+v", a)
	}
	if n := u.executions("cg"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

func TestCAD08AbortingHandlerDoesNotEndTheProcess(t *testing.T) {
	load(t, site(t, "idempotency {\nowner shared\n}\nabort"))
	for range 2 {
		if a := post(t, "/x", "ab"); a.status != 504 || a.code() != "outcome-unknown" {
			t.Errorf("got %+v", a)
		}
	}
}

func TestCL14GarbageInTheStoreDispatchesNothing(t *testing.T) {
	u, redis := newUpstream(t), fakeRedis(t)
	load(t, site(t, protect(u, "owner shared\ncache off\nstore redis redis://"+redis.Addr())))
	for _, key := range []string{"g1", "g2"} {
		post(t, "/pay", key)
	}
	names := redis.Keys()
	if len(names) != 2 {
		t.Fatalf("records: %v", names)
	}
	for i, name := range names {
		redis.Del(name)
		if i == 0 {
			_ = redis.Set(name, "garbage")
		} else if _, err := redis.Push(name, "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"g1", "g2"} {
		if a := post(t, "/pay", key); a.status != 503 || a.code() != "store-unavailable" || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %+v", key, a)
		}
		if n := u.executions(key); n != 1 {
			t.Errorf("%s: %d executions", key, n)
		}
	}
}

func TestBodiesThatCanNotBeRead(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, "request_body /small {\nmax_size 4\n}\n"+protect(u, "owner shared\nmax_request_body 100")))
	if a := post(t, "/small", "declared"); a.status != 413 {
		t.Errorf("declared length over request_body's limit: %+v", a)
	}
	raw := func(key, path, head, body string) string {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nIdempotency-Key: %s\r\n%s\r\n\r\n%s", path, key, head, body)
		_ = conn.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer)
	}
	if got := raw("chunked", "/small", "Transfer-Encoding: chunked", "9\r\namount=10\r\n0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 413 ") {
		t.Errorf("chunked body over request_body's limit: %s", got)
	}
	if got := raw("large", "/pay", "Content-Length: 101", ""); !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.Contains(got, "request-too-large") {
		t.Errorf("body over our limit: %s", got)
	}
	// The client closes its side in the middle, so it may get an answer or none.
	if got := raw("unfinished", "/pay", "Content-Length: 50", "amount"); got != "" && !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("unfinished body: %s", got)
	}
	for _, key := range []string{"declared", "chunked", "large", "unfinished"} {
		if n := u.executions(key); n != 0 {
			t.Errorf("%s: %d executions", key, n)
		}
	}
}

func init() { caddy.RegisterModule(outerHandler{}) }

// outerHandler is a handler before ours that looks at placeholders afterwards,
// as a log does.
type outerHandler struct{}

var seenOutside = make(chan string, 1)

func (outerHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.idempotency_test_outer", New: func() caddy.Module { return new(outerHandler) }}
}

func (outerHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	repl.Set("test.set", "from-set")
	caddyhttp.SetVar(r.Context(), "known", "from-vars")
	err := next.ServeHTTP(w, r)
	upstream, _ := repl.GetString("http.reverse_proxy.upstream.hostport")
	known, _ := repl.GetString("http.vars.known")
	seenOutside <- upstream + " " + known
	return err
}

// An attempt sees what the handlers before it have prepared, and the request as
// it was asked; what it does to its own context stays there.
func TestAttemptInheritsTheRequestsContext(t *testing.T) {
	u := newUpstream(t)
	config := site(t, `
	map {path} {tier} {
		/gold    gold
		default  plain
	}
	uri strip_prefix /v1
	route {
		idempotency {
			owner {http.vars.known}
		}
		vars known changed
		reverse_proxy `+u.Listener.Addr().String()+` {
			header_up X-Seen-Set {test.set}
			header_up X-Seen-Tier {tier}
			header_up X-Seen-Original {http.request.orig_uri.path}
			header_up X-Seen-Path {http.request.uri.path}
			header_up X-Seen-Var {http.vars.known}
		}
	}`)
	adapted, err := adapt(config)
	if err != nil {
		t.Fatal(err)
	}
	outer := strings.Replace(string(adapted), `"routes":[{`, `"routes":[{"handle":[{"handler":"idempotency_test_outer"}]},{`, 1)
	t.Cleanup(func() { stop(t) })
	if err := caddy.Load([]byte(outer), true); err != nil {
		t.Fatal(err)
	}
	a := post(t, "/v1/gold", "k")
	for name, want := range map[string]string{
		"X-Seen-Set": "from-set", "X-Seen-Tier": "gold", "X-Seen-Original": "/v1/gold", "X-Seen-Path": "/gold", "X-Seen-Var": "changed",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got, want := <-seenOutside, u.Listener.Addr().String()+" from-vars"; got != want {
		t.Errorf("the handler before sees %q, want %q", got, want)
	}
}
