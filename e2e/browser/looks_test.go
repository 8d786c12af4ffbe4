package browser

import (
	_ "embed"
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Pictures for the documentation:
//
//	go test . -run TestLooks -screenshots ../../docs/console -traffic 14m
var (
	screenshots = flag.String("screenshots", "", "directory in which pictures of the console are put")
	traffic     = flag.Duration("traffic", 0, "how long there are requests before the pictures are taken")
)

// pictured are the views of which pictures are kept.
var pictured = []string{"jobs", "race", "resolve", "providers"}

//go:embed measure.js
var measure string

// looksSite has all that the console can show: providers with and without a proof, a
// contract, a race, and a store that has something to be warned of.
const looksSite = console + `
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
				reverse_proxy UPSTREAM
			}
			contract charge {
				status 201
				case DIR/charge.http
			}
		}
	}
	handle /answers* {
		idempotency {
			owner shared
			space ai
			label {http.request.header.X-Order}
			timeout 60s
			provider large {
				reverse_proxy UPSTREAM
			}
			provider small {
				request_header X-Up later
				reverse_proxy UPSTREAM
			}
			race after 300ms
			unproven allow
		}
	}
	@api not path /console* /charges* /answers*
	idempotency @api {
		owner shared
		label {http.request.header.X-Order}
		timeout 60s
	}
	reverse_proxy @api UPSTREAM
`

const chargeCase = `### a card is charged
# @safe
POST /charges
Content-Type: application/json

{"amount": 1200}

HTTP 201
`

// In both schemes, on a desk and on a phone: nothing is wider than the window, text
// can be read, and every control says what it is.
func TestLooks(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "charge.http"), []byte(chargeCase), 0o600); err != nil {
		t.Fatal(err)
	}
	g := start(t, strings.ReplaceAll(looksSite, "DIR", dir))
	story := g.tell(t)
	for _, l := range []look{desktop, {1280, 900, "dark"}, {390, 844, "light"}, {390, 844, "dark"}} {
		t.Run(fmt.Sprintf("%d-%s", l.width, l.scheme), func(t *testing.T) { story.looked(t, g, l) })
	}
}

// story is what has happened on a gateway.
type story struct {
	unknown, settled, raced, broken string // jobs
}

// tell makes something happen.
func (g *gateway) tell(t *testing.T) (s story) {
	t.Helper()
	if status, answer := g.call("anna", http.MethodPost, "prove", map[string]any{"provider": "bank"}); status != http.StatusOK {
		t.Fatalf("prove: %d %s", status, answer)
	}
	s.settled = g.unknown("/refunds", "refund-3", "X-Order", "refund-3")
	status, answer := g.call("ben", http.MethodPost, "jobs/"+s.settled+"/resolve", map[string]any{
		"attempt": 1, "as": "failed", "evidence": "not in the bank's journal of 30 November, 02:40",
	})
	if status != http.StatusOK {
		t.Fatalf("resolve: %d %s", status, answer)
	}
	s.unknown = g.unknown("/refunds", "refund-4", "X-Order", "refund-4")
	for n := 17; n < 20; n++ {
		g.unknown(longPath, fmt.Sprint("order-", n), "X-Order", fmt.Sprint("order-", n))
	}
	s.broken = g.broken("/charges", "order-2041", "X-Order", "order-2041")
	s.raced = g.raced("/answers", "question-8")
	g.running("/transfers", "order-16")
	g.busy(*traffic)
	g.running("/charges", "order-2042")
	return s
}

const longPath = "/accounts/4711/transfers/outgoing/international"

// busy sends requests of many kinds for some time, at least once each.
func (g *gateway) busy(d time.Duration) {
	g.t.Helper()
	until := time.Now().Add(d)
	for n := 0; n == 0 || time.Now().Before(until); n++ {
		key := fmt.Sprint("busy-", n)
		g.post("/charges", key)
		for range n % 3 {
			g.post("/charges", key)
		}
		if n%5 == 0 {
			g.post("/charges/other", key)
		}
		if n%7 == 0 {
			g.post("/transfers", "")
			g.post(longPath, "order-18")
		}
		if d > 0 {
			wave := 1 + math.Sin(float64(n)/60)
			time.Sleep(time.Duration(120+200*wave) * time.Millisecond) // only for pictures
		}
	}
}

// looked looks at all views.
func (s story) looked(t *testing.T, g *gateway, l look) {
	p := visit(t, g, "anna", l)
	dark := eval[bool](p, "matchMedia('(prefers-color-scheme: dark)').matches")
	background := eval[string](p, "getComputedStyle(document.body).backgroundColor")
	if dark != (l.scheme == "dark") || (background == "rgb(14, 18, 24)") != dark {
		t.Errorf("the scheme is %s, dark %v, the background %s", l.scheme, dark, background)
	}
	at := func(view string) {
		t.Helper()
		for _, wrong := range eval[[]string](p, fmt.Sprintf("%s(%d)", strings.TrimSpace(measure), l.width)) {
			t.Errorf("%s: %s", view, wrong)
		}
		if *screenshots != "" && slices.Contains(pictured, view) {
			p.shot(filepath.Join(*screenshots, fmt.Sprintf("%s-%d-%s.png", view, l.width, l.scheme)))
		}
	}
	goTo := func(hash, shown string) {
		t.Helper()
		eval[any](p, "location.hash = "+quote(hash))
		p.wait(shown)
	}
	p.shows("refund-4")
	p.shows("order-19")
	p.wait("document.querySelector('.rates')")
	at("jobs")
	p.press("button", "Find by key")
	p.wait("document.querySelector('dialog:modal')")
	at("find")
	p.leave()

	goTo("#/job/bolt/"+s.raced, "document.querySelectorAll('.lane').length === 2")
	at("race")
	p.press("button", "Forget")
	p.wait("document.querySelector('dialog:modal')")
	at("forget")
	p.leave()
	goTo("#/job/bolt/"+s.settled, "document.querySelector('.decided')")
	at("settled")
	goTo("#/job/bolt/"+s.unknown, "document.querySelector('button.primary')")
	at("job")
	p.press("button", "Resolve")
	p.press("label", "It was not executed")
	p.fill("dialog textarea[name=evidence]", "not in the bank’s journal of 30 November, 02:40")
	at("resolve")
	p.press("label", "It was executed")
	at("resolve-succeeded")
	p.leave()
	goTo("#/job/bolt/"+s.broken, "document.querySelector('h1')?.textContent === 'POST /charges'")
	p.press("button", "Resolve")
	p.press("label", "It was executed")
	at("resolve-kept")
	p.leave()

	goTo("#/providers", "document.querySelectorAll('article.card').length >= 4")
	at("providers")
	goTo("#/stores", "document.querySelector('article.card')")
	at("stores")
}
