package e2e

import (
	"net/http"
	"regexp"
	"testing"
)

// A refused connection proves that nothing happened. The client sees that, and
// the next request is the next attempt of the same job.
//
// OUT-11: each attempt says which one it is, and of which job, so that layers
// below, and the upstream itself, can tell a repetition from a new intent.
func TestOUT11AttemptsCarryTheirJobAndNumber(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newRefusingUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		quoted := post("refused").as(func(r *request) { r.key = `"refused"` })
		first := c.do(quoted)
		if first.status != http.StatusBadGateway || first.job() == "" {
			t.Errorf("want 502 and the job, got %d %v %s", first.status, first.header, first.body)
		}
		up.open()
		second := c.do(post("refused"))
		wantExecuted(t, second)
		up.want("refused", 1)
		if second.job() != first.job() {
			t.Errorf("the next attempt belongs to job %s, the first to %s", second.job(), first.job())
		}
		e := up.of("refused")[0]
		wantHeader(t, e, "Idempotency-Job", regexp.QuoteMeta(second.job()))
		wantHeader(t, e, "Idempotency-Attempt", `2;token="[0-9a-f]+"`)
		// The key in its first spelling, whatever this client's was.
		wantHeader(t, e, "Idempotency-Key", `"refused"`)
		wantReplay(t, second, c.do(quoted))
		up.want("refused", 1)

		// A job that has had no trouble.
		wantExecuted(t, c.do(post("plain")))
		e = up.of("plain")[0]
		wantHeader(t, e, "Idempotency-Attempt", `1;token="[0-9a-f]+"`)
		wantHeader(t, e, "Idempotency-Key", `plain`)
	})
}

// wantHeader checks that an upstream saw a header exactly once, with a value that
// matches.
func wantHeader(t *testing.T, e execution, name, pattern string) {
	t.Helper()
	values := e.header(name)
	if len(values) != 1 || !regexp.MustCompile("^(?:"+pattern+")$").MatchString(values[0]) {
		t.Errorf("the upstream saw %s: %q, want %s", name, values, pattern)
	}
}

// OUT-12: Go's transport takes the key as a licence to send a request without a
// body again when a kept connection dies before the answer. The upstream has
// executed by then, so one request would become two executions. It still gets to
// see the key.
func TestOUT12BodylessRequestIsNotResent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*request){
		"POST":                func(*request) {},
		"DELETE":              func(r *request) { r.method = http.MethodDelete },
		"with a second key":   func(r *request) { r.headers.Set("X-Idempotency-Key", "abc") },
		"key by another name": func(r *request) { r.headers.Set("X-Idempotency-Key", r.key); r.key = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t)
			s := to(up)
			if name == "key by another name" {
				s = s.with("key", "X-Idempotency-Key")
			}
			c := startGateway(t, s).client()
			warm := request{method: http.MethodGet, path: "/warm", host: "shop.example", headers: http.Header{"Up-Case": {"warm"}}}
			if a := c.do(warm); a.status != http.StatusOK {
				t.Fatalf("warm up the connection: %d %v", a.status, a.err)
			}
			r := post("bodyless").as(func(r *request) {
				r.body, r.contentType = "", ""
				change(r)
			})
			wantUnknown(t, c.do(r.tell("Up-Die", "noreply")))
			up.want("bodyless", 1)
			e := up.of("bodyless")[0]
			if e.nth < 2 {
				t.Fatalf("the request came on a fresh connection, where nothing would be sent again anyway")
			}
			field := "Idempotency-Key"
			if name == "key by another name" {
				field = "X-Idempotency-Key"
			}
			wantHeader(t, e, field, "bodyless")
			wantUnknown(t, c.do(r))
			up.want("bodyless", 1)
		})
	}
}

// The client's leaving changes nothing: the attempt goes on, its answer is kept,
// and a repetition gets it.
func TestClientThatLeavesDoesNotEndTheAttempt(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store))
		c := g.client()
		first := c.start(post("left").tell("Up-Hold", "gate"))
		up.reached("left", 1)
		first.leave()
		up.release("gate")
		a := c.do(post("left"))
		if a.status != http.StatusOK {
			t.Fatalf("want the answer of the execution, got %d %s", a.status, a.body)
		}
		wantMarked(t, a)
		up.want("left", 1)
	})
}

// An error of the handler below reaches the site's own error pages, and an
// attempt that certainly did nothing is not stored as an answer.
func TestREP19ErrorPageIsNotStored(t *testing.T) {
	t.Parallel()
	up := newRefusingUpstream(t)
	s := to(up)
	s.handler += "\nhandle_errors {\nrespond \"page {err.status_code}\"\n}"
	c := startGateway(t, s).client()
	if a := c.do(post("page")); a.status != http.StatusBadGateway || a.body != "page 502" {
		t.Errorf("want the site's own page, got %d %s", a.status, a.body)
	}
	up.open()
	wantExecuted(t, c.do(post("page")))
	up.want("page", 1)
}
