package e2e

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const chargeSchema = `{
	"type": "object",
	"required": ["id", "status"],
	"properties": {"id": {"type": "string"}, "status": {"enum": ["succeeded", "pending"]}}
}`

const chargeCase = `### a card is charged
# @safe
# @repeat 2
POST /pay
Content-Type: application/json
Up-Case: proof

{"amount": 1200, "order": "order-{{key}}"}

HTTP 200
/status == "succeeded"
`

// saying is what makes an upstream answer with this document.
func saying(document string) string {
	return "request_header Up-Bytes " + hex.EncodeToString([]byte(document)) + "\nrequest_header Up-Header \"Content-Type: application/json\""
}

const (
	honest       = `{"id":"ch_1","status":"succeeded"}`
	wrongMeaning = `{"id":"ch_1","status":"pending"}` // as the schema wants it
	unlike       = `{"id":1,"status":"succeeded"}`
)

// contracted is a site whose fallback has to be proven.
type contracted struct {
	primary, backup *upstream
	dir             string
	refusing        string // what the primary does
}

func newContracted(t *testing.T) *contracted {
	t.Helper()
	c := &contracted{primary: newUpstream(t), backup: newUpstream(t), dir: t.TempDir(), refusing: "request_header Up-Status 429"}
	c.write(t, "charge.schema.json", chargeSchema)
	c.write(t, "charge.http", chargeCase)
	return c
}

func (c *contracted) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// site returns the site with what the backup does, and more lines of its contract.
func (c *contracted) site(backup, contract string) site {
	return between(fmt.Sprintf("contract charge {\nschema %[1]s/charge.schema.json\ncase %[1]s/*.http\n%[2]s\n}\n", c.dir, contract),
		named{name: "primary", before: c.refusing, up: c.primary}, named{name: "backup", before: backup, up: c.backup})
}

// failsOver checks whether a new request reaches the fallback.
func (c *contracted) failsOver(t *testing.T, g *gateway, key string, want bool) {
	t.Helper()
	status, executions := http.StatusTooManyRequests, 0
	if want {
		status, executions = http.StatusOK, 1
	}
	if a, _ := g.hurried().persist(post(key)); a.status != status {
		t.Errorf("%s: got %d %v %s, want %d", key, a.status, a.err, a.body, status)
	}
	c.primary.want(key, 1)
	c.backup.want(key, executions)
}

// Without a living proof of this very configuration and contract nothing reaches
// the fallback, and it is told what to run.
func TestFailoverOnlyToAProvenProvider(t *testing.T) {
	t.Parallel()
	c := newContracted(t)
	g := startGateway(t, c.site(saying(honest), ""))
	c.failsOver(t, g, "before", false)
	g.wantTold("fallback_unproven", "warn", "no other provider may be used, since none is proven")
	if n := g.incidents()["fallback_unproven"]; n == 0 || !strings.Contains(g.log(), "caddy idempotency prove --space main --provider backup") {
		t.Errorf("%d incidents, or the log does not name the command", n)
	}
	if out := g.done("prove", "--provider", "backup"); !strings.Contains(out, "2 of 2") || !strings.Contains(out, "backup is proven until") {
		t.Errorf("got %s", out)
	}
	c.backup.want("proof", 2)
	c.failsOver(t, g, "proven", true)
	g.kill()
	g.restart()
	c.failsOver(t, g, "restarted", true)

	for name, changed := range map[string]func() site{
		"provider": func() site { return c.site(saying(honest)+"\nrequest_header X-New yes", "") },
		"contract": func() site { return c.site(saying(honest), "status 200") },
		"aged":     func() site { return c.site(saying(honest), "proof_max_age 1ms") },
		"case": func() site {
			c.write(t, "charge.http", chargeCase+"/id exists\n")
			return c.site(saying(honest), "# changed")
		},
	} {
		if err := g.load(changed()); err != nil {
			t.Fatal(err)
		}
		c.failsOver(t, g, name, false)
		c.write(t, "charge.http", chargeCase)
		if err := g.load(c.site(saying(honest), "")); err != nil {
			t.Fatal(err)
		}
		c.failsOver(t, g, name+"-before", true)
	}
}

// What looks right and means something else is caught by what a case expects.
func TestProofOfTheWrongMeaning(t *testing.T) {
	t.Parallel()
	c := newContracted(t)
	g := startGateway(t, c.site(saying(wrongMeaning), ""))
	r := g.cli("prove", "--provider", "backup")
	for _, part := range []string{"FAILED", "0 of 2", "/status", `expected  "succeeded"`, `found     "pending"`, "backup is not proven."} {
		if r.code == 0 || !strings.Contains(r.out, part) {
			t.Errorf("exit code %d, it does not say %q:\n%s%s", r.code, part, r.out, r.err)
		}
	}
	c.backup.want("proof", 1)
	c.failsOver(t, g, "k", false)
}

// An answer that breaks the contract is nobody's result: not the client's, not a
// replay's. An honest refusal is.
func TestBrokenContractIsNobodysResult(t *testing.T) {
	t.Parallel()
	c := newContracted(t)
	c.refusing = saying(unlike)
	g := startGateway(t, c.site(saying(honest), ""))
	g.done("prove", "--provider", "backup")
	a := g.client().do(post("k"))
	wantUnknown(t, a)
	wantUnknown(t, g.client().do(post("k")))
	g.wantAttempts(a, "primary unknown")
	c.primary.want("k", 1)
	c.backup.want("k", 0)
	if n := g.incidents()["violation"]; n != 1 {
		t.Errorf("%d violations are counted, want one", n)
	}
	if out := g.done("show", a.job()); !strings.Contains(out, "/id: expected") || !strings.Contains(out, "kept") {
		t.Errorf("got %s", out)
	}
	g.resolve(a.job(), "succeeded", "--response", "kept")
	if again := g.client().do(post("k")); again.status != http.StatusOK || again.body != unlike || !again.replayed() {
		t.Errorf("got %d %s", again.status, again.body)
	}

	// With on_violation failed the fallback may answer in the same request.
	if err := g.load(c.site(saying(honest), "on_violation failed")); err != nil {
		t.Fatal(err)
	}
	g.done("prove", "--provider", "backup")
	b, _ := g.hurried().persist(post("f"))
	if b.status != http.StatusOK || b.body != honest {
		t.Errorf("got %d %s", b.status, b.body)
	}
	g.wantAttempts(b, "primary failed", "backup succeeded")

	c.refusing = "request_header Up-Status 400"
	if err := g.load(c.site(saying(honest), "")); err != nil {
		t.Fatal(err)
	}
	refused, _ := g.hurried().persist(post("r"))
	if refused.status != http.StatusBadRequest || refused.code() != "" {
		t.Errorf("got %d %s", refused.status, refused.body)
	}
	wantReplay(t, refused, g.client().do(post("r")))
	c.primary.want("r", 1)
	c.backup.want("r", 0)
}
