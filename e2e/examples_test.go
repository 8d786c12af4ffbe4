package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// Each example is what its page says: its commands are run in order, as they are
// written, in a copy of its directory, and print what stands there. The pages count
// in the providers' logs what was executed.
func TestExamples(t *testing.T) {
	t.Parallel()
	directory := filepath.Join("..", "examples")
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < 2 {
		t.Errorf("there are %d examples: the directory was not understood", len(entries))
	}
	for _, entry := range entries {
		if entry.Name() == "quickstart" {
			continue // the README itself walks through it
		}
		t.Run(entry.Name(), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(directory, entry.Name())
			text, err := os.ReadFile(filepath.Join(dir, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			checkExample(t, dir)
			// Programs that know nothing of these ports can take one all the same. Then
			// there are others.
			for range 5 {
				if err = followExample(t, dir, string(text)); err == nil {
					return
				}
			}
			t.Error(err)
		})
	}
}

// checkExample checks that the Caddyfile is one, written as caddy fmt writes it.
func checkExample(t *testing.T, dir string, env ...string) {
	t.Helper()
	for _, args := range [][]string{{"validate", "--config", "Caddyfile"}, {"fmt", "--diff", "Caddyfile"}} {
		cmd := exec.Command(gatewayBinary(t), args...)
		cmd.Dir = dir
		data := t.TempDir()
		if r := runCommand(t, cmd, append(env, "HOME="+data, "XDG_DATA_HOME="+data, "XDG_CONFIG_HOME="+data)); r.code != 0 {
			t.Errorf("caddy %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
		}
	}
}

var (
	examplePort = regexp.MustCompile(`\b(8080|9001|9002)\b`)
	started     = regexp.MustCompile(`Successfully started Caddy \(pid=(\d+)\)`)
)

// followExample does what an example's page says, on other ports. An error says
// that it could not be started.
func followExample(t *testing.T, example, text string) error {
	t.Helper()
	dir := t.TempDir()
	g := &gateway{t: t, dir: filepath.Join(dir, "example"), admin: "127.0.0.1:" + testport.Take(t)}
	bin := filepath.Join(dir, "bin")
	if err := errors.Join(os.CopyFS(g.dir, os.DirFS(example)), os.Mkdir(bin, 0o700), os.MkdirAll(g.tmp(), 0o700),
		os.Symlink(gatewayBinary(t), filepath.Join(bin, "caddy"))); err != nil {
		t.Fatal(err)
	}
	// The gateway's log goes where the test looks for it, since the page removes its own.
	places := []string{"gateway.log", g.logPath()}
	ports := make(map[string]string)
	for _, port := range []string{"8080", "9001", "9002"} {
		ports[port] = testport.Take(t)
		places = append(places, ":"+port, ":"+ports[port])
	}
	caddyfile := filepath.Join(g.dir, "Caddyfile")
	config, err := os.ReadFile(caddyfile)
	if err != nil {
		t.Fatal(err)
	}
	config = examplePort.ReplaceAllFunc(config, func(port []byte) []byte { return []byte(ports[string(port)]) })
	if err := os.WriteFile(caddyfile, config, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, g: g, ids: make(map[string]string), places: strings.NewReplacer(places...)}
	p.env = append(g.environment(), "PATH="+bin+":"+os.Getenv("PATH"), "CADDY_ADMIN="+g.admin, "SUDO_USER=anna")
	t.Cleanup(func() { endExample(p) })
	notStarted := false
	p.after = func(command string) bool {
		notStarted = strings.HasPrefix(command, "caddy start ") && !started.MatchString(g.log())
		return !notStarted
	}
	switch n := p.follow(text); {
	case notStarted:
		return errors.New("it could not be started:\n" + g.logTail())
	case n < 15:
		t.Errorf("the page has %d commands: it was not understood", n)
	}
	return nil
}

// endExample ends what the page has started, also where the page was not followed
// to its end.
func endExample(p *page) {
	defer p.g.checkLog()
	if pid, err := os.ReadFile(filepath.Join(p.g.dir, "worker.pid")); err == nil {
		defer end(p.t, strings.TrimSpace(string(pid)))
	}
	pid := started.FindStringSubmatch(p.g.log())
	if len(pid) == 0 || hasEnded(pid[1]) {
		return
	}
	cmd := exec.Command(gatewayBinary(p.t), "stop")
	_ = runCommand(p.t, cmd, p.env)
	eventually(p.t, "the example's gateway has ended", func() bool { return hasEnded(pid[1]) })
}

// hasEnded reports whether a process that is not a child of this one has ended.
func hasEnded(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(rest, "Z")
}
