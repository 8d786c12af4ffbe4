package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// innerOf returns the directives of the site with this address in a Caddyfile,
// which may be indented.
func innerOf(t *testing.T, caddyfile, address string) string {
	t.Helper()
	start := regexp.MustCompile(`(?m)^([ \t]*)` + regexp.QuoteMeta(address) + ` \{\n`).FindStringSubmatchIndex(caddyfile)
	if start == nil {
		t.Fatalf("there is no site %s in\n%s", address, caddyfile)
	}
	inner, _, found := strings.Cut(caddyfile[start[1]:], "\n"+caddyfile[start[2]:start[3]]+"}")
	if !found {
		t.Fatalf("the site %s has no end", address)
	}
	return inner + "\n"
}

func readShipped(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{".."}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The sites that load balancers and probes ask tell whether a gateway is ready, and
// lead to nothing else of the admin endpoint.
func TestRecipesReadiness(t *testing.T) {
	t.Parallel()
	recipe := pages.Of(t, "..", "docs/recipes.md").Section(t, "## Behind another load balancer").Blocks()[0].Text
	manifest := readShipped(t, "packaging", "kubernetes", "gateway.yaml")
	up := newUpstream(t)
	g := startGatewayWith(t, "", to(up), to(up), to(up))
	probes := func(caddyfile string) site {
		return site{raw: strings.ReplaceAll(innerOf(t, caddyfile, ":8081"), "localhost:2019", g.admin)}
	}
	if err := g.load(to(up), probes(recipe), probes(manifest)); err != nil {
		t.Fatal(err)
	}
	for site, paths := range map[int]map[string]int{
		1: {"/ready": http.StatusOK, "/idempotency/jobs": http.StatusNotFound, "/config/": http.StatusNotFound},
		2: {"/alive": http.StatusOK, "/metrics": http.StatusOK, "/idempotency/ready": http.StatusOK, "/idempotency/stats": http.StatusNotFound, "/config/": http.StatusNotFound},
	} {
		for path, want := range paths {
			status, body, err := get(g.url(site) + path)
			if err != nil || status != want || (strings.HasSuffix(path, "ready") && strings.TrimSpace(body) != `{"ready":true}`) {
				t.Errorf("site %d: %s answers %d %q, %v; want %d", site, path, status, body, err, want)
			}
		}
	}
}

// What compose.yaml starts does what its first lines promise.
func TestCompose(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`"redis-server", (.*)\]`).FindStringSubmatch(readShipped(t, "compose.yaml"))
	if command == nil {
		t.Fatal("compose.yaml does not say how Redis is started")
	}
	redis := startRedis(t, strings.Split(strings.ReplaceAll(command[1], `"`, ""), ", ")...)
	upstream := innerOf(t, readShipped(t, "packaging", "compose", "upstream.Caddyfile"), ":8081")
	g := startGatewayWith(t, "", site{raw: upstream}, site{raw: upstream})
	gateway := strings.NewReplacer("{env.REDIS_URL}", redis.URL(), "{env.UPSTREAM}", g.addr(1)).
		Replace(innerOf(t, readShipped(t, "packaging", "compose", "gateway.Caddyfile"), ":8080"))
	if err := g.load(site{raw: gateway}, site{raw: upstream}); err != nil {
		t.Fatal(err)
	}
	// Nothing is served before something is known of Redis, by require_durable.
	c := g.client()
	first := untilStatus(t, c, post("order-1"), http.StatusCreated)
	wantReplay(t, first, c.do(post("order-1")))
	if other := c.do(post("order-2")); other.status != http.StatusCreated || other.body == first.body {
		t.Errorf("another key gets %d %s", other.status, other.body)
	}
}
