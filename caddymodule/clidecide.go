package caddymodule

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"
)

func (c *cli) resolve() *cobra.Command {
	cmd := c.command("resolve <job> --as <state> --evidence <text>", "Decides on an attempt whose outcome is unknown", `
Decides on an attempt of which nobody knows whether it was executed:

  --as succeeded  it was executed. Retries get the response in --response, and
                  nothing is executed any more.
  --as failed     it was not executed. The next retry is.
  --as cancelled  it counts for nothing, whatever became of it. The next retry is
                  executed.

failed and cancelled permit a second execution, and so have to be confirmed: by
typing yes, or with --yes. Evidence and actor are kept with the attempt. Whoever
decides second, and a decision that comes after a late result, is refused, with
exit code 4. An attempt that is still running can't be resolved.

The file of --response holds a response as curl -i prints it: the status line,
the header, an empty line, the body. Cookies and what concerns one connection are
left out of what retries get. The word kept in its place is the answer that broke
the contract and was kept with the attempt, as show tells.

Example:
  $ caddy idempotency resolve 8c6e…7a01.5f3b2c1d --as cancelled --evidence "not in the bank's journal of 3 May"
  $ curl -si https://api.example.com/charges/ch_17 >answer
  $ caddy idempotency resolve 8c6e…7a01.5f3b2c1d --as succeeded --response answer --evidence "charge ch_17"
`, (*call).runResolve)
	flags := cmd.Flags()
	flags.Int("attempt", 0, "Number of the attempt (default: the only unknown one)")
	flags.String("as", "", "What it is resolved as: succeeded, failed or cancelled (required)")
	flags.String("evidence", "", "What the decision rests on (required)")
	flags.String("actor", "", "Who decides (default: the user of the operating system)")
	flags.String("response", "", "File with the response that retries get, - for standard input, kept for the one that was kept; with succeeded")
	flags.Bool("yes", false, "Do not ask for confirmation")
	flags.String("store", "", storeHelp)
	cmd.Args = cobra.ExactArgs(1)
	return cmd
}

// keptResponse is the word for the answer that an attempt has kept. A file of this
// name is ./kept.
const keptResponse = "kept"

