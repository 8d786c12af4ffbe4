package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// API-01: browsers ask before they send a key to another origin: that passes
// untouched. With the lines of the documentation a script may read the gateway's headers, on
// refusals as well.
func TestAPI01BrowsersOfOtherOrigins(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "http.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```caddyfile\n")
	lines, _, _ := strings.Cut(rest, "```")
	if !strings.HasPrefix(lines, "header {\n") {
		t.Fatalf("the page was not understood: %s", lines)
	}
	up := newUpstream(t)
	s := to(up).with("key", "required") // which no preflight has
	s.handler = lines + s.handler
	c := startGateway(t, s).client()
	const origin = "https://shop.example.com"
	wantAllowed := func(a answer) {
		t.Helper()
		exposed := a.header.Get("Access-Control-Expose-Headers")
		if a.header.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(exposed, "Idempotency-Job") {
			t.Errorf("a script of another origin may not read the answer: %v", a.header)
		}
	}

	preflight := request{method: http.MethodOptions, path: "/pay", host: "shop.example", owner: "alice", headers: http.Header{
		"Origin": {origin}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"idempotency-key"}, "Up-Case": {"preflight"},
	}}
	for n := range 2 {
		a := c.do(preflight)
		up.want("preflight", n+1)
		if a.status != http.StatusOK || a.job() != "" || !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
			t.Errorf("want the upstream's answer, with leave to send the key, got %d %v", a.status, a.header)
		}
		wantAllowed(a)
	}

	first := c.do(post("browser"))
	wantExecuted(t, first)
	wantAllowed(first)
	again := c.do(post("browser"))
	wantReplay(t, first, again)
	wantAllowed(again)
	refused := c.do(post("browser").as(func(r *request) { r.body = `{"amount":2}` }))
	wantRefusal(t, refused, http.StatusConflict, "key-reused")
	wantAllowed(refused)
	up.want("browser", 1)
}
