package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

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
	p := &page{
		t: t, g: g, up: up, ids: make(map[string]string),
		places: strings.NewReplacer("http://localhost:8080", g.url(0), "http://localhost:2019", "http://"+g.admin),
	}
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
