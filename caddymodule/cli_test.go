package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// asCaddy is the environment variable that makes the test binary behave as
// caddy: exit codes are a matter between our commands and Caddy's main function.
const asCaddy = "IDEMPOTENCY_TEST_AS_CADDY"

// ran is how a command has ended.
type ran struct {
	out, err string
	code     int
}

// caddyCommand runs caddy idempotency with these arguments, as a process.
func caddyCommand(t *testing.T, env []string, args ...string) ran {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"idempotency"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(append(os.Environ(), asCaddy+"=1"), env...)
	err := cmd.Run()
	exit, ended := errors.AsType[*exec.ExitError](err)
	if err != nil && !ended {
		t.Fatal(err)
	}
	r := ran{out.String(), errs.String(), 0}
	if ended {
		r.code = exit.ExitCode()
	}
	return r
}

// atTerminal runs a command in this process, with somebody who types.
func atTerminal(t *testing.T, typed string, args ...string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	parent := &cobra.Command{Use: "idempotency"}
	c := &cli{terminal: func(io.Reader) bool { return true }}
	c.commands(parent)
	parent.SetArgs(args)
	parent.SetIn(strings.NewReader(typed))
	parent.SetOut(&out)
	parent.SetErr(&errs)
	r := ran{}
	if err := parent.ExecuteContext(t.Context()); err != nil {
		r.code = exitError
		if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.Type().Elem().Name() == "exitError" {
			r.code = int(v.Elem().FieldByName("ExitCode").Int()) // Caddy does not export its type
		}
	}
	r.out, r.err = out.String(), errs.String()
	return r
}

func (r ran) want(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.out+r.err, part) {
			t.Errorf("it does not say %q:\n%s%s", part, r.out, r.err)
		}
	}
}

var changing = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`[0-9a-f]{64}\.[0-9a-f]{8}`), "ID"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "DIGEST"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:]+Z`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b(\d+m)?[0-9.]+m?s\b`), "AGE"},
	{regexp.MustCompile(` {2,}`), "  "},
}

// steady replaces what is different each time.
func steady(text string) string {
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.name)
	}
	return text
}

func TestCLIShowsAndSettles(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner {http.request.header.X-User}"))
	load(t, config)
	id := post(t, "/first-dies", "order-17", "X-User", "alice", "Content-Type", "text/plain").header.Get("Idempotency-Job")
	at := []string{"--address", admin}

	r := caddyCommand(t, nil, append(at, "list")...)
	r.want(t, 0)
	if got, want := steady(r.out), `AGE  STATE  ATTEMPTS  REQUEST  REASON  JOB
AGE  unknown  1  POST /first-dies  broke off: no complete answer came  ID
`; got != want {
		t.Errorf("list:\n%s\nwant\n%s", got, want)
	}
	const shown = `job  ID
state  unknown
store  bolt
space  main
owner  DIGEST (a digest)
request  POST /first-dies
body  text/plain 9 B
created  TIME, AGE ago
expires  never, as long as it is unknown
attempts  1
result  none

attempt 1  unknown
  reason  broke off: no complete answer came
  started  TIME
  ended  TIME, after AGE
  lease  until TIME
  upstream  ADDRESS
  transport  connected, the whole request was sent, no answer began
`
	for _, r := range []ran{
		caddyCommand(t, nil, append(at, "show", id)...),
		caddyCommand(t, []string{envOwner + "=alice", envKey + "=order-17"}, append(at, "show")...),
		caddyCommand(t, nil, append(at, "show", "--owner", "alice", "--key", `"order-17"`)...),
	} {
		r.want(t, 0)
		if got := steady(r.out); got != shown {
			t.Errorf("show:\n%s\nwant\n%s", got, shown)
		}
	}
	eventually(t, "its attempt is over", func() bool {
		return strings.Contains(ask(t, admin, "GET", "stats", "").body, `"attempts":0`)
	})
	r = caddyCommand(t, nil, append(at, "stats")...)
	r.want(t, 0)
	if got, want := steady(r.out), "STORE  UNKNOWN  OLDEST  RUNNING  ATTEMPTS  WAITERS  FILE\nbolt  1  AGE  0  0  0  "; !strings.HasPrefix(got, want) {
		t.Errorf("stats:\n%s\nwant\n%s", got, want)
	}

	r = caddyCommand(t, nil, append(at, "resolve", id, "--as", "cancelled", "--evidence", "not in the journal", "--actor", "bob", "--yes")...)
	r.want(t, 0, "Resolved as cancelled by bob. Job "+id+": it is open, and the next retry is executed.")
	caddyCommand(t, nil, append(at, "show", id)...).want(t, 0, "as cancelled by bob, ", "not in the journal")
	r = caddyCommand(t, nil, append(at, "resolve", id, "--as", "failed", "--evidence", "e", "--yes")...)
	r.want(t, exitConflict, "has no unknown attempt", "The job at present:", "cancelled by bob")

	if a := post(t, "/first-dies", "order-17", "X-User", "alice", "Content-Type", "text/plain"); a.body != "order-17 /first-dies execution 2" {
		t.Errorf("a retry got %+v", a)
	}
	caddyCommand(t, nil, append(at, "list")...).want(t, 0, "There are no such jobs.")
	caddyCommand(t, nil, append(at, "show", id)...).want(t, 0, "completed", "status 200, 32 B, of attempt 2")
	caddyCommand(t, nil, append(at, "forget", id, "--yes")...).want(t, 0, "Job "+id+" is forgotten. Its key is new.")
	caddyCommand(t, nil, append(at, "forget", id, "--yes")...).want(t, exitNoJob, "no such job")
}

