package proxy

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// What a program acts on is a contract with all clients there are: a code that
// changes here breaks them.
func TestAPI05CodesAreAContract(t *testing.T) {
	t.Parallel()
	ietf := Config{Statuses: StatusesIETF}
	now := keystore.Time(0)
	answered := &keystore.Job{Result: &keystore.Response{Status: 201}}
	for _, c := range []struct {
		refusal    *Refusal
		code       string
		status     int
		advice     Advice
		retryAfter bool
	}{
		{refuseRequest(CodeKeyMissing, ""), "key-missing", 400, "fix-request", false},
		{refuseRequest(CodeKeyInvalid, ""), "key-invalid", 400, "fix-request", false},
		{refuseRequest(CodeOwnerMissing, ""), "owner-missing", 400, "fix-request", false},
		{refuseRequest(CodeRequestTooLarge, ""), "request-too-large", 413, "fix-request", false},
		{refuseEarly("Idempotency-Key"), "too-early", 425, "retry-same-key", false},
		{new(Config).refuseReused(), "key-reused", 409, "new-key", false},
		{ietf.refuseReused(), "key-reused", 422, "new-key", false},
		{refuseInFlight(nil, now), "in-flight", 409, "retry-same-key", true},
		{new(Config).refuseUnknown(), "outcome-unknown", 504, "wait-for-resolution", false},
		{refuseNotExecuted(nil), "not-executed", 502, "retry-same-key", true},
		{refuseNotKept(answered.Result), "result-not-kept", 410, "already-done", false},
		{refuseStore(errors.New("redis://secret")), "store-unavailable", 503, "retry-same-key", true},
		{refuseLost(nil), "record-lost", 503, "wait-for-resolution", false},
		{refuseWaiters(), "too-many-waiters", 503, "retry-same-key", true},
		{refuseLoop(), "loop", 508, "fix-request", false},
		{refuseReplay(), "replay-refused", 403, "fix-request", false},
	} {
		t.Run(c.code, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			if err := c.refusal.Write(w); err != nil {
				t.Fatal(err)
			}
			problem := problemOf(t, w)
			want := map[string]any{"type": "urn:idempotency:" + c.code, "code": c.code, "status": float64(c.status), "advice": string(c.advice)}
			for member, value := range want {
				if problem[member] != value {
					t.Errorf("%s is %v, want %v", member, problem[member], value)
				}
			}
			if problem["title"] == "" || problem["title"] == nil || w.Code != c.status || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
			}
			if (w.Header().Get("Retry-After") != "") != c.retryAfter {
				t.Errorf("Retry-After is %q", w.Header().Get("Retry-After"))
			}
			if c.refusal.verdict() == "" || string(c.advice) == "" {
				t.Error("nothing to count it under, or to do about it")
			}
		})
	}
}

func problemOf(t *testing.T, w *httptest.ResponseRecorder) (problem map[string]any) {
	t.Helper()
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("the media type is %q", got)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	return problem
}