func (c *call) runResolve(args []string) error {
	id := args[0]
	req := resolveRequest{Attempt: c.number("attempt"), As: c.text("as"), Evidence: c.text("evidence")}
	file := c.text("response")
	succeeded := req.As == "succeeded"
	switch {
	case !succeeded && req.As != "failed" && req.As != "cancelled":
		return errors.New("say what the attempt is resolved as: --as succeeded, --as failed or --as cancelled")
	case strings.TrimSpace(req.Evidence) == "":
		return errors.New("say what the decision rests on: --evidence \"…\"")
	case succeeded && file == "":
		return errors.New("say what retries shall get: --response <file>, with a response as curl -i prints it")
	case !succeeded && file != "":
		return fmt.Errorf("--response: an attempt that is resolved as %s has none", req.As)
	}
	var err error
	if req.Actor, err = c.actor(); err != nil {
		return err
	}
	switch file {
	case "":
	case keptResponse:
		req.Kept = true
	default:
		if req.Response, err = c.readResponseFile(file); err != nil {
			return fmt.Errorf("--response %s: %w", file, err)
		}
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	if !succeeded && !c.is("yes") {
		if err := c.confirmResolve(client, id, &req); err != nil {
			return err
		}
	}
	answer, err := client.call(c.Context(), http.MethodPost, c.jobPath(id, "resolve"), req)
	if err != nil {
		return err
	}
	if c.is("json") {
		return c.printJSON(answer)
	}
	var job jobView
	if err := json.Unmarshal(answer, &job); err != nil {
		return fmt.Errorf("understand the job: %w", err)
	}
	next := "it is still " + job.State + ", as there is another unresolved attempt"
	switch job.State {
	case "open":
		next = "it is open, and the next retry is executed"
	case "completed":
		next = fmt.Sprintf("it is completed, and retries get status %d with %s", job.Result.Status, size(job.Result.Size))
	}
	return c.say("Resolved as %s by %s. Job %s: %s.", req.As, req.Actor, job.ID, next)
}

// showBeforeAsking shows the job that is to be decided on, if there is somebody to
// ask.
func (c *call) showBeforeAsking(client *adminClient, id string) (*jobView, error) {
	if err := c.mustAsk(); err != nil {
		return nil, err
	}
	answer, err := client.call(c.Context(), http.MethodGet, c.jobPath(id, ""), nil)
	if err != nil {
		return nil, err
	}
	job := new(jobView)
	if err := json.Unmarshal(answer, job); err != nil {
		return nil, fmt.Errorf("understand the job: %w", err)
	}
	return job, printJob(c.ErrOrStderr(), job)
}

// confirmResolve shows what is decided on. What is then decided on is what was
// shown, also if another attempt is unknown by then.
func (c *call) confirmResolve(client *adminClient, id string, req *resolveRequest) error {
	job, err := c.showBeforeAsking(client, id)
	if err != nil {
		return err
	}
	if req.Attempt == 0 {
		switch job.unknown() {
		case 0:
			return &callError{exit: exitConflict, err: errors.New("no attempt of this job is unknown, so that there is nothing to decide; nothing was done")}
		case 1:
			req.Attempt = job.decisive().Number
		default:
			return &callError{exit: exitConflict, err: errors.New("several attempts of this job are unknown; nothing was done. Say which is meant with --attempt")}
		}
	}
	return c.ask(fmt.Sprintf("Resolved as %s, the next retry of this job is executed. If the attempt was executed after all, that makes two.", req.As))
}

// unknown is how many of the job's attempts are.
func (j *jobView) unknown() (n int) {
	for i := range j.Attempts {
		if j.Attempts[i].State == "unknown" {
			n++
		}
	}
	return n
}

func (c *cli) forget() *cobra.Command {
	cmd := c.command("forget <job>", "Drops a completed job, so that its key is new", `
Drops a completed job before its time. Its key is new from then on: a request that
comes with it is executed. So it has to be confirmed, by typing yes or with --yes.

A job that is not completed can't be forgotten, nor one of which an attempt may
still report: its late result would find nobody who remembers.

Example:
  $ caddy idempotency forget 8c6e…7a01.5f3b2c1d
`, (*call).runForget)
	cmd.Flags().String("actor", "", "Who decides (default: the user of the operating system)")
	cmd.Flags().Bool("yes", false, "Do not ask for confirmation")
	cmd.Flags().String("store", "", storeHelp)
	cmd.Args = cobra.ExactArgs(1)
	return cmd
}

func (c *call) runForget(args []string) error {
	id := args[0]
	actor, err := c.actor()
	if err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	if !c.is("yes") {
		if _, err := c.showBeforeAsking(client, id); err != nil {
			return err
		}
		if err := c.ask("Once this job is forgotten, a request with its key is executed, whatever it asks for."); err != nil {
			return err
		}
	}
	answer, err := client.call(c.Context(), http.MethodPost, c.jobPath(id, "forget"), forgetRequest{Actor: actor})
	if err != nil {
		return err
	}
	if c.is("json") {
		return c.printJSON(answer)
	}
	return c.say("Job %s is forgotten. Its key is new.", plain(id, 0))
}

// mustAsk refuses what needs a confirmation where nobody can give it.
func (c *call) mustAsk() error {
	if c.cli.terminal(c.InOrStdin()) {
		return nil
	}
	return errors.New("this permits another execution and has to be confirmed, but standard input is no terminal; nothing was done. Confirm with --yes")
}

// ask asks for confirmation.
func (c *call) ask(consequence string) error {
	c.PrintErrf("\n%s\nType yes to go on: ", consequence)
	line, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if strings.TrimSpace(line) != "yes" {
		return errors.New("not confirmed; nothing was done")
	}
	return nil
}

// actor is who decides. Behind sudo it is the person, not the account.
func (c *call) actor() (string, error) {
	if name := strings.TrimSpace(c.text("actor")); name != "" {
		return name, nil
	}
	if name := os.Getenv("SUDO_USER"); name != "" {
		return name, nil
	}
	u, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("find out who decides: %w; say it with --actor", err)
	}
	return u.Username, nil
}
