package proxy

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// troubles are what is told of a store that does not do what it should, or holds what
// can't be used.
var troubles = []occurrence{
	{
		line:      "the store does not record an attempt's end; going on trying",
		fields:    []string{"job", "attempt=1", "outcome=final"},
		incidents: []Incident{IncidentUnrecorded},
		happen: func(t *testing.T, f *fixture) {
			f.fails("swap", errInjected)
			if r := f.do(confidential).want(t, 200, ""); r.Header().Get(HeaderRecorded) != "false" {
				t.Errorf("headers %v", r.Header())
			}
			f.mem.fail(nil, nil)
			time.Sleep(5 * time.Second)
		},
	},
	{
		line:   "an attempt's end could not be recorded",
		fields: []string{"job", "attempt=1", "outcome=final", "reason=answered with status 200", "error~record can't be read"},
		happen: func(t *testing.T, f *fixture) {
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				f.mem.garble("garbage")
				return says(200, "done")(w, r)
			}
			f.do(confidential).want(t, 200, "")
		},
	},
	{
		line:   "an attempt that timed out could not be recorded as unknown", // and was not
		fields: []string{"job", "attempt=1", "error~injected"},
		config: brief,
		happen: func(t *testing.T, f *fixture) {
			f.fails("swap", errRefused)
			f.serve = hangs
			f.do(confidential).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:   "an attempt that timed out could not be recorded as unknown", // but perhaps was
		fields: []string{"job", "attempt=1", "error~injected"},
		events: []string{"outcome_unknown 1: no answer came within the timeout"},
		config: brief,
		happen: func(t *testing.T, f *fixture) {
			f.fails("swap", errInjected)
			f.serve = hangs
			f.do(confidential).want(t, 504, CodeOutcomeUnknown)
		},
	},
	{
		line:   "the store is full: an answer is kept without its body, so that repetitions are told that it was executed, and no more",
		fields: []string{"job", "attempt=1"},
		store:  func(mem *memStore) keystore.Store { return &fullStore{memStore: mem} },
		happen: func(t *testing.T, f *fixture) {
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				f.store.(*fullStore).full.Store(true)
				return says(200, "done")(w, r)
			}
			f.do(confidential).want(t, 200, "")
			f.do(confidential).want(t, 410, CodeResultNotKept)
		},
	},
	{
		line:      "the store takes the body of an answer too slowly: the answer is kept without it, so that repetitions are told that it was executed, and no more",
		fields:    []string{"job", "attempt=1"},
		incidents: []Incident{IncidentUnrecorded},
		store:     func(mem *memStore) keystore.Store { return &narrowStore{memStore: mem} },
		happen: func(t *testing.T, f *fixture) {
			f.store.(*narrowStore).narrow.Store(true)
			f.serve = says(200, strings.Repeat("x", slowBody))
			f.do(confidential).want(t, 200, "")
			time.Sleep(20 * time.Second)
			f.do(confidential).want(t, 410, CodeResultNotKept)
		},
	},
	{
		line:      "the store has lost a claim that it had acknowledged",
		fields:    []string{"job", "attempt=1", "restored=true"},
		events:    []string{"claim_lost 1: the store had forgotten it"},
		incidents: []Incident{IncidentClaimLost},
		happen: func(t *testing.T, f *fixture) {
			f.serve = func(w http.ResponseWriter, r *http.Request) error {
				f.mem.wipe()
				return says(200, "done")(w, r)
			}
			f.do(confidential).want(t, 200, "")
			f.do(confidential).wantBody(t, 200, "done", true)
		},
	},
	{
		line:   "a job's record can't be read; requests with its key are refused until it is removed",
		fields: []string{"record", "error~record can't be read"},
		happen: func(t *testing.T, f *fixture) {
			f.do(confidential).want(t, 200, "")
			f.mem.garble("garbage")
			f.do(confidential).want(t, 503, CodeStoreUnavailable)
			f.wantExecutions(1)
		},
	},
	{
		line:   "a job's record can't be decrypted; requests with its key are refused as long as that is so",
		fields: []string{"job", "error~encrypt_with"},
		config: Config{Keyring: mustRing(key1)},
		happen: func(t *testing.T, f *fixture) {
			f.do(confidential).want(t, 200, "")
			f.route.Keyring = nil
			f.do(confidential).want(t, 503, CodeStoreUnavailable)
			f.wantExecutions(1)
		},
	},
	{
		line:   "lapsed leases could not be looked for",
		fields: []string{"error~no index"},
		store:  func(mem *memStore) keystore.Store { return unlisted{mem} },
		happen: func(*testing.T, *fixture) { time.Sleep(2 * sweepEvery) },
	},
	{
		line:   "it could not be seen whether races are over",
		fields: []string{"error~injected"},
		config: racing,
		events: []string{"outcome_unknown 2: broke off: no complete answer came", "outcome_unknown 1: no answer came within the timeout"},
		happen: func(t *testing.T, f *fixture) {
			f.with(map[string][]script{"a": {hangs}, "b": {breaks}})
			f.do(request{}).want(t, 504, CodeOutcomeUnknown)
			f.fails("get", errInjected)
			time.Sleep(2 * sweepEvery)
		},
	},
	{
		line:   "the store could not be looked through for lapsed leases",
		fields: []string{"error~injected"},
		happen: func(_ *testing.T, f *fixture) {
			f.fails("scan", errInjected)
			time.Sleep(2 * scanEvery)
		},
	},
	{
		line:   "this machine's clock is off the store's; leases and expiries are judged by the store's, but have both clocks set by NTP",
		fields: []string{"ahead=-1m0s"},
		store:  func(mem *memStore) keystore.Store { return ahead{mem} },
		happen: func(*testing.T, *fixture) { time.Sleep(scanEvery + 2*sweepEvery) },
	},
	{
		line:   "unknown attempts could not be looked for",
		fields: []string{"error~no index"},
		store:  func(mem *memStore) keystore.Store { return unlisted{mem} },
		config: Config{Reconcile: asking(status(200))},
		happen: func(t *testing.T, f *fixture) { f.reconcileFor(t, time.Minute) },
	},
}

// unlisted is a store whose index can't be read.
type unlisted struct{ *memStore }

func (unlisted) List(context.Context, string, int) ([]*keystore.Job, string, error) {
	return nil, "", errNoIndex
}

// ahead is a store whose clock is.
type ahead struct{ *memStore }

func (ahead) ClockOffset() (offset time.Duration, known bool) { return time.Minute, true }

func mustRing(keys ...keystore.SealKey) *keystore.Keyring {
	k, err := keystore.NewKeyring(keys...)
	if err != nil {
		panic(err)
	}
	return k
}

// asking is a reconciler that asks this upstream.
func asking(answer func(int) (*keystore.Response, error)) *Reconcile {
	return &Reconcile{
		Lookup: (&asked{answer: answer}).lookup, Every: 5 * time.Second, For: 15 * time.Minute,
		Rules: []ReconcileRule{{Statuses: []int{200}, As: keystore.AttemptSucceeded}},
	}
}

// reconcileFor asks for so long.
func (f *fixture) reconcileFor(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := contextFor(t, d)
	defer cancel()
	f.route.Reconcile(ctx)
	synctest.Wait()
}
