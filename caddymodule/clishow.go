package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// anyState is the word for not asking for a state.
const anyState = "any"

// listPage is how many jobs are asked for at once.
const listPage = 500

func (c *cli) list() *cobra.Command {
	cmd := c.command("list", "Lists jobs, by default those whose outcome is unknown", `
Lists the jobs whose outcome is unknown: those that somebody has to settle.
Others are listed with --state. To find unknown and running jobs takes as long as
there are such jobs; for any other state the whole store is gone through.

The table tells the age of each job, the reason of the attempt that matters, and
last the job's id, which the other commands take.

Example:
  $ caddy idempotency list
  $ caddy idempotency list --min-age 10m --space payments
  $ caddy idempotency list --json | jq -r '.jobs[].id'
`, (*call).runList)
	flags := cmd.Flags()
	flags.String("state", "unknown", "State of the jobs: unknown, running, open, completed or "+anyState)
	flags.String("space", "", "Only jobs of this space")
	flags.String("provider", "", "Only jobs whose last attempt was on this provider")
	flags.String("min-age", "", "Only jobs at least this old, such as 10m")
	flags.String("store", "", "Only jobs in this store, as stats calls it")
	flags.Int("limit", 100, "Stop once so many jobs are listed; 0: list all")
	flags.String("cursor", "", "Go on from here: the \"next\" of an earlier --json")
	cmd.Args = cobra.NoArgs
	return cmd
}

