package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// OUT-01: a timeout is remembered. Who repeats the request is told that the
// outcome is unknown, also when the gateway has stopped listening, and whatever
// the upstream has to say by then.
func TestOUT01TimeoutIsRemembered(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store).with("timeout", "500ms").with("linger", "100ms"))
		c := g.client()
		first := c.do(post("slow").tell("Up-Hold", "gate"))
		wantUnknown(t, first)
		eventually(t, "the gateway no longer listens", func() bool {
			return g.counts("caddy_idempotency_attempts_total", "outcome")["unknown"] == 1
		})
		up.release("gate")
		for range 3 {
			a := c.do(post("slow"))
			wantUnknown(t, a)
			if a.job() != first.job() {
				t.Errorf("the repetition belongs to job %s, want %s", a.job(), first.job())
			}
		}
		up.want("slow", 1)
	})
}

// OUT-02: what a complete error of the upstream means goes by a table that says
// so, with a route's own entries before it. A 500, like a 4xx, is final and
// replayed; 502 and 503 are somebody's guess, and unknown; a 503 that says when to
// come back, and a 429, are proof that nothing has happened.
func TestOUT02CompleteErrorsGoByTheTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, status, header, outcome string
		meaning                       string
	}{
		{"500", "500", "", "", "final"},
		{"501", "501", "", "", "final"},
		{"422", "422", "", "", "final"},
		{"502", "502", "", "", "unknown"},
		{"503", "503", "", "", "unknown"},
		{"503 with Retry-After", "503", "Retry-After: 1", "", "failed"},
		{"429", "429", "", "", "failed"},
		{"503 released", "503", "", "503 failed", "failed"},
		{"502 kept", "502", "", "502 final", "final"},
		{"500 doubted", "500", "", "500 unknown", "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t)
			s := to(up)
			if c.outcome != "" {
				s = s.with("outcome", c.outcome)
			}
			client := startGateway(t, s).client()
			r := post("error").tell("Up-Status", c.status).tell("Up-Once", "yes")
			if c.header != "" {
				r = r.tell("Up-Header", c.header)
			}
			first, second := client.do(r), client.do(r)
			if c.meaning == "unknown" {
				wantUnknown(t, first)
				wantUnknown(t, second)
				up.want("error", 1)
				return
			}
			if fmt.Sprint(first.status) != c.status || first.code() != "" || first.replayed() {
				t.Errorf("want the upstream's own answer, got %d %s", first.status, first.body)
			}
			if c.meaning == "failed" {
				wantExecuted(t, second)
				up.want("error", 2)
				return
			}
			wantReplay(t, first, second)
			up.want("error", 1)
		})
	}
}

// OUT-16: whichever attempt of a request it is, and whichever upstream, it gets
// the same body, with its length.
func TestOUT16SecondAttemptHasTheWholeBody(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("0123456789abcdef", 200_000/16)
	whole := func(r *request) { r.body, r.contentType = body, "text/plain" }
	check := func(t *testing.T, e execution) {
		t.Helper()
		if e.body != body {
			t.Errorf("the upstream got a body of %d bytes, want the %d that were sent", len(e.body), len(body))
		}
		wantHeader(t, e, "Content-Length", fmt.Sprint(len(body)))
	}
	t.Run("on the next upstream", func(t *testing.T) {
		t.Parallel()
		dead, up := newRefusingUpstream(t), newUpstream(t)
		s := to(dead, up)
		s.handler += " {\nlb_policy first\nlb_retries 3\nfail_duration 30s\n}"
		wantExecuted(t, startGateway(t, s).client().do(post("body").as(whole)))
		up.want("body", 1)
		check(t, up.of("body")[0])
	})
	t.Run("as the next attempt", func(t *testing.T) {
		t.Parallel()
		up := newRefusingUpstream(t)
		c := startGateway(t, to(up)).client()
		first := c.do(post("body").as(whole))
		if first.status != http.StatusBadGateway {
			t.Errorf("want 502, got %d %s", first.status, first.body)
		}
		up.want("body", 0)
		up.open()
		second := c.do(post("body").as(whole))
		wantExecuted(t, second)
		if second.job() != first.job() {
			t.Errorf("the next attempt belongs to job %s, want %s", second.job(), first.job())
		}
		up.want("body", 1)
		check(t, up.of("body")[0])
	})
}

// hangUpIdle ends the upstream's side of its connections, as a server does with
// idle ones, and returns when the gateway has noticed.
func (u *upstream) hangUpIdle() {
	u.t.Helper()
	u.mu.Lock()
	for c := range u.conns {
		if half, ok := c.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	u.mu.Unlock()
	eventually(u.t, "the gateway has closed its idle connections", func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return len(u.conns) == 0
	})
}

