package e2e

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// page is a page of the documentation whose commands are run, one after the
// other, and must print what the page says.
type page struct {
	t      *testing.T
	g      *gateway
	up     *upstream // which answers when the page says so
	env    []string
	places *strings.Replacer // from the page's addresses and files to the real ones
	ids    map[string]string // from the page's to the real ones
	// noLog says that the JSON on the page is not of the gateway's log.
	noLog bool
	// events are what happens where the page says so, besides answers.
	events map[string]func()
	// after is told of each command that was run, and says whether to go on.
	after func(command string) bool
}

// What varies from run to run. Ids are in their place compared by position, and
// told apart before this.
var varying = []struct {
	what *regexp.Regexp
	by   string
}{
	{jobID, "<job>"},
	{uuid, "<uuid>"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "<digest>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "<time>"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT`), "<time>"},
	{regexp.MustCompile(`"(ts|duration|timeout|linger)":[0-9.e+-]+`), `"$1":<number>`},
	{regexp.MustCompile(`"at":\d+`), `"at":<number>`},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(h|ms|m|s))+\b`), "<duration>"},
	{regexp.MustCompile(`\b\d+(\.\d+){3}:\d+\b`), "<address>"},
	{regexp.MustCompile(`(/[^/\s]+)+/idempotency\.db`), "<file>"},
	{regexp.MustCompile(` {2,}`), "  "}, // the width of a column goes by what is in it
	{regexp.MustCompile(`Python/[0-9.]+`), "Python/<version>"},
	{regexp.MustCompile(`(Redis|Valkey) \d+(\.\d+)+`), "Redis <version>"},
	{regexp.MustCompile(`\d+ of 100 MiB`), "<some> of 100 MiB"},
	{regexp.MustCompile(`[ \r]+\n`), "\n"},
}

var (
	jobID = regexp.MustCompile(`[0-9a-f]{64}\.[0-9a-f]{8}`)
	uuid  = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	anyID = regexp.MustCompile(jobID.String() + "|" + uuid.String())
)

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
		if p.ids[id] == "" {
			p.t.Fatalf("the page names a job that no output before has shown: %s", command)
		}
		return p.ids[id]
	})
	return p.places.Replace(command)
}

// learn pairs the ids of an output with those that the page has in its place: what
// is the same on the page has to be the same, and what differs there has to differ.
func (p *page) learn(command, said, real string) {
	p.t.Helper()
	ids := anyID.FindAllString(real, -1)
	for i, id := range anyID.FindAllString(said, -1) {
		if i >= len(ids) || (p.ids[id] != "" && p.ids[id] != ids[i]) {
			p.t.Fatalf("the output of\n%s\nis about another id than the page says:\n%s", command, real)
		}
		p.ids[id] = ids[i]
	}
	seen := make(map[string]string, len(p.ids))
	for id, is := range p.ids {
		if other := seen[is]; other != "" {
			p.t.Fatalf("the output of\n%s\nis about one id, %s, where the page says %s and %s", command, is, id, other)
		}
		seen[is] = id
	}
}

// comesTrue are commands that change nothing, and whose output can be a moment late.
var comesTrue = regexp.MustCompile(`^(grep|caddy idempotency (list|show|stats|providers)) `)

// run runs a command of the page and compares what it prints.
func (p *page) run(command, said string) {
	p.t.Helper()
	want := withoutWhatVaries(said)
	var real string
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		// Commands that wait for something on the page do it with no end of their own.
		ctx, cancel := context.WithTimeout(p.t.Context(), 2*patience)
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec 2>&1; "+p.real(command))
		cmd.Dir, cmd.WaitDelay = p.g.dir, time.Second
		real = runCommand(p.t, cmd, p.env).out
		cancel()
		if withoutWhatVaries(real) == want || !comesTrue.MatchString(command+" ") || time.Now().After(deadline) {
			break
		}
	}
	if got := withoutWhatVaries(real); got != want {
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

var (
	answers = regexp.MustCompile(`^<!-- the upstream answers (\S+) -->$`)
	happens = regexp.MustCompile(`^<!-- (.*) -->$`)
)

// follow does what the page says, and returns how many commands it has.
func (p *page) follow(text string) (commands int) {
	p.t.Helper()
	var block, command string
	over := false
	var said []string
	end := func() {
		switch {
		case block == "console" && command != "":
			commands++
			p.run(command, strings.Join(said, "\n"))
			over = p.after != nil && !p.after(command)
		case block == "json" && !p.noLog:
			p.logged(strings.Join(said, "\n"))
		}
		command, said = "", nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		if over {
			break
		}
		language, fence := strings.CutPrefix(line, "```")
		next, prompt := strings.CutPrefix(line, "$ ")
		happening := happens.FindStringSubmatch(line)
		switch event := answers.FindStringSubmatch(line); {
		case fence:
			end()
			block = language
		case block == "console" && prompt:
			end()
			command = next
		case block != "":
			said = append(said, line)
		case event != nil:
			p.answer(event[1])
		case len(happening) > 1 && p.events[happening[1]] != nil:
			p.events[happening[1]]()
		}
	}
	return commands
}
