package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func (c *cli) doctor() *cobra.Command {
	cmd := c.command("doctor", "Says which failure could lose a job, and what to set", `
Has the gateway look at what its stores run on: how a Redis server evicts, what it has
on its disk, who replicates it, which rights are missing; which disk a file is on. For
each thing found it says what can be lost by it, and what to set instead.

The exit code is that of the worst finding: 0 for notes, 7 for a warning, 8 for a
danger; 5 if a store could not be inspected. With --json it is the same.

Example:
  $ caddy idempotency doctor
  $ caddy idempotency doctor --json | jq '.stores[].findings[] | select(.loses)'
`, (*call).runDoctor)
	cmd.Flags().String("store", "", "Only this store, as stats calls it")
	cmd.Args = cobra.NoArgs
	return cmd
}

func (c *call) runDoctor([]string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	text, err := client.call(c.Context(), http.MethodGet, c.inStore(adminPrefix+"doctor"), nil)
	if err != nil {
		return err
	}
	var answer doctorAnswer
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("understand what was found: %w", err)
	}
	if c.is("json") {
		err = c.printJSON(text)
	} else {
		err = printDoctor(c.OutOrStdout(), answer)
	}
	if err != nil {
		return err
	}
	return answer.verdict()
}

// verdict is the error that the command ends with.
func (a doctorAnswer) verdict() error {
	for _, s := range a.Stores {
		if s.Error != "" {
			return &callError{exit: exitUnreachable, err: fmt.Errorf("store %s could not be inspected", s.Store)}
		}
	}
	switch a.Severity {
	case keystore.Danger.String():
		return &callError{exit: exitDanger, err: errors.New("there is a danger; see above")}
	case keystore.Warning.String():
		return &callError{exit: exitWarning, err: errors.New("there is a warning; see above")}
	}
	return nil
}

// printDoctor prints what was found, the worst first.
func printDoctor(w io.Writer, a doctorAnswer) error {
	for n, s := range a.Stores {
		f := fields{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
		if n > 0 {
			_, _ = fmt.Fprintln(f) // it is Flush that writes
		}
		f.add("", "store", plain(s.Store, 0))
		for _, about := range s.About {
			f.add("", "runs on", plain(about, 0))
		}
		f.add("", "inspected", at(s.Inspected))
		f.add("", "error", plain(s.Error, 0))
		f.add("", "refused", plain(s.Refused, 0))
		for _, one := range s.Findings {
			_, _ = fmt.Fprintln(f)
			f.add("", strings.ToUpper(one.Severity), one.Code)
			f.add("  ", "server", plain(one.Server, 0))
			f.add("  ", "found", plain(one.Found, 0))
			f.add("  ", "risk", plain(one.Risk, 0))
			f.add("  ", "remedy", plain(one.Remedy, 0))
		}
		if err := f.Flush(); err != nil {
			return err
		}
	}
	return nil
}
