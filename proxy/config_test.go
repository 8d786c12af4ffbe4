package proxy

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestValidateRefusesWhatCanNotWork(t *testing.T) {
	t.Parallel()
	if err := (Config{}).WithDefaults().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	if err := (Config{MaxRequestBody: maxLimit, MaxResponseBody: maxLimit}).WithDefaults().Validate(); err != nil {
		t.Errorf("the largest limits are refused: %v", err)
	}
	for want, c := range map[string]Config{
		// One more than the limit is read to see whether there is more.
		"max_request_body 9223372036854775807": {MaxRequestBody: math.MaxInt64},
		"max_request_body 1125899906842625":    {MaxRequestBody: maxLimit + 1},
		"max_request_body -1":                  {MaxRequestBody: -1},
		"max_response_body 1125899906842625":   {MaxResponseBody: maxLimit + 1},
		"buffer -1":                            {Buffer: -1},
		"waiters of a job -1":                  {WaitersPerJob: -1},
		"waiters -1":                           {Waiters: -1},
		"wait 1µs":                             {Wait: time.Microsecond},
		"stream_idle -1s":                      {StreamIdle: -time.Second},
		`space "_x"`:                           {Space: "_x"},
		`key "a b"`:                            {KeyHeader: "a b"},
		`key "Idempotency-Job"`:                {KeyHeader: "idempotency-job"},
		`key "Connection"`:                     {KeyHeader: "connection"},
		`key "Host"`:                           {KeyHeader: "Host"},
		"max_attempts 1":                       {Providers: named("a", "b"), Race: time.Second, MaxAttempts: 1},
		"send_key Expect":                      {SendKey: "expect"},
		`statuses "new"`:                       {Statuses: "new"},
		"retention 10m0s":                      {Retention: 10 * time.Minute},
		"outcome 101":                          {Outcomes: map[int]keystore.Outcome{101: keystore.OutcomeFinal}},
		"outcome 200":                          {Outcomes: map[int]keystore.Outcome{200: keystore.OutcomeRunning}},
		"send_key Idempotency-Job":             {SendKey: HeaderJob},
		"send_key Te":                          {SendKey: "te"},
		"keep_header connection":               {KeepHeaders: []string{"Age", "connection"}},
		"keep_header Idempotency-Job":          {KeepHeaders: []string{HeaderJob}},
		"CONNECT":                              {Methods: []string{"CONNECT"}},
	} {
		if err := c.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}
