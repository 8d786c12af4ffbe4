package caddymodule

import (
	"context"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// doctorAnswer is what the stores run on, and what that can cost.
type doctorAnswer struct {
	Severity string        `json:"severity"` // of the worst finding: none, note, warning or danger
	Stores   []storeDoctor `json:"stores"`
}

// storeDoctor is what was found of a store.
type storeDoctor struct {
	Store     string    `json:"store"`
	About     []string  `json:"about"`
	Inspected time.Time `json:"inspected,omitzero"` // when that last succeeded
	// Error says why the store could not be inspected now. The findings are the last
	// that were known.
	Error string `json:"error,omitempty"`
	// Refused says why requests with a key are refused at present, by require_durable.
	Refused  string        `json:"refused,omitempty"`
	Findings []findingView `json:"findings"`
}

// findingView is a finding.
type findingView struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Loses    bool   `json:"loses"` // an acknowledged job can be lost by it
	Server   string `json:"server,omitempty"`
	Found    string `json:"found"`
	Risk     string `json:"risk"`
	Remedy   string `json:"remedy"`
}

// doctor inspects the stores.
func (c *adminCall) doctor() (any, error) {
	answer := doctorAnswer{Stores: []storeDoctor{}}
	worst := keystore.Severity(-1)
	for _, s := range c.stores {
		// What was begun is of use to all, also if this caller leaves.
		s.inspection.run(context.WithoutCancel(c.r.Context()))
		known, err := s.inspection.known()
		v := storeDoctor{Store: s.name, About: known.About, Inspected: known.At.UTC().Truncate(time.Second), Findings: []findingView{}}
		if known.At.IsZero() {
			v.Inspected = time.Time{}
		}
		if v.About == nil {
			v.About = []string{}
		}
		switch {
		case s.inspection.store == nil:
			v.Error = "this kind of store can't say what it runs on"
		case err != nil:
			v.Error = err.Error()
		}
		if unfit := c.app.unfit(s.sharedStore); unfit != nil {
			v.Refused = unfit.Error()
		}
		for _, f := range known.Findings {
			v.Findings = append(v.Findings, findingView{f.Code, f.Severity.String(), f.Loses, f.Server, f.Found, f.Risk, f.Remedy})
		}
		worst = max(worst, known.Worst())
		answer.Stores = append(answer.Stores, v)
	}
	answer.Severity = worst.String()
	return answer, nil
}
