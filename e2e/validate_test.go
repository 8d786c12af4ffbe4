package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// validate asks the gateway's binary whether it takes a Caddyfile. It runs in a
// gateway's environment, where one is given.
func validate(t *testing.T, g *gateway, config string) (out string, ok bool) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if g == nil {
		g = &gateway{dir: dir}
	}
	cmd := exec.Command(gatewayBinary(t), "validate", "--config", path, "--adapter", "caddyfile")
	cmd.Env, cmd.Dir = g.environment(), dir
	all, err := cmd.CombinedOutput()
	if broken.Match(all) {
		t.Errorf("validating says:\n%s", all)
	}
	return string(all), err == nil
}

// A configuration is valid whether or not what it talks to is there: it is
// validated on other machines, and while another process serves.
func TestValidateNeedsNoStore(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	nobody := "127.0.0.1:" + testport.Take(t)
	running := startGateway(t, to(up).on("bolt"))
	wantExecuted(t, running.client().do(post("held")))
	for name, s := range map[string]site{
		"Redis is down":            to(up).on(storeAt(nobody)),
		"another process has bolt": to(up).on("bolt"),
		"no store is named":        to(up),
		"there is only one caller": to(up).with("owner", "shared"),
		"every option is given": to(up).with("methods", "POST PATCH").with("key", "X-Request-Key required").
			with("outcome", "502 504 failed").with("statuses", "ietf").with("max_request_body", "1MiB").
			with("max_response_body", "64KiB").with("lease", "90s").with("retention", "48h").
			with("key_format", "uuid").with("fingerprint", "json {\nignore_query\nignore_host\ninclude_header X-Tenant\nignore /sent_at\n}").
			with("space", "orders").with("waiters", "10 100"),
	} {
		if out, ok := validate(t, running, caddyfile("x", "", "off", []string{"9080"}, []site{s})); !ok {
			t.Errorf("%s: not valid:\n%s", name, out)
		}
	}
	wantReplay(t, running.client().do(post("held")), running.client().do(post("held")))
	up.want("held", 1)
}

// What an operator can get wrong is refused with the line and with what to do.
func TestValidateRefusesWithLineAndRemedy(t *testing.T) {
	t.Parallel()
	lines := map[string]struct {
		block string
		says  string // what has to be in the message, besides the line
	}{
		"no owner":             {"store bolt", `owner`},
		"a literal owner":      {"owner alice", `owner.*(placeholder|shared)`},
		"an unknown option":    {"owner shared\nlaese 5s", `laese`},
		"an unknown store":     {"owner shared\nstore memcached", `memcached`},
		"zero wait":            {"owner shared\nwait 0s", `wait`},
		"negative timeout":     {"owner shared\ntimeout -1s", `timeout`},
		"zero lease":           {"owner shared\nlease 0", `lease`},
		"negative linger":      {"owner shared\nlinger -5m", `linger`},
		"a reserved space":     {"owner shared\nspace _mine", `_mine`},
		"too short retention":  {"owner shared\nretention 5m", `retention.*(timeout|linger)`},
		"two stores":           {"owner shared\nstore bolt\nstore redis redis://127.0.0.1:6379", `store`},
		"an option twice":      {"owner shared\nwait 1s\nwait 2s", `wait`},
		"an argument too many": {"owner shared\nwait 1s 2s", `wait|argument`},
		"an unknown outcome":   {"owner shared\noutcome 503 maybe", `maybe|final`},
		"no number of waiters": {"owner shared\nwaiters many", `waiters|many`},
	}
	for name, c := range lines {
		config := caddyfile("x", "", "off", []string{"9080"}, []site{{raw: "idempotency {\n" + c.block + "\n}\n"}})
		out, ok := validate(t, nil, config)
		if ok {
			t.Errorf("%s: this is valid:\n%s", name, c.block)
			continue
		}
		message := lastLine(out)
		if !regexp.MustCompile(`(?i)` + c.says).MatchString(message) {
			t.Errorf("%s: the message does not match %q:\n%s", name, c.says, message)
		}
		if !regexp.MustCompile(`Caddyfile:\d+`).MatchString(message) {
			t.Errorf("%s: the message names no line:\n%s", name, message)
		}
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndex(s, "\n")+1:]
}
