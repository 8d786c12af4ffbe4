package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

var quickstartPort = regexp.MustCompile(`\b(2019|6379|8080|8081|9090)\b`)

// A newcomer who follows the README, and nothing but it, gets to see what stands
// there: from the start to a duplicate that is replayed, a timeout that is resolved
// in the console and by the command, and an alert that fires.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme := pages.Of(t, "..", "README.md")
	shown := readme.Section(t, "### 1. In front of your API, with Redis").Blocks()[0].Text
	if config := readShipped(t, "examples", "quickstart", "Caddyfile"); shown != config {
		t.Errorf("the README shows another configuration than examples/quickstart/Caddyfile:\n%s", shown)
	}
	checkExample(t, filepath.Join("..", "examples", "quickstart"), "REDIS_URL=redis://localhost:6379")
	// Programs that know nothing of these ports can take one all the same. Then there
	// are others.
	var err error
	for range 5 {
		if err = followReadme(t, readme); err == nil {
			return
		}
	}
	t.Error(err)
}

// followReadme does what the README says, on other ports. An error says that
// something could not be started.
func followReadme(t *testing.T, readme pages.Page) error {
	t.Helper()
	dir := t.TempDir()
	ports := make(map[string]string)
	for _, port := range []string{"2019", "6379", "8080", "8081", "9090"} {
		ports[port] = testport.Take(t)
	}
	g := &gateway{t: t, dir: filepath.Join(dir, "examples", "quickstart"), admin: "localhost:" + ports["2019"]}
	bin, rules := filepath.Join(dir, "bin"), filepath.Join(dir, "docs", "observability")
	if err := errors.Join(
		os.CopyFS(g.dir, os.DirFS(filepath.Join("..", "examples", "quickstart"))),
		os.MkdirAll(rules, 0o700), os.CopyFS(rules, os.DirFS(filepath.Join("..", "docs", "observability"))),
		os.Mkdir(bin, 0o700), os.MkdirAll(g.tmp(), 0o700),
		os.Symlink(gatewayBinary(t), filepath.Join(bin, "caddy")),
	); err != nil {
		t.Fatal(err)
	}
	other := func(text string) string {
		return quickstartPort.ReplaceAllStringFunc(text, func(port string) string { return ports[port] })
	}
	for _, name := range []string{"Caddyfile", "api.py", "prometheus.yml"} {
		path := filepath.Join(g.dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(other(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	places := []string{"gateway.log", g.logPath()}
	for port, instead := range ports {
		places = append(places, ":"+port, ":"+instead, "-p "+port, "-p "+instead, "--port "+port, "--port "+instead)
	}
	p := &page{t: t, g: g, ids: make(map[string]string), places: strings.NewReplacer(places...)}
	p.env = append(g.environment(), "PATH="+bin+":"+os.Getenv("PATH"), "CADDY_ADMIN="+g.admin)
	// The README removes the files with the ids in the end.
	running := make(map[string]bool)
	t.Cleanup(func() {
		endExample(p)
		for pid := range running {
			end(t, pid)
		}
	})
	notStarted := false
	p.after = func(command string) bool {
		files, _ := filepath.Glob(filepath.Join(g.dir, "*.pid"))
		for _, file := range files {
			if pid, err := os.ReadFile(file); err == nil {
				running[strings.TrimSpace(string(pid))] = true
			}
		}
		notStarted = strings.Contains(command, "caddy start ") && !started.MatchString(g.log())
		return !notStarted
	}
	p.events = map[string]func(){"anna resolves the first job in the console": func() { p.inTheConsole(other("http://localhost:8080/console/")) }}
	switch n := p.follow(readme.Text); {
	case notStarted:
		return errors.New("it could not be started:\n" + g.logTail())
	case n < 25:
		t.Errorf("the README has %d commands: it was not understood", n)
	}
	return nil
}

// end ends a process, if it is still there.
func end(t *testing.T, pid string) {
	t.Helper()
	if id, err := strconv.Atoi(pid); err == nil && id > 1 && !hasEnded(pid) {
		_ = syscall.Kill(id, syscall.SIGKILL)
		eventually(t, "process "+pid+" has ended", func() bool { return hasEnded(pid) })
	}
}

// inTheConsole does with the oldest unknown job what the README says to do in the
// console, by the calls that its page makes. What the page makes of clicks is tested
// in a browser.
func (p *page) inTheConsole(console string) {
	p.t.Helper()
	call := func(method, path string, body, answer any) {
		p.t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			p.t.Fatal(err)
		}
		req, err := http.NewRequest(method, console+path, bytes.NewReader(text))
		if err != nil {
			p.t.Fatal(err)
		}
		req.SetBasicAuth("anna", "secret")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Console", "1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			p.t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(answer); err != nil || resp.StatusCode != http.StatusOK {
			p.t.Fatalf("%s %s: %s, %v", method, path, resp.Status, err)
		}
	}
	var unknown struct{ Jobs []struct{ ID string } }
	call(http.MethodGet, "_api/jobs?state=unknown", nil, &unknown)
	if len(unknown.Jobs) != 2 {
		p.t.Fatalf("the console shows %+v", unknown)
	}
	var job struct {
		State    string
		Attempts []struct{ Resolution struct{ Actor string } }
	}
	call(http.MethodPost, "_api/jobs/"+unknown.Jobs[0].ID+"/resolve", map[string]any{
		"attempt": 1, "as": "succeeded", "evidence": "payment 3 in the books",
		"response": map[string]any{"status": 201, "body": "paid, see the books\n"},
	}, &job)
	if job.State != "completed" || job.Attempts[0].Resolution.Actor != "anna" {
		p.t.Errorf("after the decision the job is %+v", job)
	}
}
