package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// ran is how a command has ended.
type ran struct {
	out, err string
	code     int
}

// cli runs caddy idempotency, as an operator on the gateway's machine does.
func (g *gateway) cli(args ...string) ran {
	g.t.Helper()
	cmd := exec.Command(gatewayBinary(g.t), append([]string{"idempotency", "--address", g.admin}, args...)...)
	return runCommand(g.t, cmd, g.environment())
}

func runCommand(t *testing.T, cmd *exec.Cmd, env []string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, env
	r := ran{}
	if err := cmd.Run(); err != nil {
		exit, ended := errors.AsType[*exec.ExitError](err)
		if !ended {
			t.Fatalf("%v: %v", cmd.Args, err)
		}
		r.code = exit.ExitCode()
	}
	r.out, r.err = out.String(), errs.String()
	return r
}

// done runs caddy idempotency, which must succeed, and returns what it prints.
func (g *gateway) done(args ...string) string {
	g.t.Helper()
	r := g.cli(args...)
	if r.code != 0 {
		g.t.Fatalf("caddy idempotency %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// resolve decides on a job's unknown attempt.
func (g *gateway) resolve(job, as string, more ...string) {
	g.t.Helper()
	g.done(append([]string{"resolve", job, "--as", as, "--evidence", "the bank's journal", "--actor", "night shift", "--yes"}, more...)...)
}

// shown is what an operator is shown of a job.
type shown struct {
	ID       string         `json:"id"`
	State    string         `json:"state"`
	Count    int            `json:"attempt_count"`
	Attempts []shownAttempt `json:"attempts"`
	Result   struct {
		Attempt int `json:"attempt"`
		Status  int `json:"status"`
	} `json:"result"`
}

type shownAttempt struct {
	Number   int    `json:"number"`
	Provider string `json:"provider"`
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Evidence struct {
		Upstream  string `json:"upstream"`
		Observed  bool   `json:"observed"`
		Connected int    `json:"connected"`
		Sent      int    `json:"sent"`
		FirstByte int    `json:"first_byte"`
		Resent    bool   `json:"resent"`
		Status    int    `json:"status"`
	} `json:"evidence"`
	Resolution struct {
		As       string `json:"as"`
		Actor    string `json:"actor"`
		Evidence string `json:"evidence"`
	} `json:"resolution"`
	Lookups struct {
		Count  int    `json:"count"`
		Status int    `json:"status"`
		Note   string `json:"note"`
	} `json:"lookups"`
}

func (g *gateway) show(job string) (s shown) {
	g.t.Helper()
	if err := json.Unmarshal([]byte(g.done("show", job, "--json")), &s); err != nil {
		g.t.Fatalf("caddy idempotency show --json: %v", err)
	}
	return s
}

// look is show without a process: for what is looked at again and again.
func (g *gateway) look(job string) (s shown) {
	g.t.Helper()
	status, body, err := get("http://" + g.admin + "/idempotency/jobs/" + job)
	if err == nil && status == http.StatusOK {
		err = json.Unmarshal([]byte(body), &s)
	}
	if err != nil || status != http.StatusOK {
		g.t.Fatalf("look at job %s: status %d, %v, %s", job, status, err, body)
	}
	return s
}

// attempt returns the job's attempt with this number.
func (s shown) attempt(t *testing.T, number int) shownAttempt {
	t.Helper()
	i := slices.IndexFunc(s.Attempts, func(a shownAttempt) bool { return a.Number == number })
	if i < 0 {
		t.Fatalf("job %s has no attempt %d: %+v", s.ID, number, s)
	}
	return s.Attempts[i]
}

// list returns the jobs that caddy idempotency list shows, by default the unknown ones.
func (g *gateway) list(args ...string) (ids []string) {
	g.t.Helper()
	var page struct {
		Jobs []shown `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(g.done(append([]string{"list", "--json", "--limit", "0"}, args...)...)), &page); err != nil {
		g.t.Fatalf("caddy idempotency list --json: %v", err)
	}
	for _, j := range page.Jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// events returns how many events the gateway has told of, by name.
func (g *gateway) events() map[string]int {
	g.t.Helper()
	return g.counts("caddy_idempotency_events_total", "event")
}

// incidents returns how many incidents the gateway has counted, by name.
func (g *gateway) incidents() map[string]int {
	g.t.Helper()
	return g.counts("caddy_idempotency_incidents_total", "incident")
}

// wantTold checks that Caddy's events app has told subscribers of an event, and
// that the log has a line of this level with this message.
func (g *gateway) wantTold(event, level, msg string) {
	g.t.Helper()
	var told, logged bool
	eventually(g.t, "the gateway tells of "+event+" and logs "+msg, func() bool {
		for line := range strings.Lines(g.log()) {
			var entry struct{ Level, Msg, Name string }
			if json.Unmarshal([]byte(line), &entry) != nil {
				continue
			}
			told = told || (entry.Msg == "event" && entry.Name == "idempotency_"+event)
			logged = logged || (entry.Level == level && entry.Msg == msg)
		}
		return told && logged
	})
}