// OUT-17: an upstream drops connections that the gateway keeps. Those that it has
// dropped are not used, and nobody gets an error for a request that nobody has
// processed. One that dies under a request leaves it unknown, is counted, and
// nothing is sent again.
func TestOUT17StaleConnections(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up))
	c := g.client()
	for i := range 20 {
		key := fmt.Sprintf("stale-%d", i)
		a := c.do(post(key))
		wantExecuted(t, a)
		up.want(key, 1)
		up.hangUpIdle()
	}
	wantExecuted(t, c.do(post("fresh")))
	wantUnknown(t, c.do(post("reset").tell("Up-Die", "noreply")))
	up.want("reset", 1)
	if e := up.of("reset")[0]; e.nth < 2 {
		t.Errorf("the request came on a fresh connection")
	}
	wantUnknown(t, c.do(post("reset")))
	up.want("reset", 1)
	if n := g.counts("caddy_idempotency_attempts_total", "outcome")["unknown"]; n != 1 {
		t.Errorf("%d attempts are counted as unknown, want 1", n)
	}
}

// OUT-19: a reverse_proxy that does not take its upstream's answer and sends again is
// not to be seen from above when the configuration is loaded. What it does is not
// prevented, which this test documents: but an operator learns of it, from the job,
// the log and a counter.
func TestOUT19ExecutionsBelowTheClaimAreReported(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	s := to(up)
	s.handler += " {\nrequest_buffers 64KiB\nlb_retries 2\nlb_retry_match {\nexpression `{rp.status_code} == 503`\n}\n}"
	g := startGateway(t, s)
	a := g.client().do(post("again").tell("Up-Status", "503").tell("Up-Once", "yes"))
	executions := len(up.of("again"))
	if executions < 2 {
		t.Fatalf("the upstream has executed %d times: the proxy below did not send again", executions)
	}
	wantExecuted(t, a)
	if e := g.show(a.job()).attempt(t, 1).Evidence; e.Connected != executions || !e.Resent {
		t.Errorf("want %d connections reported, got %+v", executions, e)
	}
	if n := g.incidents()["resent"]; n != 1 {
		t.Errorf("%d requests are counted as sent again, want 1", n)
	}
	if text := g.done("show", a.job()); !strings.Contains(text, fmt.Sprintf("it was sent again below the gateway (%d connections)", executions)) {
		t.Errorf("an operator is shown:\n%s", text)
	}
	// The claim itself still stands for one attempt.
	g.client().do(post("again"))
	up.want("again", executions)
}

// OUT-19: a reverse_proxy that has kept the body sends again what has died without an
// answer: every GET, by itself, and whatever it is told to. That is prevented.
func TestOUT19WhatDiedIsNotSentAgainBelowTheClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ method, options string }{
		"a GET with a body":      {http.MethodGet, "lb_try_duration 5s"},
		"a POST made a GET":      {http.MethodPost, "lb_try_duration 5s\nmethod GET"},
		"a POST that is matched": {http.MethodPost, "lb_retries 2\nlb_retry_match {\nmethod POST\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t)
			s := to(up).with("methods", "GET POST")
			s.handler += " {\nrequest_buffers 64KiB\n" + c.options + "\n}"
			client := startGateway(t, s).client()
			wantExecuted(t, client.do(post("warm")))
			r := post("dies").tell("Up-Die", "noreply").as(func(r *request) { r.method = c.method })
			for range 2 {
				wantUnknown(t, client.do(r))
			}
			up.want("dies", 1)
		})
	}
}

// OUT-20: a 400 is replayed as long as the input is the same. Corrected input
// under the old key is another request, and is told to take a new key. A route can
// say that a 400 has no effect; then the same input may be tried again.
func TestOUT20CorrectedInputNeedsANewKey(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		r := post("wrong").tell("Up-Status", "400").tell("Up-Once", "yes")
		first := c.do(r)
		if first.status != http.StatusBadRequest || first.code() != "" {
			t.Fatalf("want the upstream's own 400, got %d %s", first.status, first.body)
		}
		wantReplay(t, first, c.do(r))
		corrected := r.as(func(r *request) { r.body = `{"amount":2}` })
		a := c.do(corrected)
		wantRefusal(t, a, http.StatusConflict, "key-reused")
		if p := a.problem(); p.Advice != "new-key" {
			t.Errorf("want the advice to take a new key, got %+v", p)
		}
		up.want("wrong", 1)
		wantExecuted(t, c.do(corrected.as(func(r *request) { r.key = "corrected" })))
		up.want("wrong", 2)
	})
	t.Run("released", func(t *testing.T) {
		t.Parallel()
		up := newUpstream(t)
		c := startGateway(t, to(up).with("outcome", "400 failed")).client()
		r := post("released").tell("Up-Status", "400").tell("Up-Once", "yes")
		if a := c.do(r); a.status != http.StatusBadRequest || a.code() != "" {
			t.Errorf("want the upstream's own 400, got %d %s", a.status, a.body)
		}
		wantExecuted(t, c.do(r))
		up.want("released", 2)
	})
}
