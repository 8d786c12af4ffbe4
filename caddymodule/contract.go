package caddymodule

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// defaultProofMaxAge is how long a proof counts.
const defaultProofMaxAge = 24 * time.Hour

// Contract is what every provider of a route has to honour. It judges the answers
// of 200 to 299 that would be a request's result. One that breaks it never becomes
// the result. Relative files are relative to Caddy's working directory, as anywhere
// in its configuration.
type Contract struct {
	// A name for operators. It makes no difference otherwise: a proof is of what
	// the contract says. Required.
	Name string `json:"name"`

	// The statuses that may answer, of 200 to 299. Default: all of them.
	Statuses []int `json:"statuses,omitempty"`

	// The file of a JSON Schema (2020-12) for the body. It may refer to files
	// beside it; nothing is fetched from the network. Default: none.
	Schema string `json:"schema,omitempty"`

	// Header fields that an answer must have. Default: none.
	RequireHeaders []RequiredHeader `json:"require_headers,omitempty"`

	// The largest body, in bytes. Default: none.
	MaxSize int64 `json:"max_size,omitempty"`

	// Files of recorded cases, which may be patterns, such as `cases/*.http`. A
	// provider that passes them all is proven. Default: none.
	Cases []string `json:"cases,omitempty"`

	// What an answer that breaks the contract says of the request: `unknown`, or
	// `failed` if it then certainly had no effect. Default: `unknown`.
	OnViolation string `json:"on_violation,omitempty"`

	// How long a proof counts. Default: `24h`.
	ProofMaxAge caddy.Duration `json:"proof_max_age,omitempty"`
}

// RequiredHeader is a field that an answer must have.
type RequiredHeader struct {
	// The field's name.
	Name string `json:"name"`

	// The value it must have. Default: any.
	Value string `json:"value,omitempty"`
}

func (c *Contract) proofMaxAge() time.Duration {
	return cmp.Or(time.Duration(c.ProofMaxAge), defaultProofMaxAge)
}

// compile reads the contract's files.
func (c *Contract) compile() (*proxy.Contract, error) {
	rules := proxy.ContractRules{Statuses: c.Statuses, Schema: c.Schema, MaxSize: c.MaxSize}
	for _, h := range c.RequireHeaders {
		rules.RequireHeaders = append(rules.RequireHeaders, proxy.RequiredHeader{Name: h.Name, Value: h.Value})
	}
	switch {
	case c.Name == "":
		return nil, fmt.Errorf("contract: has no name; write `contract <name> { … }`")
	case c.OnViolation != "" && c.OnViolation != "unknown" && c.OnViolation != "failed":
		return nil, fmt.Errorf("contract on_violation %s: must be unknown or failed", c.OnViolation)
	case c.ProofMaxAge < 0:
		return nil, fmt.Errorf("contract proof_max_age %v: must be at least 1ms", time.Duration(c.ProofMaxAge))
	}
	rules.ViolationFails = c.OnViolation == "failed"
	for _, pattern := range c.Cases {
		files, err := filepath.Glob(pattern)
		if _, missing := os.Stat(pattern); missing == nil {
			files = []string{pattern} // also if there are brackets in its name
		}
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("contract case %s: no such file; relative paths begin in Caddy's working directory, so write the whole path if that is not fixed", pattern)
		}
		for _, file := range files {
			if !slices.Contains(rules.Cases, file) {
				rules.Cases = append(rules.Cases, file)
			}
		}
	}
	contract, err := proxy.NewContract(rules)
	if err != nil {
		return nil, fmt.Errorf("contract %w", err)
	}
	return contract, nil
}

// contractOutdated reports whether the contract's files are not any more those that
// were loaded.
func (h *Handler) contractOutdated() bool {
	now, err := h.Contract.compile()
	return err != nil || now.Digest() != h.contract.Digest()
}
