package proxy

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// CaseResult is how a provider did in one case.
type CaseResult struct {
	Case     string        `json:"case"`
	File     string        `json:"file"`
	Line     int           `json:"line"`
	Repeat   int           `json:"repeat"` // how often it has to pass
	Passed   int           `json:"passed"` // how often it has passed
	LeftOut  bool          `json:"left_out,omitempty"`
	Duration time.Duration `json:"duration"`
	// Failures are those of the run that failed. It was the last one.
	Failures []CaseFailure `json:"failures,omitempty"`

	cut bool // the failure is that the whole was broken off
}

// ProofReport is how a provider did in the cases of a contract.
type ProofReport []CaseResult

// Passed reports whether every case has passed as often as it has to. Where there
// is none, nothing is proven.
func (r ProofReport) Passed() bool {
	for _, c := range r {
		if c.LeftOut || c.Passed < c.Repeat || len(c.Failures) > 0 {
			return false
		}
	}
	return len(r) > 0
}

// Refuted reports whether the provider has failed a case, whatever became of the
// others: a run that was broken off after that has shown it all the same.
func (r ProofReport) Refuted() bool {
	return slices.ContainsFunc(r, func(c CaseResult) bool { return len(c.Failures) > 0 && !c.cut })
}

// SendCase sends a case's request under this key, which is the request's identity
// and no caller's, and returns the complete answer.
type SendCase func(r *http.Request, key string) (*keystore.Response, error)

// Prove runs the contract's cases, one after the other, each under a key of its
// own. Cases that are not safe are left out unless unsafe says otherwise. A case
// ends with its first run that fails: one is enough, and runs may cost money.
func (c *Contract) Prove(ctx context.Context, unsafe bool, send SendCase) ProofReport {
	report := make(ProofReport, 0, len(c.cases))
	for _, recorded := range c.cases {
		result := CaseResult{Case: recorded.Name, File: recorded.File, Line: recorded.Line, Repeat: recorded.Repeat}
		began := time.Now()
		switch {
		case !recorded.Safe && !unsafe:
			result.LeftOut = true
		default:
			for len(result.Failures) == 0 && result.Passed < result.Repeat {
				if result.Failures, result.cut = c.run(ctx, recorded, send); len(result.Failures) == 0 {
					result.Passed++
				}
			}
			result.Duration = time.Since(began)
		}
		report = append(report, result)
	}
	return report
}

// run runs a case once. Cut says that it was broken off, and so has shown nothing.
func (c *Contract) run(ctx context.Context, recorded *Case, send SendCase) (failures []CaseFailure, cut bool) {
	key := "prove-" + keystore.NewToken().String()
	failure := func(what, expected, found string) []CaseFailure {
		return []CaseFailure{{Line: recorded.Line, What: what, Expected: short(expected), Found: short(found)}}
	}
	r, err := recorded.Request(ctx, key)
	if err != nil {
		return failure("request", "one that can be sent", err.Error()), false
	}
	answer, err := send(r, key)
	switch {
	case ctx.Err() != nil:
		return failure("answer", "a complete one", context.Cause(ctx).Error()), true
	case err != nil:
		return failure("answer", "a complete one", err.Error()), false
	case answer == nil:
		return failure("answer", "a complete one", "none"), false
	}
	failures = recorded.Judge(answer, key)
	if v := c.judge(answer, true); v != nil {
		what := "contract"
		if v.Path != "" {
			what += " " + v.Path
		}
		f := CaseFailure{Line: recorded.Line, What: what, Expected: short(v.Expected), Found: short(v.Found)}
		if !slices.ContainsFunc(failures, f.same) {
			failures = append(failures, f)
		}
	}
	return failures, false
}
