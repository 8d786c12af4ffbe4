package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// pageOf returns a page whose commands are run beside a gateway.
func pageOf(t *testing.T, g *gateway, places ...string) *page {
	t.Helper()
	bin := filepath.Join(g.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(gatewayBinary(t), filepath.Join(bin, "caddy")); err != nil {
		t.Fatal(err)
	}
	places = append(places, "http://localhost:8080", g.url(0), "localhost:2019", g.admin)
	p := &page{t: t, g: g, noLog: true, ids: make(map[string]string), places: strings.NewReplacer(places...)}
	p.env = append(g.environment(), "PATH="+bin+":"+os.Getenv("PATH"), "CADDY_ADMIN="+g.admin)
	return p
}

func (p *page) followAll(path string, commands int) {
	p.t.Helper()
	if n := p.follow(pages.Of(p.t, "..", path).Text); n != commands {
		p.t.Errorf("%s has %d commands, and not %d", path, n, commands)
	}
}

// The commands of the pages that tell no story of their own print what stands there.
func TestCommandsOfThePages(t *testing.T) {
	t.Parallel()
	t.Run("admin", func(t *testing.T) {
		t.Parallel()
		g := startGateway(t, to(newUpstream(t)).with("owner", "shared"))
		pageOf(t, g).followAll("docs/admin.md", 3)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		redis := startRedis(t, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
		g := startGateway(t, to(newUpstream(t)).on(redis.store()))
		pageOf(t, g).followAll("docs/redis.md", 2)
	})
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		up := newUpstream(t)
		g := startGateway(t, to(up).with("owner", "shared"))
		pageOf(t, g, "https://api.example.com", g.url(0)).followAll("docs/http.md", 1)
		up.want("", 1)
	})
	// What the commands make is what the configuration below them takes.
	t.Run("security", func(t *testing.T) {
		t.Parallel()
		g := startGateway(t, to(newUpstream(t)))
		p := pageOf(t, g, "/etc/caddy/", g.dir+"/")
		p.followAll("docs/security.md", 2)
		var config string
		for _, b := range pages.Of(t, "..", "docs/security.md").Blocks() {
			if b.Language == "caddyfile" {
				config = ":9080 {\n" + p.places.Replace(b.Text) + "}\n"
			}
		}
		path := filepath.Join(g.dir, "secrets.Caddyfile")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(gatewayBinary(t), "validate", "--config", path, "--adapter", "caddyfile")
		if r := runCommand(t, cmd, append(p.env, "REDIS_URL=redis://localhost")); r.code != 0 || !strings.Contains(config, g.dir) {
			t.Errorf("exit code %d\n%s%s", r.code, config, r.err)
		}
	})
}