func (c *call) runList([]string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	query := make(url.Values)
	for flag, name := range map[string]string{"state": "state", "space": "space", "provider": "provider", "min-age": "min_age", "store": "store"} {
		if value := c.text(flag); value != "" {
			query.Set(name, value)
		}
	}
	if query.Get("state") == anyState {
		query.Del("state")
	}
	limit := c.number("limit")
	if limit < 0 {
		return errors.New("--limit: must not be negative; 0 lists all")
	}
	all := struct {
		Jobs []json.RawMessage `json:"jobs"`
		Next string            `json:"next,omitempty"`
	}{Jobs: []json.RawMessage{}, Next: c.text("cursor")}
	for {
		size := listPage
		if limit > 0 {
			size = min(size, limit-len(all.Jobs))
		}
		query.Set("limit", strconv.Itoa(size))
		query.Set("cursor", all.Next)
		answer, err := client.call(c.Context(), http.MethodGet, adminPrefix+"jobs?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		page := all
		page.Jobs, page.Next = nil, ""
		if err := json.Unmarshal(answer, &page); err != nil {
			return fmt.Errorf("understand the list of jobs: %w", err)
		}
		all.Jobs, all.Next = append(all.Jobs, page.Jobs...), page.Next
		if all.Next == "" || (limit > 0 && len(all.Jobs) >= limit) {
			break
		}
	}
	if c.is("json") {
		return c.printJSON(all)
	}
	jobs := make([]*jobView, len(all.Jobs))
	for i, text := range all.Jobs {
		if err := json.Unmarshal(text, &jobs[i]); err != nil {
			return fmt.Errorf("understand a job: %w", err)
		}
	}
	if len(jobs) == 0 {
		return c.say("There are no such jobs.")
	}
	if err := printJobs(c.OutOrStdout(), jobs); err != nil {
		return err
	}
	if all.Next != "" {
		c.PrintErrln("There may be more; --limit 0 lists all.")
	}
	return nil
}

func (c *cli) show() *cobra.Command {
	cmd := c.command("show [<job>]", "Shows one job with its attempts and what was seen of them", `
Shows one job: what was asked, its attempts, and of each attempt what was seen on
the wire and what was learned since. That is what a decision is made on.

The job is named by its id, which a client finds in the Idempotency-Job header of
each answer, or by space, owner and key. Keys and owners on a command line can be
read by every user of the machine; give them in the environment variables
`+envOwner+` and `+envKey+` instead. The owner is what the
route's owner placeholder came to; --shared is that of a route with "owner shared".

Example:
  $ caddy idempotency show 8c6e…7a01.5f3b2c1d
  $ IDEMPOTENCY_OWNER=alice IDEMPOTENCY_KEY=order-17 caddy idempotency show --space payments
`, (*call).runShow)
	flags := cmd.Flags()
	flags.String("space", proxy.DefaultSpace, "Space of the job")
	flags.String("owner", "", "Owner of the key (better: $"+envOwner+")")
	flags.Bool("shared", false, "The key is one of a route with \"owner shared\"")
	flags.String("key", "", "The key, as it was sent (better: $"+envKey+")")
	flags.String("store", "", storeHelp)
	cmd.Args = cobra.MaximumNArgs(1)
	return cmd
}

func (c *call) runShow(args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	var path string
	var body any
	method := http.MethodGet
	if len(args) == 1 {
		path = c.jobPath(args[0], "")
	} else {
		req := findRequest{Space: c.text("space"), Shared: c.is("shared"), Key: c.secret("key", envKey)}
		if !req.Shared {
			req.Owner = c.secret("owner", envOwner)
		}
		if req.Key == "" || (req.Owner == "" && !req.Shared) {
			return errors.New("name a job by its id, or by its key and owner (--key, and --owner or --shared)")
		}
		method, path, body = http.MethodPost, c.inStore(adminPrefix+"find"), req
	}
	answer, err := client.call(c.Context(), method, path, body)
	if err != nil {
		return err
	}
	return c.printJobAnswer(answer)
}

// storeHelp is the help of the flag that says in which store a job is.
const storeHelp = "Store of the job, where several have such a one"

// inStore adds to a path the store that the command was told.
func (c *call) inStore(path string) string {
	if store := c.text("store"); store != "" {
		path += "?store=" + url.QueryEscape(store)
	}
	return path
}

// jobPath is the path of a job, or of something to be done with it.
func (c *call) jobPath(id, action string) string {
	path := adminPrefix + "jobs/" + url.PathEscape(id)
	if action != "" {
		path += "/" + action
	}
	return c.inStore(path)
}

func (c *call) printJobAnswer(answer json.RawMessage) error {
	if c.is("json") {
		return c.printJSON(answer)
	}
	var job jobView
	if err := json.Unmarshal(answer, &job); err != nil {
		return fmt.Errorf("understand the job: %w", err)
	}
	return printJob(c.OutOrStdout(), &job)
}

func (c *cli) stats() *cobra.Command {
	cmd := c.command("stats", "Counts jobs and attempts", `
Counts, for each store, the jobs that are unknown and those that are running, and
of this one Caddy the attempts that it runs, with those that it only listens to
for a late result, and the duplicates that wait. A running job counts once it is
about two seconds old.

Example:
  $ caddy idempotency stats
  $ caddy idempotency stats --json | jq '[.stores[].unknown] | add'
`, (*call).runStats)
	cmd.Args = cobra.NoArgs
	return cmd
}

func (c *call) runStats([]string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	answer, err := client.call(c.Context(), http.MethodGet, adminPrefix+"stats", nil)
	if err != nil {
		return err
	}
	if c.is("json") {
		return c.printJSON(answer)
	}
	var counts statsAnswer
	if err := json.Unmarshal(answer, &counts); err != nil {
		return fmt.Errorf("understand the counts: %w", err)
	}
	rows := [][]string{{"STORE", "UNKNOWN", "OLDEST", "RUNNING", "ATTEMPTS", "WAITERS", "FILE"}}
	for _, s := range counts.Stores {
		rows = append(rows, []string{
			s.Store, strconv.Itoa(s.Unknown), cmp.Or(s.OldestUnknown, "-"), strconv.Itoa(s.Running),
			strconv.Itoa(s.Attempts), strconv.Itoa(s.Waiters), cmp.Or(plain(s.Path, 0), "-"),
		})
	}
	return printTable(c.OutOrStdout(), rows)
}