func TestCLIResolvesAsSucceeded(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	id := makeUnknown(t, "k")
	file := filepath.Join(t.TempDir(), "answer")
	answer := "HTTP/2 201 \r\ncontent-type: application/json\r\nset-cookie: s=1\r\ntransfer-encoding: chunked\r\n\r\n{\"id\":\"ch_17\"}"
	if err := os.WriteFile(file, []byte(answer), 0o600); err != nil {
		t.Fatal(err)
	}
	caddyCommand(t, nil, "--address", admin, "resolve", id, "--as", "succeeded", "--evidence", "charge ch_17", "--response", file, "--actor", "bob").
		want(t, 0, "Resolved as succeeded by bob.", "it is completed, and retries get status 201 with 14 B.")
	if a := post(t, "/die/k", "k"); a.status != 201 || a.body != `{"id":"ch_17"}` || a.header.Get("Content-Type") != "application/json" ||
		a.header.Get("Set-Cookie") != "" || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("a retry got %+v", a)
	}
}

// What permits a second execution is asked about, and refused where nobody can
// answer.
func TestCLIConfirmation(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	id, done := makeUnknown(t, "k"), post(t, "/pay", "done").header.Get("Idempotency-Job")
	resolve := []string{"--address", admin, "resolve", id, "--as", "failed", "--evidence", "e"}
	forget := []string{"--address", admin, "forget", done}

	for _, args := range [][]string{resolve, forget} {
		caddyCommand(t, nil, args...).want(t, exitError, "Confirm with --yes", "nothing was done")
		for _, typed := range []string{"", "\n", "no\n", "y\n", "YES\n"} {
			atTerminal(t, typed, args...).want(t, exitError, "Type yes to go on:", "not confirmed; nothing was done")
		}
	}
	if j := ask(t, admin, "GET", "jobs/"+id, "").job(t); j.State != "unknown" {
		t.Errorf("the job is %s", j.State)
	}
	ask(t, admin, "GET", "jobs/"+done, "").job(t)

	atTerminal(t, "yes\n", resolve...).want(t, 0, "the whole request was sent", "If the attempt was executed after all, that makes two.", "Resolved as failed by ")
	atTerminal(t, "yes\n", forget...).want(t, 0, "a request with its key is executed", "Its key is new.")
	atTerminal(t, "yes\n", forget...).want(t, exitNoJob, "no such job")
}

