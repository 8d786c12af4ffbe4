package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// page is a page of the documentation whose commands are run, one after the
// other, and must print what the page says.
type page struct {
	t    *testing.T
	g    *gateway
	up   *upstream
	env  []string
	jobs map[string]string // ids, from the page's to the real ones
}

// What varies from run to run. Ids of jobs are in their place compared by
// position, and told apart before this.
var varying = []struct {
	what *regexp.Regexp
	by   string
}{
	{jobID, "<job>"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "<digest>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "<time>"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT`), "<time>"},
	{regexp.MustCompile(`"(ts|duration|timeout|linger)":[0-9.e+-]+`), `"$1":<number>`},
	{regexp.MustCompile(`"at":\d+`), `"at":<number>`},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(h|ms|m|s))+\b`), "<duration>"},
	{regexp.MustCompile(`\b\d+(\.\d+){3}:\d+\b`), "<address>"},
	{regexp.MustCompile(`(/[^/\s]+)+/idempotency\.db`), "<file>"},
	{regexp.MustCompile(` {2,}`), "  "}, // the width of a column goes by what is in it
	{regexp.MustCompile(`[ \r]+\n`), "\n"},
}

var jobID = regexp.MustCompile(`[0-9a-f]{64}\.[0-9a-f]{8}`)

func withoutWhatVaries(s string) string {
	s += "\n"
	for _, v := range varying {
		s = v.what.ReplaceAllString(s, v.by)
	}
	return strings.TrimSpace(s)
}

// real puts the real ids, addresses and so on into a command of the page.
func (p *page) real(command string) string {
	command = jobID.ReplaceAllStringFunc(command, func(id string) string {
		if p.jobs[id] == "" {
			p.t.Fatalf("the page names a job that no output before has shown: %s", command)
		}
		return p.jobs[id]
	})
	return strings.NewReplacer("http://localhost:8080", p.g.url(0), "http://localhost:2019", "http://"+p.g.admin).Replace(command)
}

// learn pairs the ids of an output with those that the page has in its place.
func (p *page) learn(command, said, real string) {
	ids := jobID.FindAllString(real, -1)
	for i, id := range jobID.FindAllString(said, -1) {
		if i >= len(ids) || (p.jobs[id] != "" && p.jobs[id] != ids[i]) {
			p.t.Errorf("the output of\n%s\nis about another job than the page says", command)
			return
		}
		p.jobs[id] = ids[i]
	}
}

// run runs a command of the page and compares what it prints.
func (p *page) run(command, said string) {
	p.t.Helper()
	cmd := exec.Command("sh", "-c", "exec 2>&1; "+p.real(command))
	cmd.Dir = p.g.dir
	real := runCommand(p.t, cmd, p.env).out
	if got, want := withoutWhatVaries(real), withoutWhatVaries(said); got != want {
		p.t.Fatalf("$ %s\nprints\n%s\nbut the page says\n%s\n\ncompared as\n%s\nand\n%s", command, real, said, got, want)
	}
	p.learn(command, said, real)
}

// logged checks that the gateway has logged a line.
func (p *page) logged(line string) {
	p.t.Helper()
	want := withoutWhatVaries(line)
	eventually(p.t, "the log has the line\n"+want, func() bool {
		return strings.Contains("\n"+withoutWhatVaries(p.g.log())+"\n", "\n"+want+"\n")
	})
}

// answer makes the upstream answer a request at last, and waits until the gateway
// has made of it what there is to make of it.
func (p *page) answer(key string) {
	p.t.Helper()
	ends := func() int {
		i := p.g.incidents()
		return i["late_result"] + i["discarded"] + i["contradicted"]
	}
	before := ends()
	p.up.release(key)
	eventually(p.t, "the late answer of "+key+" is recorded", func() bool { return ends() > before })
}

var answers = regexp.MustCompile(`^<!-- the upstream answers (\S+) -->$`)

// follow does what the page says, and returns how many commands it has.
func (p *page) follow(text string) (commands int) {
	p.t.Helper()
	var block, command string
	var said []string
	end := func() {
		switch {
		case block == "console" && command != "":
			commands++
			p.run(command, strings.Join(said, "\n"))
		case block == "json":
			p.logged(strings.Join(said, "\n"))
		}
		command, said = "", nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		language, fence := strings.CutPrefix(line, "```")
		next, prompt := strings.CutPrefix(line, "$ ")
		switch event := answers.FindStringSubmatch(line); {
		case fence:
			end()
			block = language
		case block == "console" && prompt:
			end()
			command = next
			if !strings.HasPrefix(next, "caddy idempotency ") && !strings.HasPrefix(next, "curl ") && !strings.Contains(next, " caddy idempotency ") {
				p.t.Errorf("a command that is none of those that are tested: %s", next)
			}
		case block != "":
			said = append(said, line)
		case event != nil:
			p.answer(event[1])
		}
	}
	return commands
}

// startOperating starts a gateway on which three requests have timed out, and
// whose upstream still works on them.
func startOperating(t *testing.T) *page {
	t.Helper()
	hash := runCommand(t, exec.Command(gatewayBinary(t), "hash-password", "--plaintext", "secret", "--bcrypt-cost", "4"), os.Environ())
	if hash.code != 0 {
		t.Fatalf("hash a password: %s", hash.err)
	}
	up := newUpstream(t)
	// Of each key's executions, the first one does not answer until it is told to.
	g := startGateway(t, site{raw: fmt.Sprintf(`basic_auth /charges* {
alice %s
}
idempotency {
owner {http.auth.user.id}
label {http.request.header.X-Order}
timeout 1s
linger 1h
}
@journal {
method GET
path /charges/*
}
header @journal Content-Type application/json
respond @journal "{\"id\":\"ch_17\",\"amount\":10}" 201
reverse_proxy %s {
header_up Up-Case {http.request.header.Idempotency-Key}
header_up Up-Hold {http.request.header.Idempotency-Key}
header_up Up-Once yes
}
`, strings.TrimSpace(hash.out), up.addr)})

	bin := filepath.Join(g.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(gatewayBinary(t), filepath.Join(bin, "caddy")); err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, g: g, up: up, jobs: make(map[string]string)}
	p.env = append(g.environment(), "PATH="+bin+":"+os.Getenv("PATH"), "CADDY_ADMIN="+g.admin, "SUDO_USER=anna")

	for _, order := range []string{"order-17", "order-18", "order-19"} {
		cmd := exec.Command("curl", "-s", "-u", "alice:secret", "-H", "Idempotency-Key: "+order, "-H", "X-Order: "+order, "-d", "amount=10", g.url(0)+"/charges")
		if r := runCommand(t, cmd, p.env); !strings.Contains(r.out, "outcome-unknown") {
			t.Fatalf("%s: want that its outcome is unknown, got %s", order, r.out)
		}
	}
	return p
}

// The page for the night on which an upstream times out says what the commands
// really print, in the order in which it tells of them.
func TestOperatingPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := startOperating(t)
	if n := p.follow(string(text)); n < 10 {
		t.Errorf("the page has %d commands: it was not understood", n)
	}
	for order, n := range map[string]int{"order-17": 1, "order-18": 2, "order-19": 1} {
		p.up.want(order, n)
	}
}
