package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// API-03: an API's own 409 or 422 is the API's, and nobody takes it for the
// gateway's: that names itself.
func TestAPI03StatusesOfTheAPIAreItsOwn(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up).with("statuses", "ietf")).client()
	for key, status := range map[string]string{"409": "409", "422": "422"} {
		own := post(key).tell("Up-Status", status)
		first, again := c.do(own), c.do(own)
		for _, a := range []answer{first, again} {
			if a.code() != "" || a.header.Get("Content-Type") == "application/problem+json" || a.body != first.body {
				t.Errorf("the API's answer came as %d %v %s", a.status, a.header, a.body)
			}
		}
		wantMarked(t, again)
		refused := c.do(own.as(func(r *request) { r.body = "other" }))
		wantRefusal(t, refused, http.StatusUnprocessableEntity, "key-reused")
		if refused.problem().Type != "urn:idempotency:key-reused" {
			t.Errorf("the gateway's answer is a %s", refused.problem().Type)
		}
		up.want(key, 1)
	}
}

// API-07: a key is never made up. Two requests without one are two requests, or
// none where a key is required, and the upstream sees no key.
func TestAPI07KeysAreNotMadeUp(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "", to(up).with("space", "a"), to(up).with("space", "b").with("key", "required"))
	for n := range 2 {
		keyless := post("keyless").as(func(r *request) { r.key = "" })
		if a := g.clientOf(0).do(keyless); a.status != http.StatusOK || a.job() != "" || a.replayed() {
			t.Errorf("without a key: %d %v", a.status, a.header)
		}
		keyless.headers.Set("Up-Case", "required")
		wantRefusal(t, g.clientOf(1).do(keyless), http.StatusBadRequest, "key-missing")
		up.want("keyless", n+1)
	}
	up.want("required", 0)
	for _, e := range up.of("keyless") {
		for _, line := range e.lines {
			if strings.HasPrefix(strings.ToLower(line), "idempoten") {
				t.Errorf("the upstream sees %s", line)
			}
		}
	}
}

// API-10: an answer tells whether its key was honoured: only then it names a job.
// Which requests are protected is in the log at start-up, and no secret with it.
func TestAPI10WhatIsProtectedCanBeSeen(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	host, ok := strings.CutPrefix(redis.store(), "redis redis://")
	if !ok {
		t.Fatalf("the store is %q", redis.store())
	}
	protected := to(up).with("space", "payments").with("key", "X-Request-Key required").with("methods", "POST PATCH")
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	partly := site{raw: "idempotency /pay {\nstore redis redis://" + host + " {\npassword {file." + secret + "}\n}\nowner shared\n}\nreverse_proxy " + up.addr + "\n"}
	g := startGatewayWith(t, "", protected, partly)
	c := g.clientOf(1)
	a := c.do(post("honoured").as(func(r *request) { r.path = "/v1/pay" }))
	if a.status != http.StatusOK || a.job() != "" {
		t.Errorf("a route that is not protected answered with %d %v", a.status, a.header)
	}
	var lines []string
	for line := range strings.Lines(g.log()) {
		var entry struct {
			Msg, Methods, Space, Store string
			KeyHeader                  string `json:"key_header"`
			WithoutKey                 string `json:"without_key"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "requests are protected" {
			lines = append(lines, strings.Join([]string{entry.Methods, entry.KeyHeader, entry.WithoutKey, entry.Space, entry.Store}, "; "))
		}
	}
	want := []string{
		"POST, PATCH; X-Request-Key; are refused; payments; bolt",
		"all but GET, HEAD, OPTIONS, TRACE and CONNECT; Idempotency-Key; pass unprotected; main; redis",
	}
	for _, w := range want {
		found := 0
		for _, line := range lines {
			if line == w {
				found++
			}
		}
		if found != 1 || len(lines) != len(want) {
			t.Errorf("the log does not say once %q, but %q", w, lines)
		}
	}
	if strings.Contains(g.log(), "hunter2") {
		t.Error("the log tells the store's password")
	}
	honoured := post("").as(func(r *request) {
		r.headers.Set("X-Request-Key", "k")
		r.headers.Set("Up-Case", "named")
	})
	wantExecuted(t, g.clientOf(0).do(honoured))
	up.want("named", 1)
}

// SEC-01, SEC-06: a key belongs to its owner. Nobody gets another's answer, however
// names are chosen to look alike when they are put together.
func TestSEC01AndSEC06OwnersNeverMeet(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up)).client()
	callers := []struct{ owner, key string }{
		{"alice", "t"}, {"bob", "t"}, {"a:b", "c"}, {"a", "b:c"}, {"a:b:c", "c"}, {"a/b", "c"}, {"a", "b/c"}, {"1:a", "b"}, {"1", "a1:b"}, {"shared", "t"},
	}
	jobs := make(map[string]bool)
	for i, caller := range callers {
		r := post("owners").as(func(r *request) { r.owner, r.key = caller.owner, caller.key })
		first := c.do(r)
		wantExecuted(t, first)
		up.want("owners", i+1)
		wantReplay(t, first, c.do(r))
		jobs[first.job()] = true
	}
	up.want("owners", len(callers))
	if len(jobs) != len(callers) {
		t.Errorf("%d callers have %d jobs", len(callers), len(jobs))
	}
}