func TestCLIJSON(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	ids := []string{makeUnknown(t, "k1"), makeUnknown(t, "k2"), makeUnknown(t, "k3")}
	run := func(code int, into any, args ...string) {
		t.Helper()
		r := caddyCommand(t, nil, append([]string{"--address", admin, "--json"}, args...)...)
		r.want(t, code)
		if err := json.Unmarshal([]byte(r.out), into); err != nil {
			t.Errorf("%v: %v: %s", args, err, r.out)
		}
	}
	var page jobsPage
	if run(0, &page, "list"); len(page.Jobs) != 3 || page.Next != "" || page.Jobs[0].Attempts[0].Evidence.Sent != 1 {
		t.Errorf("list %+v", page)
	}
	var part, rest jobsPage
	run(0, &part, "list", "--limit", "2")
	run(0, &rest, "list", "--cursor", part.Next)
	if len(part.Jobs) != 2 || len(rest.Jobs) != 1 || part.Jobs[0].ID == rest.Jobs[0].ID || part.Jobs[1].ID == rest.Jobs[0].ID {
		t.Errorf("pages %+v, %+v", part, rest)
	}
	var none struct{ Jobs []any }
	if run(0, &none, "list", "--space", "nosuch"); none.Jobs == nil || len(none.Jobs) != 0 {
		t.Errorf("none %+v", none)
	}
	var j jobView
	if run(0, &j, "show", ids[0]); j.ID != ids[0] {
		t.Errorf("show %+v", j)
	}
	if run(0, &j, "resolve", ids[0], "--as", "cancelled", "--evidence", "e", "--yes"); j.State != "open" {
		t.Errorf("resolve %+v", j)
	}
	var stats statsAnswer
	if run(0, &stats, "stats"); len(stats.Stores) != 1 || stats.Stores[0].Unknown != 2 {
		t.Errorf("stats %+v", stats)
	}
	var p adminError
	if run(exitConflict, &p, "resolve", ids[0], "--as", "failed", "--evidence", "e", "--yes"); p.Code != codeNotResolvable || p.Job == nil {
		t.Errorf("refused with %+v", p)
	}
}

func TestCLIExitCodes(t *testing.T) {
	u := newUpstream(t)
	t.Setenv("TEST_ADMIN_TOKEN", "t0ken")
	config, admin := adminSite(t, "idempotency {\nadmin_token {env.TEST_ADMIN_TOKEN}\n}", protect(u, "owner shared"))
	load(t, config)
	id := makeUnknown(t, "k")
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	nobody := "127.0.0.1:" + testport.Take(t)
	right := []string{envToken + "=t0ken"}
	resolve := []string{"--address", admin, "resolve", id}
	for name, c := range map[string]struct {
		env  []string
		args []string
		code int
		says string
	}{
		"token in the environment":     {right, []string{"--address", admin, "list"}, 0, id},
		"token with a line's end":      {[]string{envToken + "=t0ken\r\n"}, []string{"--address", admin, "list"}, 0, id},
		"token on the command line":    {nil, []string{"--address", admin, "--token", "t0ken", "list"}, 0, id},
		"address in the configuration": {right, []string{"list", "--config", file, "--adapter", "caddyfile"}, 0, id},
		"nobody there":                 {right, []string{"--address", nobody, "list"}, exitUnreachable, "is it running there?"},
		"no token":                     {nil, []string{"--address", admin, "list"}, exitUnreachable, envToken},
		"wrong token":                  {[]string{envToken + "=x"}, []string{"--address", admin, "show", id}, exitUnreachable, envToken},
		"something else there":         {right, []string{"--address", u.Listener.Addr().String(), "list", "--state", "any"}, exitError, "understand"},
		"no such job":                  {right, []string{"--address", admin, "show", id[:64] + ".00000000"}, exitNoJob, "no such job"},
		"no such key":                  {right, []string{"--address", admin, "show", "--shared", "--key", "other"}, exitNoJob, "no such job"},
		"no such command":              {right, []string{"--address", admin, "lists"}, exitError, "lists"},
		"no such flag":                 {right, []string{"--address", admin, "list", "--old"}, exitError, "--old"},
		"no such state":                {right, []string{"--address", admin, "list", "--state", "lost"}, exitError, "open, running, unknown or completed"},
		"no such address":              {right, []string{"--address", "a:1-5", "list"}, exitError, "--address host:port"},
		"which job":                    {right, []string{"--address", admin, "show"}, exitError, "name a job"},
		"as what":                      {right, append(resolve, "--evidence", "e"), exitError, "--as succeeded"},
		"on what evidence":             {right, append(resolve, "--as", "failed", "--yes"), exitError, "--evidence"},
		"with what response":           {right, append(resolve, "--as", "succeeded", "--evidence", "e"), exitError, "--response"},
		"with a response, but failed":  {right, append(resolve, "--as", "failed", "--evidence", "e", "--response", file), exitError, "--response"},
		"with no response at all":      {right, append(resolve, "--as", "succeeded", "--evidence", "e", "--response", file), exitError, "status line"},
		"of no attempt":                {right, append(resolve, "--as", "failed", "--evidence", "e", "--yes", "--attempt", "7"), exitError, "no attempt 7"},
		"not completed":                {right, []string{"--address", admin, "forget", id, "--yes"}, exitConflict, "can't be forgotten"},
	} {
		t.Run(name, func(t *testing.T) {
			r := caddyCommand(t, c.env, c.args...)
			r.want(t, c.code, c.says)
			if c.code != 0 && (r.out != "" || strings.Count(r.err, "Error:") != 1) {
				t.Errorf("stdout %q, stderr %q", r.out, r.err)
			}
		})
	}
	if j := ask(t, admin, "GET", "jobs/"+id, "", "Authorization", "Bearer t0ken").job(t); j.State != "unknown" {
		t.Errorf("the job is %s", j.State)
	}
}

