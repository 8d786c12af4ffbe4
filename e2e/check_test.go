package e2e

import (
	"net/http"
	"testing"
	"time"
)

// wantExecuted checks that an answer is the upstream's own, and not a replay.
func wantExecuted(t *testing.T, a answer) {
	t.Helper()
	if a.err != nil || a.status != http.StatusOK || a.code() != "" {
		t.Fatalf("want the upstream's answer, got status %d, error %v, body %s", a.status, a.err, a.body)
	}
	if a.replayed() {
		t.Errorf("the first answer is marked as a replay")
	}
	if a.job() == "" || a.header.Get("Idempotency-Expires") == "" {
		t.Errorf("the answer names neither its job nor when that expires: %v", a.header)
	}
}

// wantReplay checks that an answer is the first one again, marked as such.
func wantReplay(t *testing.T, first, a answer) {
	t.Helper()
	if a.err != nil {
		t.Fatalf("want a replay, got error %v", a.err)
	}
	if a.status != first.status || a.body != first.body || a.job() != first.job() {
		t.Errorf("want the first answer again:\n%d %s %s\ngot:\n%d %s %s",
			first.status, first.job(), first.body, a.status, a.job(), a.body)
	}
	wantMarked(t, a)
}

// wantMarked checks that an answer is marked as a replay.
func wantMarked(t *testing.T, a answer) {
	t.Helper()
	if !a.replayed() {
		t.Errorf("want a replay, got status %d without the mark: %s", a.status, a.body)
	}
	if _, err := time.Parse(http.TimeFormat, a.header.Get("Idempotency-Answered-At")); err != nil {
		t.Errorf("the replay does not say when the answer was first given: %v", err)
	}
}

// wantRefusal checks that an answer is the gateway's own, with this code.
func wantRefusal(t *testing.T, a answer, status int, code string) {
	t.Helper()
	if a.err != nil || a.status != status || a.code() != code {
		t.Fatalf("want refusal %d %s, got status %d, error %v, body %s", status, code, a.status, a.err, a.body)
	}
	if a.problem().Status != status {
		t.Errorf("the problem says status %d under status %d", a.problem().Status, status)
	}
	if a.replayed() {
		t.Errorf("a refusal is marked as a replay")
	}
}

// wantUnknown checks that an answer says that nobody knows whether the request
// was executed, and that its job is unknown.
func wantUnknown(t *testing.T, a answer) {
	t.Helper()
	wantRefusal(t, a, http.StatusGatewayTimeout, "outcome-unknown")
	if p := a.problem(); p.State != "unknown" || p.Job == "" || p.Job != a.job() || p.Advice != "wait-for-resolution" {
		t.Errorf("want an unknown job and the advice to wait for its resolution, got %+v, header %q", p, a.job())
	}
}

// untilCode repeats a request until it is refused with this code.
func untilCode(t *testing.T, c *client, r request, code string) (a answer) {
	t.Helper()
	eventually(t, "refusal "+code, func() bool {
		a = c.do(r)
		return a.code() == code
	})
	return a
}

// untilStatus repeats a request until it is answered with this status.
func untilStatus(t *testing.T, c *client, r request, status int) (a answer) {
	t.Helper()
	eventually(t, "an answer with status "+http.StatusText(status), func() bool {
		a = c.do(r)
		return a.err == nil && a.status == status
	})
	return a
}
