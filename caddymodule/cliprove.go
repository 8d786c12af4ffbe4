package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func (c *cli) prove() *cobra.Command {
	cmd := c.command("prove", "Has providers prove that they honour their contract", `
Runs the recorded cases of contracts against providers, each through the whole
chain of the provider's handlers and under a key of its own, and keeps the proofs of
those that pass them all. Until the proof ages, or provider or contract change, a
proven provider may take the place of another one. A provider that fails loses the
proof that it had.

These are real requests. Cases that are not marked "# @safe" are left out, so that
nothing is proven, unless --unsafe says that they may be run.

Of a case that fails it says what was expected and what came, and the exit code is 6.

Example:
  $ caddy idempotency prove
  $ caddy idempotency prove --space payments --provider backup --unsafe
  $ caddy idempotency prove --json | jq '.providers[] | select(.proven | not)'
`, (*call).runProve)
	flags := cmd.Flags()
	flags.String("space", "", "Only providers of routes with this space")
	flags.String("provider", "", "Only this provider")
	flags.Bool("unsafe", false, "Run cases too that are not marked as safe")
	flags.String("store", "", "Only providers of routes with this store, as stats calls it")
	cmd.Args = cobra.NoArgs
	return cmd
}

func (c *call) runProve([]string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	client.http.Timeout = 0 // however long it takes
	req := proveRequest{Space: c.text("space"), Provider: c.text("provider"), Unsafe: c.is("unsafe")}
	text, err := client.call(c.Context(), http.MethodPost, c.inStore(adminPrefix+"prove"), req)
	if err != nil {
		return err
	}
	var answer proveAnswer
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("understand how providers did: %w", err)
	}
	if c.is("json") {
		err = c.printJSON(text)
	} else {
		err = printProofs(c.OutOrStdout(), answer)
	}
	if err == nil && !answer.Passed {
		err = &callError{exit: exitNotProven, err: errors.New("not every provider is proven")}
	}
	return err
}

// printProofs prints how providers did: a table of the cases, what failed, and
// what follows from it.
func printProofs(w io.Writer, answer proveAnswer) error {
	rows := [][]string{{"SPACE", "PROVIDER", "CONTRACT", "CASE", "PASSED", "RESULT", "TIME"}}
	var failures, ends strings.Builder
	var outdated []string // contracts
	for _, p := range answer.Providers {
		leftOut, failed := false, false
		if contract := plain(p.Contract, 0); p.Outdated && !slices.Contains(outdated, contract) {
			outdated = append(outdated, contract)
		}
		for _, r := range p.Cases {
			result, took := "passed", readable(r.Duration)
			switch {
			case r.LeftOut:
				result, took, leftOut = "left out", "", true
			case len(r.Failures) > 0:
				result, failed = "FAILED", true
			}
			rows = append(rows, []string{
				plain(p.Space, 24), p.Provider, plain(p.Contract, 24), plain(r.Case, 40), fmt.Sprintf("%d of %d", r.Passed, r.Repeat), result, took,
			})
			for _, f := range r.Failures {
				fmt.Fprintf(&failures, "\n%s, %s (%s:%d)\n  %s\n    expected  %s\n    found     %s\n",
					p.Provider, plain(r.Case, 0), plain(r.File, 0), f.Line, plain(f.What, 0), plain(f.Expected, 0), plain(f.Found, 0))
			}
		}
		switch {
		case p.Proven:
			fmt.Fprintf(&ends, "\n%s is proven until %s.", p.Provider, at(p.Until))
		case p.Error != "":
			fmt.Fprintf(&ends, "\n%s is not proven: %s.", p.Provider, plain(p.Error, 0))
		case leftOut && !failed:
			fmt.Fprintf(&ends, "\n%s is not proven, since cases were left out that are not marked as safe; run them with --unsafe.", p.Provider)
		default:
			fmt.Fprintf(&ends, "\n%s is not proven.", p.Provider)
		}
	}
	for _, contract := range outdated {
		fmt.Fprintf(&ends, "\n\nThe files of contract %s have changed since the configuration was loaded. This is about what they were then; caddy reload --force loads them anew.", contract)
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s%s\n", failures.String(), ends.String())
	return err
}

func (c *cli) providers() *cobra.Command {
	cmd := c.command("providers", "Lists providers, and whether they are proven", `
Lists the providers of the running configuration, in order of preference: whether
each is proven and until when, or why it can't take another one's place; the health
of its upstreams, where that is checked; and how its attempts ended, with late
results and answers that broke the contract. The counts are those of this one Caddy
since it was started, for all providers of that name and space.

Example:
  $ caddy idempotency providers
  $ caddy idempotency providers --json | jq '.providers[] | select(.proof == "unproven")'
`, (*call).runProviders)
	cmd.Flags().String("space", "", "Only providers of routes with this space")
	cmd.Flags().String("store", "", "Only providers of routes with this store, as stats calls it")
	cmd.Args = cobra.NoArgs
	return cmd
}

func (c *call) runProviders([]string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	query := make(url.Values)
	for _, name := range []string{"space", "store"} {
		if value := c.text(name); value != "" {
			query.Set(name, value)
		}
	}
	text, err := client.call(c.Context(), http.MethodGet, adminPrefix+"providers?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	if c.is("json") {
		return c.printJSON(text)
	}
	var answer providersAnswer
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("understand the providers: %w", err)
	}
	if len(answer.Providers) == 0 {
		return c.say("There are no such providers.")
	}
	rows := [][]string{{"SPACE", "PROVIDER", "CONTRACT", "PROOF", "UPSTREAMS", "ATTEMPTS", "LATE", "VIOLATIONS"}}
	var why strings.Builder
	for _, p := range answer.Providers {
		proof := p.Proof
		if !p.ProvenUntil.IsZero() {
			if proof != "proven" {
				proof += ", proven"
			}
			proof += " until " + at(p.ProvenUntil)
		}
		rows = append(rows, []string{
			plain(p.Space, 24), p.Name, plain(p.Contract, 24), proof, p.health(), cmp.Or(p.outcomes(), "-"), strconv.Itoa(p.LateResults), strconv.Itoa(p.Violations),
		})
		if p.Why != "" {
			fmt.Fprintf(&why, "\n%s: %s", p.Name, plain(p.Why, 0))
		}
	}
	if err := printTable(c.OutOrStdout(), rows); err != nil || why.Len() == 0 {
		return err
	}
	return c.say("%s", why.String())
}

// health tells how many of the upstreams are healthy.
func (p *providerView) health() string {
	healthy := 0
	for _, u := range p.Upstreams {
		if u.Healthy {
			healthy++
		}
	}
	if len(p.Upstreams) == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d healthy", healthy, len(p.Upstreams))
}

// outcomes tells how the attempts ended.
func (p *providerView) outcomes() string {
	var words []string
	for _, outcome := range slices.Sorted(maps.Keys(p.Attempts)) {
		words = append(words, fmt.Sprintf("%d %s", p.Attempts[outcome], outcome))
	}
	return strings.Join(words, ", ")
}
