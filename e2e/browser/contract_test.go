package browser

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// contractSite has a contract, a second provider that can be proven, and an upstream
// of that which is not there.
const contractSite = console + `
	handle /charges* {
		idempotency {
			owner shared
			space payments
			label {http.request.header.X-Order}
			timeout 60s
			provider bank {
				reverse_proxy UPSTREAM
			}
			provider backup {
				request_header X-Gateway backup
				reverse_proxy UPSTREAM 127.0.0.1:NOBODY {
					health_uri /health
					health_interval 1s
				}
			}
			contract charge {
				status 201
				case DIR/charge.http
			}
		}
	}
`

func startWithContract(t *testing.T) *gateway {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "charge.http"), []byte(chargeCase), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, strings.NewReplacer("DIR", dir, "NOBODY", testport.Take(t)).Replace(contractSite))
}

// The answer that broke the contract is kept, and can be made the result: retries get
// it as it came, and nothing is executed.
func TestResolveWithTheKeptAnswer(t *testing.T) {
	t.Parallel()
	g := startWithContract(t)
	kept := g.broken("/charges", "a", "X-Order", "order-17")
	other := g.broken("/charges", "b", "X-Order", "order-18")
	p := visit(t, g, "anna", desktop)
	p.shows("order-17")

	p.decide("order-17", "It was executed")
	p.shows("The answer that was kept: status 200")
	if !eval[bool](p, "document.querySelector('dialog input[name=kept]').checked && !document.querySelector('dialog input[name=status]').checkVisibility()") {
		t.Errorf("another answer is asked for\n%s", p.text())
	}
	p.press("button", "Resolve as succeeded")
	p.wait("document.querySelector('.job-head .badge')?.textContent === 'completed'")
	for _, told := range []string{"expected status 201, found status 200", "status 200", "as succeeded by anna"} {
		p.shows(told)
	}
	if j := g.job(kept); j.State != "completed" || j.Result.Status != http.StatusOK {
		t.Errorf("order-17 is %+v", j)
	}
	if _, status := g.post("/charges", "a", "X-Order", "order-17", "X-Up", "break"); status != http.StatusOK {
		t.Errorf("a repetition got %d", status)
	}

	// Another one can be given in its place.
	p.press("a", "All jobs")
	p.decide("order-18", "It was executed")
	p.press("label", "The answer that was kept")
	p.wait("document.querySelector('dialog input[name=status]').checkVisibility()")
	p.fillAnew("dialog input[name=status]", "201")
	p.press("button", "Resolve as succeeded")
	p.wait("document.querySelector('.job-head .badge')?.textContent === 'completed'")
	if _, status := g.post("/charges", "b", "X-Order", "order-18", "X-Up", "break"); status != http.StatusCreated {
		t.Errorf("a repetition got %d of job %s", status, other)
	}
	if n := g.executed("/charges"); n != 2 {
		t.Errorf("%d executions, want the two that broke the contract", n)
	}
	p.press("nav a", "Providers")
	p.wait("[...document.querySelectorAll('.facts > div')].some((e) => e.textContent === 'Broke the contract2')")
}

// A provider without a proof says so, and how to get one; with one, since when and
// until when. An upstream that does not answer is said to be unhealthy.
func TestProofsAndHealthOfProviders(t *testing.T) {
	t.Parallel()
	g := startWithContract(t)
	p := visit(t, g, "anna", desktop)
	p.press("nav a", "Providers")
	card := func(name string) string {
		return "[...document.querySelectorAll('article')].find((e) => e.querySelector('h3').textContent === " + quote(name) + ")?"
	}
	p.wait(card("bank") + ".querySelector('.badge').textContent === 'primary'")
	p.wait(card("backup") + ".querySelector('.badge').textContent === 'unproven'")
	p.wait(card("backup") + ".querySelector('.command').textContent === 'caddy idempotency prove --space payments --provider backup'")
	p.wait(card("backup") + ".querySelectorAll('.healthy').length === 1")
	p.wait(card("backup") + ".querySelector('.is-danger')?.textContent === 'unhealthy'")
	p.wait(card("bank") + ".querySelectorAll('.is-danger').length === 0")

	if status, answer := g.call("ben", http.MethodPost, "prove", map[string]any{"provider": "backup"}); status != http.StatusOK {
		t.Fatalf("prove: %d %s", status, answer)
	}
	p.wait(card("backup") + ".querySelector('.badge').textContent === 'proven'") // by itself
	p.wait(card("backup") + ".textContent.includes('Proven until')")
	p.wait("!" + card("backup") + ".querySelector('.command')")
	p.wait(card("backup") + ".querySelector('.is-danger')?.textContent === 'unhealthy'")
}
