package proxy

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// An answer that broke the contract is encrypted while it is kept, and replayed
// as it was once somebody has taken it for the result.
func TestSealedKeptAnswer(t *testing.T) {
	c := Config{Keyring: ring(t, key1), Contract: contractOf(t, ContractRules{})}
	bubble(t, c, func(t *testing.T, f *fixture) {
		f.serve = saysJSON(200, `{"id":471108154711,"iban":"iban-0815"}`)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.mem.wantNothingOf(t, "471108154711", "iban")
		d := decide(f.mem.job(), keystore.AttemptSucceeded)
		d.Response, d.Kept = nil, true
		if _, err := f.gateway.Resolve(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		f.mem.wantNothingOf(t, "471108154711", "iban")
		f.do(request{}).wantBody(t, 200, `{"id":471108154711,"iban":"iban-0815"}`, true)
		f.wantExecutions(1)
	})
}
