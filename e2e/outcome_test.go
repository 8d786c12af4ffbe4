package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// A caller whose upstream takes too long is told that the outcome is unknown, and
// so is everybody who repeats the request; nothing is executed again. When the
// answer comes after all, it takes the result slot.
func TestTimeoutIsUnknownUntilTheLateAnswerComes(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("timeout", "500ms")).client()
		first := c.start(post("late").tell("Up-Hold", "gate"))
		up.reached("late", 1)
		wantUnknown(t, first.answer())
		for range 3 {
			wantUnknown(t, c.do(post("late")))
		}
		up.want("late", 1)

		up.release("gate")
		a := untilStatus(t, c, post("late"), http.StatusOK)
		wantMarked(t, a)
		if a.job() != first.answer().job() {
			t.Errorf("the late answer belongs to job %s, the request to %s", a.job(), first.answer().job())
		}
		if !strings.Contains(a.body, `"execution":1`) {
			t.Errorf("want the body of the one execution, got %s", a.body)
		}
		up.want("late", 1)
	})
}

// OUT-04: once the request may have left, the only ends are done and unknown. An
// upstream that hangs up without an answer does not free the key.
func TestOUT04HangUpWithoutAnAnswerDoesNotFreeTheKey(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		for key, die := range map[string]string{"hung-up": "noreply", "cut": "truncate"} {
			wantUnknown(t, c.do(post(key).tell("Up-Die", die)))
			wantUnknown(t, c.do(post(key)))
			up.want(key, 1)
		}
	})
}

// OUT-05: unknown is never told as failed. It has a type of its own, names the
// job, advises against another key, and shows nothing of what stands behind.
func TestOUT05UnknownIsNotToldAsFailed(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up).with("timeout", "300ms")).client()
	first := c.do(post("settlement").tell("Up-Hold", "gate"))
	again := c.do(post("settlement"))
	_, port, _ := strings.Cut(up.addr, ":")
	for _, a := range []answer{first, again} {
		wantUnknown(t, a)
		if !strings.Contains(a.body, "another key") {
			t.Errorf("the answer does not advise against another key: %s", a.body)
		}
		for name, values := range a.header {
			if strings.Contains(strings.Join(values, "\n"), port) {
				t.Errorf("%s: %q names the upstream", name, values)
			}
		}
		if strings.Contains(a.body, port) {
			t.Errorf("the answer names the upstream: %s", a.body)
		}
		if a.header.Get("Retry-After") != "" {
			t.Errorf("Retry-After: %s, but nothing will resolve it by itself", a.header.Get("Retry-After"))
		}
	}
	up.want("settlement", 1)
}

// OUT-06: a failure that is replayed is marked like every replay: to a retry
// loop it must not look like a fresh try.
func TestOUT06ReplayedFailureIsMarked(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		failing := post("failing").tell("Up-Status", "500")
		first := c.do(failing)
		if first.status != http.StatusInternalServerError || first.replayed() || first.code() != "" || first.header.Get("Idempotency-Answered-At") != "" {
			t.Errorf("want the upstream's own 500, got %d %v %s", first.status, first.header, first.body)
		}
		wantReplay(t, first, c.do(failing))
		up.want("failing", 1)
	})
}

// OUT-10: a complete 502 or 504 of the upstream is its answer, and no error of
// the network that would be a reason to try the next one. What it says is
// somebody else's guess, so that the job is unknown.
func TestOUT10UpstreamsOwnGatewayErrorIsNoReasonToGoOn(t *testing.T) {
	t.Parallel()
	one, two := newUpstream(t), newUpstream(t)
	c := startGateway(t, to(one, two)).client()
	for key, status := range map[string]string{"bad-gateway": "502", "unavailable": "503", "gateway-timeout": "504"} {
		r := post(key).tell("Up-Status", status)
		wantUnknown(t, c.do(r))
		wantUnknown(t, c.do(r))
		wantSum(t, key, 1, one, two)
	}
}

// Where an operator knows better what a status of the upstream proves, the route
// can say so.
func TestStatusCanBeDeclaredHarmless(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up).with("outcome", "502 503 failed")).client()
	r := post("harmless").tell("Up-Status", "503").tell("Up-Once", "yes")
	first := c.do(r)
	if first.status != http.StatusServiceUnavailable || first.code() != "" {
		t.Errorf("want the upstream's own 503, got %d %s", first.status, first.body)
	}
	second := c.do(r)
	wantExecuted(t, second)
	if second.job() != first.job() {
		t.Errorf("the next attempt belongs to job %s, the first to %s", second.job(), first.job())
	}
	up.want("harmless", 2)
}

// wantSum checks how often a case was executed on several upstreams together.
func wantSum(t *testing.T, name string, n int, ups ...*upstream) {
	t.Helper()
	sum := 0
	for _, up := range ups {
		sum += len(up.of(name))
	}
	if sum != n {
		t.Errorf("%q was executed %d times on all upstreams, want %d", name, sum, n)
	}
}

// OUT-09: a second upstream is no way out once the request was written to the
// first. Whoever gives up first, the gateway or the proxy below it: the job is
// unknown, and one execution stays one.
func TestOUT09NoFailoverAfterTheRequestWasWritten(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(site) site{
		"timeout of the gateway": func(s site) site { return s.with("timeout", "500ms") },
		"timeout of the proxy": func(s site) site {
			s.handler += " {\nlb_retries 3\nlb_try_duration 5s\ntransport http {\nresponse_header_timeout 500ms\n}\n}"
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two := newUpstream(t), newUpstream(t)
			c := startGateway(t, set(to(one, two))).client()
			wantUnknown(t, c.do(post("slow").tell("Up-Hold", "gate")))
			wantUnknown(t, c.do(post("slow")))
			wantSum(t, "slow", 1, one, two)
		})
	}
}

// OUT-09: as long as nothing was written, the next upstream is a way out: the
// one attempt is executed once, on the one that is there.
func TestOUT09FailoverBeforeTheRequestWasWritten(t *testing.T) {
	t.Parallel()
	dead, up := newRefusingUpstream(t), newUpstream(t)
	s := to(dead, up)
	s.handler += " {\nlb_policy first\nlb_retries 3\nfail_duration 30s\n}"
	c := startGateway(t, s).client()
	a := c.do(post("next"))
	wantExecuted(t, a)
	wantReplay(t, a, c.do(post("next")))
	wantSum(t, "next", 1, dead, up)
	if got := up.of("next")[0].body; got != post("next").body {
		t.Errorf("the second upstream got the body %q", got)
	}
}
