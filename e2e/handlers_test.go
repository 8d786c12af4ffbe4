package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// files makes a directory with one file in it for a file server.
func files(t *testing.T, content string) (dir string, change func(content string)) {
	t.Helper()
	dir = t.TempDir()
	change = func(content string) {
		if err := os.WriteFile(filepath.Join(dir, "page.txt"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change(content)
	return dir, change
}

func getPage(key string) request {
	return post(key).as(func(r *request) { r.method, r.path, r.body, r.contentType = http.MethodGet, "/page.txt", "", "" })
}

// A file server takes no writes: that it has said so is the answer. What it gives
// to a protected GET stays what it was, whatever becomes of the file.
func TestFileServerAnswersOnce(t *testing.T) {
	t.Parallel()
	dir, change := files(t, "first")
	c := startGateway(t, site{handler: "root * " + dir + "\nfile_server"}.with("methods", "GET HEAD PUT POST")).client()
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		r := getPage("write-" + method).as(func(r *request) { r.method = method })
		refused := c.do(r)
		if refused.status != http.StatusMethodNotAllowed || refused.header.Get("Allow") == "" {
			t.Errorf("%s: want 405 and what is allowed, got %d %v", method, refused.status, refused.header)
		}
		again := c.do(r)
		if again.status != http.StatusMethodNotAllowed || again.job() != refused.job() || again.header.Get("Allow") != refused.header.Get("Allow") {
			t.Errorf("%s: want 405 of job %s again, got %d %v", method, refused.job(), again.status, again.header)
		}
	}
	first := c.do(getPage("read"))
	wantExecuted(t, first)
	head := c.do(getPage("head").as(func(r *request) { r.method = http.MethodHead }))
	change("a second text")
	wantReplay(t, first, c.do(getPage("read")))
	if a := c.do(getPage("head").as(func(r *request) { r.method = http.MethodHead })); a.header.Get("Content-Length") != "5" || a.header.Get("Etag") != head.header.Get("Etag") {
		t.Errorf("want the first answer's header, got %v", a.header)
	}
	if a := c.do(getPage("later")); a.body != "a second text" {
		t.Errorf("under another key: got %q", a.body)
	}
}

// What respond makes up is made up once.
func TestRespondAnswersOnce(t *testing.T) {
	t.Parallel()
	c := startGateway(t, site{handler: `respond "executed as {http.request.uuid}"`}).client()
	first := c.do(post("respond"))
	wantExecuted(t, first)
	if first.header.Get("Server") != "Caddy" || !strings.HasPrefix(first.header.Get("Content-Type"), "text/plain") {
		t.Errorf("want the header that Caddy gives without the gateway, got %v", first.header)
	}
	again := c.do(post("respond"))
	wantReplay(t, first, again)
	for _, name := range []string{"Server", "Content-Type"} {
		if again.header.Get(name) != first.header.Get(name) {
			t.Errorf("%s: %q, on a replay %q", name, first.header.Get(name), again.header.Get(name))
		}
	}
	if other := c.do(post("respond-2")); other.body == first.body {
		t.Errorf("another key got the same answer: %s", other.body)
	}
}

// Two gateways in a row need not share a store.
func TestTwoGatewaysInARowWithStoresOfTheirOwnExecuteOnce(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	inner := startGateway(t, to(up).on(redis.store()))
	c := startGateway(t, site{handler: "reverse_proxy " + inner.addr(0)}).client()
	wantOneAnswer(t, volley(10, post("row"), c))
	up.want("row", 1)
	// Who asks the inner one directly asks for another job, as its owner has it.
	wantMarked(t, inner.client().do(post("row")))
	up.want("row", 1)
}

// Of two upstreams one gets the request, once.
func TestLoadBalancingExecutesOnce(t *testing.T) {
	t.Parallel()
	one, two := newUpstream(t), newUpstream(t)
	s := site{handler: "reverse_proxy " + one.addr + " " + two.addr + " {\nlb_policy round_robin\n}"}
	c := startGateway(t, s).client()
	for _, key := range []string{"a", "b", "c", "d"} {
		first := c.do(post(key))
		wantExecuted(t, first)
		wantReplay(t, first, c.do(post(key)))
		if n := len(one.of(key)) + len(two.of(key)); n != 1 {
			t.Errorf("%s: executed %d times, want once", key, n)
		}
	}
	if len(one.executions) != 2 || len(two.executions) != 2 {
		t.Errorf("want two requests at each upstream, got %d and %d", len(one.executions), len(two.executions))
	}
}

// Rewrites before and after the gateway: the upstream gets what they make of the
// request, and the same request is the same job. Which it is, is judged by what
// the client sent.
func TestRewritesExecuteOnce(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	s := to(up)
	s.handler = "uri strip_prefix /v1\nroute /pay {\nuri replace /pay /charge\nrewrite * /inner{uri}&more=1\n" + s.handler + "\n}"
	c := startGateway(t, s).client()
	r := post("moved").as(func(r *request) { r.path = "/v1/pay?a=%2F" })
	first := c.do(r)
	wantExecuted(t, first)
	wantReplay(t, first, c.do(r))
	up.want("moved", 1)
	if line := up.of("moved")[0].line; line != "POST /inner/charge?a=%2F&more=1 HTTP/1.1" {
		t.Errorf("the upstream got %q", line)
	}
	other := c.do(r.as(func(r *request) { r.path = "/pay?a=%2F" }))
	wantRefusal(t, other, http.StatusConflict, "key-reused")
}

// What handlers behind the gateway make of an upstream's answer is the answer.
func TestChangedAnswersAreReplayedAsChanged(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]string{
		"handle_response": "reverse_proxy UP {\n@created status 201\nhandle_response @created {\nheader X-Changed yes\ncopy_response_headers {\nexclude Content-Length\n}\nrespond \"made {http.request.uuid}\" 202\n}\n}",
		"copy_response":   "reverse_proxy UP {\n@created status 201\nhandle_response @created {\nheader X-Changed yes\ncopy_response_headers\ncopy_response 202\n}\n}",
		"replace_status":  "header X-Changed yes\nreverse_proxy UP {\n@created status 201\nreplace_status @created 202\n}",
		"intercept":       "intercept {\n@created status 201\nhandle_response @created {\nheader X-Changed yes\nheader -Content-Length\nrespond \"made {http.request.uuid}\" 202\n}\n}\nreverse_proxy UP",
		"header":          "header X-Changed yes\nheader ?X-Default d\nheader -X-Secret\nintercept {\n@created status 201\nreplace_status @created 202\n}\nreverse_proxy UP",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t)
			c := startGateway(t, site{handler: "route /pay {\n" + strings.ReplaceAll(handler, "UP", up.addr) + "\n}"}).client()
			r := post("changed").tell("Up-Status", "201").tell("Up-Header", "X-Secret: s")
			first := c.do(r)
			again := c.do(r)
			if first.status != http.StatusAccepted || first.replayed() || first.header.Get("X-Changed") != "yes" || first.body == "" {
				t.Errorf("want the changed answer, got %d %v %s, %v", first.status, first.header, first.body, first.err)
			}
			wantReplay(t, first, again)
			if again.header.Get("X-Changed") != "yes" || again.header.Get("X-Secret") != first.header.Get("X-Secret") {
				t.Errorf("the replay's header is %v, the first answer's %v", again.header, first.header)
			}
			up.want("changed", 1)
		})
	}
}

