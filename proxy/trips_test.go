package proxy

import (
	"net/http"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// trip is a round trip of a chain: what the chain knows of the latest answer when it
// has ended, and what was seen of it.
type trip struct {
	status    int
	wait      bool // the answer tells when to come again
	read      bool // the request's body, for it
	inquired  bool // a header told so
	connected bool
	unseen    bool
}

// tracing returns what a chain's round trips leave in it.
func tracing(bodyless bool, trips ...trip) *trace {
	t, latest := &trace{bodyless: bodyless}, Progress{}
	t.trips.progress = func() Progress { return latest }
	for _, trip := range trips {
		t.beginTrip()
		if trip.connected {
			t.asked.Add(1)
			t.connected.Add(1)
			t.headers.Add(1)
		}
		if trip.unseen {
			t.untold.Add(1)
		}
		if trip.read {
			t.read.Store(true)
		}
		if trip.inquired {
			t.inquired.Store(true)
		}
		if trip.status != 0 {
			latest = Progress{trip.status, trip.wait}
		}
		if trip.status != 0 && trip.connected {
			t.firstByte.Add(1)
		}
	}
	return t
}

// That nothing has happened is proved by an answer only where all that the chain has
// asked says the same.
func TestAmong(t *testing.T) {
	t.Parallel()
	sent := trip{connected: true, read: true}
	says := func(status int) trip { return trip{status: status, connected: true, read: true} }
	const unknown, fails = keystore.OutcomeUnknown, keystore.OutcomeFailed
	for name, c := range map[string]struct {
		trips    []trip
		failure  Failure
		answer   int
		want     keystore.Outcome
		bodyless bool
	}{
		"the only answer":                      {[]trip{says(429)}, Failure{}, 429, fails, false},
		"of no proxy":                          {nil, Failure{}, 403, fails, false},
		"after no connection":                  {[]trip{{}, says(429)}, Failure{Retried: true}, 429, fails, false},
		"after no answer":                      {[]trip{sent, says(429)}, Failure{}, 429, unknown, false},
		"beside a request that is under way":   {[]trip{says(429), sent}, Failure{}, 429, unknown, false},
		"after a 500":                          {[]trip{says(500), says(429)}, Failure{}, 429, unknown, false},
		"after a 201":                          {[]trip{says(201), says(403)}, Failure{}, 403, unknown, false},
		"after a question":                     {[]trip{{status: 200, connected: true}, says(403)}, Failure{}, 403, fails, false},
		"after a question, of a known status":  {[]trip{{status: 202, connected: true}, says(403)}, Failure{}, 403, fails, false},
		"after a question, and no answer":      {[]trip{{status: 200, connected: true}, sent, says(403)}, Failure{}, 403, unknown, false},
		"after a question, of no proxy":        {[]trip{{status: 200, connected: true}}, Failure{}, 403, fails, false},
		"after a 404":                          {[]trip{says(404), says(429)}, Failure{}, 429, fails, false},
		"after a 503":                          {[]trip{says(503), says(429)}, Failure{}, 429, unknown, false},
		"after a 503 that tells when":          {[]trip{{status: 503, wait: true, connected: true, read: true}, says(429)}, Failure{}, 429, fails, false},
		"after a 418 that the route knows":     {[]trip{says(418), says(429)}, Failure{}, 429, fails, false},
		"after a 405 that the route fears":     {[]trip{says(405), says(429)}, Failure{}, 429, unknown, false},
		"in place of a 500":                    {[]trip{says(500)}, Failure{}, 429, unknown, false},
		"in place of a 500, by another one":    {nil, Failure{Replaced: Progress{Status: 500}}, 429, unknown, false},
		"in place of a 200, by another one":    {nil, Failure{Replaced: Progress{Status: 200}}, 429, unknown, false},
		"in place of a 429, by another one":    {[]trip{says(429)}, Failure{Replaced: Progress{Status: 429}}, 429, fails, false},
		"after what tells nothing":             {[]trip{{unseen: true}, says(429)}, Failure{}, 429, unknown, false},
		"after what tells nothing, a retry":    {[]trip{{unseen: true}, {unseen: true, status: 429}}, Failure{Retried: true}, 429, fails, false},
		"after what tells nothing and answers": {[]trip{{unseen: true, status: 500, read: true}, says(429)}, Failure{}, 429, unknown, false},
		"without a body, after a 200":          {[]trip{{status: 200, connected: true}, {status: 403, connected: true}}, Failure{}, 403, unknown, true},
		"without a body, after a question":     {[]trip{{status: 200, connected: true, inquired: true}, {status: 403, connected: true}}, Failure{}, 403, fails, true},
		"without a body, a question is 500":    {[]trip{{status: 500, connected: true, inquired: true}, {status: 403, connected: true}}, Failure{}, 403, unknown, true},
		"without a body, a 200 after that":     {[]trip{{status: 200, connected: true, inquired: true}, {status: 200, connected: true}, {status: 403, connected: true}}, Failure{}, 403, unknown, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overrides := map[int]keystore.Outcome{418: fails, 405: unknown, 202: unknown}
			seen := observation{trace: tracing(c.bodyless, c.trips...), failure: c.failure, answer: &keystore.Response{Status: c.answer}, complete: true}
			v := classify(seen, overrides).among(seen, overrides)
			if v.outcome != c.want {
				t.Errorf("%s, want %s: %s", outcomeWord(v.outcome), outcomeWord(c.want), v.reason)
			}
			final := seen
			final.answer = &keystore.Response{Status: http.StatusCreated}
			if v := classify(final, overrides).among(final, overrides); v.outcome != keystore.OutcomeFinal {
				t.Errorf("201 comes to %s: %s", outcomeWord(v.outcome), v.reason)
			}
		})
	}
}
