package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "idempotency",
		Usage: "<command>",
		Short: "Shows jobs whose outcome is unknown, and settles them",
		Long: `
Shows the jobs of the idempotency handlers of the Caddy that is running, settles
those of which nobody knows whether they were executed, has providers proven, and
says which failure could lose a job. The commands talk to its admin endpoint: the one
at --address, else the one in the file given by --config, else the default one.

Where an admin token is configured, give it in the environment variable
` + envToken + `. What stands on a command line can be read by
every user of the machine.

` + exitCodesHelp,
		CobraFunc: func(cmd *cobra.Command) { new(cli{terminal: isTerminal}).commands(cmd) },
	})
}

// The environment variables from which flags with secrets have their defaults.
const (
	envToken = "IDEMPOTENCY_ADMIN_TOKEN" //nolint:gosec // the name of a secret's place, not a secret
	envOwner = "IDEMPOTENCY_OWNER"
	envKey   = "IDEMPOTENCY_KEY"
)

// The exit codes. Caddy itself ends with 2 or 3 only where it serves.
const (
	exitError       = 1
	exitNoJob       = 3
	exitConflict    = 4
	exitUnreachable = 5
	exitNotProven   = 6
	exitWarning     = 7
	exitDanger      = 8
)

const exitCodesHelp = `Exit codes:
  0  done
  1  wrong usage, a decision that is not complete or was not confirmed, or
     another error
  3  there is no such job
  4  the job is not in a state for that, or not any more: somebody else has
     decided, or a late result has come; the present state is shown
  5  Caddy, its admin endpoint or the store can't be reached, or refuses the
     token
  6  a provider was not proven
  7  doctor has found something to be warned of
  8  doctor has found a danger`

// cli has the commands that operators use.
type cli struct {
	// terminal reports whether there is somebody to ask.
	terminal func(io.Reader) bool
}

func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// commands adds the commands to their parent.
func (c *cli) commands(parent *cobra.Command) {
	parent.Args = cobra.NoArgs // a misspelt command is an error
	parent.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	flags := parent.PersistentFlags()
	flags.String("address", "", "Address of the admin endpoint, if different from the config's")
	flags.StringP("config", "c", "", "Configuration file in which the address is looked for")
	flags.StringP("adapter", "a", "", "Name of the config adapter to apply")
	flags.String("token", "", "Admin token (better: $"+envToken+")")
	flags.Bool("json", false, "Print what the admin API answers, as JSON")
	parent.AddCommand(c.list(), c.show(), c.resolve(), c.forget(), c.stats(), c.providers(), c.prove(), c.doctor())
}

// command returns a command with its help, which ends with an example.
func (c *cli) command(use, short, long string, run func(*call, []string) error) *cobra.Command {
	long, example, _ := strings.Cut(strings.TrimSpace(long), "\nExample:\n")
	return &cobra.Command{
		Use: use, Short: short, Long: strings.TrimSpace(long) + "\n\n" + exitCodesHelp, Example: example,
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceErrors = true // what is wrong with the flags has been said before
			return c.end(cmd, run(&call{Command: cmd, cli: c}, args))
		},
	}
}

// call is one use of a command.
type call struct {
	*cobra.Command
	cli *cli
}

func (c *call) text(flag string) string {
	value, _ := c.Flags().GetString(flag)
	return value
}

func (c *call) number(flag string) int {
	value, _ := c.Flags().GetInt(flag)
	return value
}

func (c *call) is(flag string) bool {
	value, _ := c.Flags().GetBool(flag)
	return value
}

// secret is the value of a flag whose default is in the environment.
func (c *call) secret(flag, env string) string {
	if c.Flags().Changed(flag) {
		return c.text(flag)
	}
	return os.Getenv(env)
}

// say prints a line.
func (c *call) say(format string, args ...any) error {
	_, err := fmt.Fprintf(c.OutOrStdout(), format+"\n", args...)
	return err
}

// printJSON prints what the API has answered. What a terminal could take for more than
// text is escaped, some of which JSON would let stand; it says the same.
func (c *call) printJSON(answer any) error {
	text, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		return err
	}
	out := make([]byte, 0, len(text)+1)
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	_, err = c.OutOrStdout().Write(append(out, '\n'))
	return err
}

// end says how a command has ended, and gives the process its exit code.
func (c *cli) end(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	cmd.PrintErrln("Error:", err)
	code := exitError
	if r, ok := errors.AsType[*callError](err); ok {
		code = r.exit
		printing := &call{Command: cmd, cli: c}
		if printing.is("json") && len(r.answer) > 0 {
			_ = printing.printJSON(r.answer)
		} else if r.problem.Job != nil {
			cmd.PrintErrln("\nThe job at present:")
			_ = printJob(cmd.ErrOrStderr(), r.problem.Job)
		}
	}
	if code == exitError {
		return err
	}
	// Only Caddy can make the error that carries an exit code.
	return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return code, nil })(cmd, nil)
}