// A template is filled in once.
func TestTemplatesAreFilledInOnce(t *testing.T) {
	t.Parallel()
	dir, _ := files(t, `{{now | unixEpoch}} {{placeholder "http.request.uuid"}} {{.Req.Method}}`)
	s := site{handler: "root * " + dir + "\ntemplates {\nmime text/plain\n}\nfile_server"}.with("methods", "GET")
	c := startGateway(t, s).client()
	first := c.do(getPage("template"))
	wantExecuted(t, first)
	if !strings.HasSuffix(first.body, " GET") {
		t.Errorf("want a template that is filled in, got %q", first.body)
	}
	wantReplay(t, first, c.do(getPage("template")))
	if other := c.do(getPage("template-2")); other.body == first.body {
		t.Errorf("another key got the same answer: %s", other.body)
	}
}

// A site's error pages are made for each request anew. They are no answer of a
// job: what failed for certain can be tried again, the rest stays unknown.
func TestErrorPagesAreNotReplayed(t *testing.T) {
	t.Parallel()
	up := newRefusingUpstream(t)
	s := to(up)
	s.handler += "\nhandle_errors {\nrespond \"page {err.status_code} {http.idempotency.code} {http.request.uuid}\" {err.status_code}\n}"
	c := startGateway(t, s).client()
	down := c.do(post("page"))
	if down.status != http.StatusBadGateway || !strings.HasPrefix(down.body, "page 502 ") || down.replayed() || down.job() == "" {
		t.Errorf("want the site's page, got %d %v %s", down.status, down.header, down.body)
	}
	up.open()
	first := c.do(post("page"))
	wantExecuted(t, first)
	wantReplay(t, first, c.do(post("page")))
	up.want("page", 1)

	hung := c.do(post("hung").tell("Up-Die", "noreply"))
	again := c.do(post("hung"))
	for _, a := range []answer{hung, again} {
		if a.status != http.StatusGatewayTimeout || !strings.HasPrefix(a.body, "page 504 outcome-unknown ") {
			t.Errorf("want the site's page, got %d %s", a.status, a.body)
		}
	}
	if hung.body == again.body {
		t.Error("the page was replayed")
	}
	up.want("hung", 1)
}
