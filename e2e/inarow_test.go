package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// inARow starts two gateways, the second one behind the first, on one store.
func inARow(t *testing.T, up *upstream, store, innerSpace string) *client {
	t.Helper()
	inner := startGateway(t, to(up).on(store).with("space", innerSpace))
	outer := site{store: store, handler: "reverse_proxy 127.0.0.1:" + inner.ports[0]}
	return startGateway(t, outer.with("space", "outer")).client()
}

// Two gateways in a row on one space would each wait for the other. The inner one
// refuses at once, and says what to do.
func TestLoopOfTwoGatewaysOnOneSpaceIsRefused(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	c := inARow(t, up, redis.store(), "outer")
	for _, key := range []string{"loop", "loop", "loop-2"} {
		a := c.do(post(key))
		wantRefusal(t, a, http.StatusLoopDetected, "loop")
		if p := a.problem(); p.Advice != "fix-request" || p.Job != a.job() || !strings.Contains(a.body, "a space of its own") {
			t.Errorf("want the remedy and one job, got header %q and %s", a.job(), a.body)
		}
		up.want(key, 0)
	}
}

// With a space of its own for each, two gateways in a row execute a request once.
func TestTwoGatewaysInARowExecuteOnce(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	c := inARow(t, up, redis.store(), "inner")
	answers := volley(10, post("row"), c)
	up.want("row", 1)
	first := c.do(post("row"))
	wantMarked(t, first)
	for _, a := range answers {
		if a.status != http.StatusOK || a.body != first.body || a.job() != first.job() {
			t.Errorf("want %s, got %d %s %v", first.body, a.status, a.body, a.err)
		}
	}
	wantRefusal(t, c.do(post("row").as(func(r *request) { r.body = "other" })), http.StatusConflict, "key-reused")
	// The inner gateway's own client knows nothing of the outer one's job.
	if e := up.of("row")[0]; len(e.header("Idempotency-Job")) != 1 || e.header("Idempotency-Job")[0] == first.job() {
		t.Errorf("the upstream was told of job %v, want the inner gateway's", e.header("Idempotency-Job"))
	}
}

// A site may render refusals as it likes, with 200 as well, like APIs that have nothing
// else. To the gateway before it they are refusals all the same, and nothing to keep.
func TestRefusalOfTheInnerGatewayIsNoAnswerWhateverItsStatus(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	inner := to(up).on(redis.store()).with("space", "outer")
	inner.handler += "\nhandle_errors {\nrespond \"sorry\" 200\n}"
	outer := site{store: redis.store(), handler: "reverse_proxy 127.0.0.1:" + startGateway(t, inner).ports[0]}
	c := startGateway(t, outer.with("space", "outer")).client()
	for range 2 {
		a := c.do(post("page"))
		if a.status != http.StatusOK || a.body != "sorry" || a.replayed() || a.header.Get("Idempotency-Refused") != "loop" {
			t.Errorf("want the inner gateway's refusal as it came, got %d %q %v %v", a.status, a.body, a.header, a.err)
		}
	}
	up.want("page", 0)
}

// SEC-09: what a client sends in the gateway's own headers has no effect, and
// does not reach an API that may trust them, whether the request is protected or
// not. Headers of the same name in the upstream's answer don't reach the client.
func TestSEC09ForgedMarkersHaveNoEffect(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up)).client()
	names := []string{
		"Idempotency-Job", "Idempotency-Attempt", "Idempotency-Expires", "Idempotent-Replayed",
		"Idempotency-Answered-At", "Idempotency-Recorded", "Idempotency-Refused",
	}
	forge := func(r *request) {
		for _, name := range names {
			r.headers.Set(name, "forged")
		}
		r.headers.Set("Idempotency-Attempt", `1;token="00112233445566ff"`)
		r.headers.Add("Up-Header", "Idempotent-Replayed: true")
		r.headers.Add("Up-Header", "Idempotency-Job: forged")
	}
	first := c.do(post("mark").as(forge))
	wantExecuted(t, first)
	wantReplay(t, first, c.do(post("mark").as(forge)))
	up.want("mark", 1)
	bypass := post("bypassed").as(forge)
	bypass.key = ""
	c.do(bypass)
	bypass.method, bypass.key = http.MethodGet, "bypassed"
	c.do(bypass)
	up.want("bypassed", 2)
	for _, e := range append(up.of("mark"), up.of("bypassed")...) {
		for _, name := range names {
			if got := strings.Join(e.header(name), ","); strings.Contains(got, "forged") || strings.Contains(got, "00112233445566ff") {
				t.Errorf("%s: the upstream sees %s: %s", e.line, name, got)
			}
		}
	}
}