func TestCLIOverAUnixSocket(t *testing.T) {
	u := newUpstream(t)
	dir, err := os.MkdirTemp("", "admin") // a path that is short enough
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := "unix/" + filepath.Join(dir, "s") + "|0600"
	load(t, strings.Replace(site(t, protect(u, "owner shared")), "admin off", "admin "+socket, 1))
	id := makeUnknown(t, "k")
	caddyCommand(t, nil, "--address", socket, "list").want(t, 0, id)
}

func TestCLIHelp(t *testing.T) {
	caddyCommand(t, nil).want(t, 0, "Exit codes:", "list", "show", "resolve", "forget", "stats")
	for _, command := range []string{"list", "show", "resolve", "forget", "stats"} {
		caddyCommand(t, nil, command, "--help").want(t, 0, "Examples:\n  $ ", "caddy idempotency "+command, "Exit codes:", "--json", "--address")
	}
}

// Nobody is asked to confirm what can't be done.
func TestCLIResolvesOnlyWhatIsUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		states []string
		exit   int
		says   string
	}{
		"none":    {[]string{"succeeded"}, exitConflict, "nothing to decide"},
		"several": {[]string{"unknown", "unknown"}, exitConflict, "--attempt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := jobView{ID: "j"}
			for i, state := range c.states {
				job.Attempts = append(job.Attempts, attemptView{Number: i + 1, State: state})
			}
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				_ = json.NewEncoder(w).Encode(job)
			}))
			t.Cleanup(s.Close)
			args := []string{"--address", s.Listener.Addr().String(), "resolve", "j", "--as", "failed", "--evidence", "e"}
			r := atTerminal(t, "yes\n", args...)
			r.want(t, c.exit, "attempt 1", c.says, "nothing was done")
			if strings.Contains(r.err, "Type yes") {
				t.Errorf("asked: %s", r.err)
			}
		})
	}
}

func TestCLINamesTheStore(t *testing.T) {
	u := newUpstream(t)
	dir := t.TempDir()
	config, admin := adminSite(t, "", "handle /die/* {\n"+protect(u, "owner shared\nstore bolt "+filepath.Join(dir, "a.db"))+"\n}\nhandle {\n"+
		protect(u, "owner shared\nstore bolt "+filepath.Join(dir, "b.db"))+"\n}")
	load(t, config)
	id, done := makeUnknown(t, "k"), post(t, "/pay", "done").header.Get("Idempotency-Job")
	for _, c := range []struct {
		right, wrong string
		args         []string
	}{
		{"bolt-1", "bolt-2", []string{"resolve", id, "--as", "failed", "--evidence", "e"}},
		{"bolt-2", "bolt-1", []string{"forget", done}},
	} {
		args := append([]string{"--address", admin}, c.args...)
		atTerminal(t, "yes\n", append(args, "--store", c.wrong)...).want(t, exitNoJob, "no such job")
		caddyCommand(t, nil, append(args, "--yes", "--store", c.wrong)...).want(t, exitNoJob, "no such job")
		atTerminal(t, "yes\n", append(args, "--store", c.right)...).want(t, 0, "Type yes")
	}
}
