package proxy

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// decisions are what is told of decisions on unknown attempts, of forgotten jobs, and of
// proofs.
var decisions = []occurrence{
	{
		line:   "an unknown attempt was resolved",
		fields: []string{"job", "attempt=1", "as=failed", "actor=anna"},
		events: []string{"outcome_unknown 1: broke off: no complete answer came", "resolved 1: resolved as failed by anna"},
		happen: func(t *testing.T, f *fixture) { f.resolve(t, f.breakOff(t), keystore.AttemptFailed) },
	},
	{
		line:   "a job was forgotten",
		fields: []string{"job", "actor=anna"},
		events: []string{"forgotten 1: forgotten by anna"},
		happen: func(t *testing.T, f *fixture) {
			if err := f.gateway.Forget(t.Context(), f.do(confidential).Header().Get(HeaderJob), "anna"); err != nil {
				t.Error(err)
			}
		},
	},
	{
		line:   "a lookup of an unknown attempt failed",
		fields: []string{"job", "attempt=1", "error=refused"},
		events: []string{"outcome_unknown 1: broke off: no complete answer came"},
		config: Config{Reconcile: asking(func(int) (*keystore.Response, error) { return nil, errors.New("refused") })},
		happen: func(t *testing.T, f *fixture) {
			f.breakOff(t)
			f.reconcileFor(t, time.Minute)
		},
	},
	{
		line:   "an unknown attempt could not be settled by asking its upstream; resolve it by hand",
		fields: []string{"job", "attempt=1", "status=500"},
		events: []string{"outcome_unknown 1: broke off: no complete answer came"},
		config: Config{Reconcile: asking(status(500))},
		happen: func(t *testing.T, f *fixture) {
			f.breakOff(t)
			f.reconcileFor(t, time.Hour)
		},
	},
	{
		line:   "an unknown attempt can't be asked about, since its job's key can't be decrypted",
		fields: []string{"job", "error~encrypt_with"},
		events: []string{"outcome_unknown 1: broke off: no complete answer came"},
		config: Config{Reconcile: asking(status(200)), Keyring: mustRing(key1)},
		happen: func(t *testing.T, f *fixture) {
			f.breakOff(t)
			f.route.Keyring = nil
			f.reconcileFor(t, time.Minute)
		},
	},
	{
		line:   "an unknown attempt could not be resolved",
		fields: []string{"job", "attempt=1", "error~injected"},
		events: []string{"outcome_unknown 1: broke off: no complete answer came"},
		config: Config{Reconcile: asking(status(200))},
		happen: func(t *testing.T, f *fixture) {
			f.breakOff(t)
			f.fails("swap", errInjected)
			f.reconcileFor(t, time.Minute)
		},
	},
	{
		line:   "what a lookup said could not be recorded",
		fields: []string{"job", "error~injected"},
		events: []string{"outcome_unknown 1: broke off: no complete answer came"},
		config: Config{Reconcile: asking(status(500))},
		happen: func(t *testing.T, f *fixture) {
			f.breakOff(t)
			f.fails("swap", errInjected)
			f.reconcileFor(t, time.Minute)
		},
	},
	{
		line:   "a provider has proven that it honours its contract",
		fields: []string{"provider=second", "cases=1"},
		events: []string{"proven 1: provider second has passed every case"},
		happen: func(t *testing.T, f *fixture) { f.prove(t) },
	},
	{
		line:   "a provider's proof was taken back: it has not passed its contract",
		fields: []string{"provider=second"},
		events: []string{"proven 1: provider second has passed every case", "unproven 1: provider second has not passed every case"},
		happen: func(t *testing.T, f *fixture) {
			f.prove(t)
			if dropped, err := f.gateway.DropProof(t.Context(), proofSubject(), f.store.Now(), time.Hour); !dropped || err != nil {
				t.Error(dropped, err)
			}
		},
	},
}

// breakOff makes a job whose only attempt is unknown, and returns its id.
func (f *fixture) breakOff(t *testing.T) string {
	t.Helper()
	f.serve, f.fail = breaks, Failure{Status: 502}
	return f.do(confidential).want(t, 504, CodeOutcomeUnknown).Header().Get(HeaderJob)
}

func (f *fixture) prove(t *testing.T) {
	t.Helper()
	if _, err := f.gateway.KeepProof(t.Context(), proofSubject(), passed(), f.store.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
}
