package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// format is how a site renders refusals.
type format struct {
	name   string // for the documentation
	locked string // the status with which a duplicate is refused when its wait is over
	// The sites: with waits and a timeout that don't end by themselves, with a
	// short wait, and with a short timeout.
	patient, shortWait, shortTimeout *line
}

// clientRun is what one program goes through, against a gateway in front of
// Stripe's API.
type clientRun struct {
	t       *testing.T
	program program
	api     *stripeAPI
	g       *gateway
	formats []format
	rows    []string // of the table in the documentation
}

func newClientRun(t *testing.T, p program, page string) *clientRun {
	t.Helper()
	c := &clientRun{t: t, program: p, api: newStripeAPI(t)}
	plain := site{handler: "reverse_proxy " + c.api.addr}.with("owner", "{http.request.header.Authorization}")
	stripe := plain
	stripe.handler += "\n" + stripeErrors(t, page)
	var sites []site
	for _, s := range []site{plain, stripe} {
		sites = append(sites, s, s.with("wait", "100ms"), s.with("timeout", "1s"))
	}
	c.g = startGatewayWith(t, "", sites...)
	lines := make([]*line, len(sites))
	for i := range sites {
		lines[i] = newLine(t, "127.0.0.1:"+c.g.ports[i])
	}
	c.formats = []format{
		{"; refusals as they come", "409", lines[0], lines[1], lines[2]},
		{"; refusals in Stripe's format", "429", lines[3], lines[4], lines[5]},
	}
	if p.anyAPI {
		c.formats = c.formats[:1]
		c.formats[0].name = ""
	}
	return c
}

// stripeErrors are the lines of the documentation by which a site renders
// refusals as Stripe's API would have.
func stripeErrors(t *testing.T, page string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "```caddyfile\nhandle_errors {\n")
	block, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the page does not say how refusals are rendered in Stripe's format")
	}
	return "handle_errors {\n" + block
}

// act is one call of the program, or several at once.
type act struct {
	what   string // in the words of the documentation; if empty, not worth a row
	on     *line
	order  string
	key    string // of the program's own; without one the SDK makes one up
	amount int
	times  int    // calls at once
	during func() // meanwhile
	// requests are those that have come to the API in all by then, and
	// executions what it has done.
	requests, executions int
}

// asked is how many requests have come to the gateway. None is under way when
// this returns.
func (c *clientRun) asked() (n int) {
	c.t.Helper()
	eventually(c.t, "all requests are over", func() bool { return c.g.stacks("proxy.(*Route).Serve+") == 0 })
	for _, verdict := range c.g.counts("caddy_idempotency_requests_total", "verdict") {
		n += verdict
	}
	return n
}

// do has the program act, and checks what the API got to see of it.
func (c *clientRun) do(a act) seen {
	c.t.Helper()
	if a.key == "" && c.program.anyAPI {
		a.key = a.order
	}
	do := call{url: "http://" + a.on.addr(), order: a.order, key: a.key, amount: max(a.amount, 10), times: max(a.times, 1)}
	before := c.asked()
	result := make(chan []seen, 1)
	go func() { result <- c.program.pay(c.t, do) }()
	if a.during != nil {
		a.during()
	}
	all := <-result
	asked := c.asked() - before
	if len(all) == 0 {
		c.t.FailNow()
	}
	requests, executions := c.api.count(a.order)
	if requests != a.requests || executions != a.executions {
		c.t.Errorf("%s: %d requests came to the API and %d were executed, want %d and %d", a.order, requests, executions, a.requests, a.executions)
	}
	c.api.wantOneKey(a.order)
	if a.what != "" {
		var cells []string
		for _, s := range all {
			cells = append(cells, s.String())
		}
		slices.Sort(cells)
		c.rows = append(c.rows, fmt.Sprintf("| %s | %d | %d | %d | %s |",
			a.what, asked, requests, executions, strings.Join(slices.Compact(cells), " and ")))
	}
	return all[0]
}

// first has the API do something else with the first request for an order.
func (c *clientRun) first(order string, play func(*payment)) {
	c.api.plays(order, func(p *payment) {
		if p.nth == 1 {
			play(p)
			return
		}
		p.pay()
	})
}

// failures are those that the API or the connection to the gateway has.
func (c *clientRun) failures() {
	on := c.formats[0].patient
	c.do(act{what: "nothing goes wrong", on: on, order: "well", requests: 1, executions: 1})

	c.first("cut", func(p *payment) {
		on.cut()
		p.pay()
	})
	c.do(act{what: "the connection to the gateway breaks while the API executes", on: on, order: "cut", requests: 1, executions: 1})

	c.api.plays("500", func(p *payment) {
		p.execute()
		p.fail(http.StatusInternalServerError, "api_error", "", "Something went wrong.")
	})
	c.do(act{what: "the API executes and answers 500, as Stripe does", on: on, order: "500", requests: 1, executions: 1})

	c.api.plays("text", func(p *payment) {
		p.execute()
		http.Error(p.w, "Internal Server Error", http.StatusInternalServerError)
	})
	c.do(act{what: "the API executes and answers 500, as plain text", on: on, order: "text", requests: 1, executions: 1})

	c.first("503", func(p *payment) {
		p.w.Header().Set("Retry-After", "1")
		http.Error(p.w, "down for a moment", http.StatusServiceUnavailable)
	})
	c.do(act{what: "the API answers 503 with `Retry-After` at first", on: on, order: "503", requests: 2, executions: 1})

	c.first("locked", func(p *payment) {
		p.w.Header().Set("Stripe-Should-Retry", "true")
		p.fail(http.StatusTooManyRequests, "invalid_request_error", "lock_timeout", "This object cannot be accessed right now.")
	})
	c.do(act{what: "the API answers 429 `lock_timeout` at first", on: on, order: "locked", requests: 2, executions: 1})
}

// refusals are what the gateway itself has to say.
func (c *clientRun) refusals(f format) {
	order := func(name string) string { return name + "-" + f.locked }

	c.api.plays(order("lost"), func(p *payment) {
		p.execute()
		p.drop()
	})
	lost := act{what: "the API executes and its answer is lost" + f.name, on: f.patient, order: order("lost"), key: order("lost"), requests: 1, executions: 1}
	s := c.do(lost)
	c.decide(s, "succeeded")
	lost.what = "→ the same call again, after an operator has decided *succeeded*"
	c.do(lost)

	c.first(order("never"), func(p *payment) { p.drop() })
	never := act{on: f.patient, order: order("never"), key: order("never"), requests: 1}
	s = c.do(never)
	c.decide(s, "cancelled")
	never.what, never.requests, never.executions = "the API breaks off before it executes, an operator decides *cancelled*, and the same call comes again", 2, 1
	c.do(never)

	gate := make(chan struct{})
	c.first(order("late"), func(p *payment) {
		<-gate
		p.pay()
	})
	late := act{what: "the API's answer comes after `timeout`" + f.name, on: f.shortTimeout, order: order("late"), key: order("late"), requests: 1}
	results := c.g.incidents()["late_result"]
	c.do(late)
	close(gate)
	eventually(c.t, "the late answer is recorded", func() bool { return c.g.incidents()["late_result"] > results })
	late.what, late.executions = "→ the same call again, after that", 1
	c.do(late)

	c.twice(f)

	again := act{on: f.patient, order: order("again"), key: order("again"), requests: 1, executions: 1}
	c.do(again)
	again.what, again.amount = "the key comes back with another amount"+f.name, 99
	c.do(again)
}

// decide decides on an unknown attempt as an operator does.
func (c *clientRun) decide(s seen, as string) {
	c.t.Helper()
	if as != "succeeded" {
		c.g.resolve(c.job(s), as)
		return
	}
	file := filepath.Join(c.g.dir, "answer")
	answer := append([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"), paymentIntent("pi_1", "10")...)
	if err := os.WriteFile(file, answer, 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.g.resolve(c.job(s), as, "--response", file)
}

// job is the one that a program was told of; where its SDK keeps that to itself,
// the only unknown one.
func (c *clientRun) job(s seen) string {
	c.t.Helper()
	jobs := c.g.list()
	if len(jobs) != 1 || (s.Job != "" && s.Job != jobs[0]) {
		c.t.Fatalf("the program was told of job %q, and the unknown ones are %q", s.Job, jobs)
	}
	return jobs[0]
}

// twice are two calls at once with one key.
func (c *clientRun) twice(f format) {
	for _, wait := range []struct {
		what string
		on   *line
		// prepare is called before the calls begin; what it returns, while they run.
		prepare func(open func()) (during func())
	}{
		{"two calls at once with one key", f.patient, func(open func()) func() {
			return func() {
				c.g.awaitWaiting(1)
				open()
			}
		}},
		// The first is over by the time that the second hears of its refusal: what
		// follows from that does not depend on who is faster.
		{"two calls at once, of which the second's `wait` is over first" + f.name, f.shortWait, func(open func()) func() {
			refused, goOn := make(chan struct{}), make(chan struct{})
			executed := func() int { return c.g.counts("caddy_idempotency_requests_total", "verdict")["executed"] }
			before := executed()
			f.shortWait.before(f.locked, func() {
				close(refused)
				<-goOn
			})
			return func() {
				defer close(goOn)
				select {
				case <-refused:
				case <-time.After(patience):
					c.t.Errorf("no answer with status %s", f.locked)
				}
				open()
				eventually(c.t, "the first call is over", func() bool { return executed() > before })
			}
		}},
	} {
		if strings.HasSuffix(wait.what, "one key") && f.locked != c.formats[0].locked {
			continue // nothing is refused: it can make no difference
		}
		order := fmt.Sprintf("twice-%s-%p", f.locked, wait.on)
		gate := make(chan struct{})
		c.first(order, func(p *payment) {
			<-gate
			p.pay()
		})
		c.do(act{
			what: wait.what, on: wait.on, order: order, key: order, times: 2, requests: 1, executions: 1,
			during: wait.prepare(func() { close(gate) }),
		})
	}
}

var programs = []program{
	{
		heading: "## Stripe's SDK for Node", pay: sdkProgram("node", "node/pay.js"),
		locks: "clients/node/package-lock.json", pattern: `"node_modules/stripe": \{\s*"version": "(.*)"`,
	},
	{
		heading: "## Stripe's SDK for Go", pay: sdkProgram("./pay"),
		locks: "clients/go/go.mod", pattern: `stripe-go/\S+ (v.*)`,
	},
	{heading: "## curl", anyAPI: true, pay: curl},
}

// What real clients' programs get to see is what the page for their authors says.
// Whatever goes wrong, one intent is executed once.
func TestClientsPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	if !strings.Contains(strings.ReplaceAll(page, " \\\n\t", " "), strings.Join(curlCommand, " ")) {
		t.Errorf("the page recommends another command than %s", strings.Join(curlCommand, " "))
	}
	for _, p := range programs {
		t.Run(strings.TrimPrefix(p.heading, "## "), func(t *testing.T) {
			t.Parallel()
			c := newClientRun(t, p, page)
			c.failures()
			for _, f := range c.formats {
				c.refusals(f)
			}
			_, section, _ := strings.Cut(page, "\n"+p.heading+"\n")
			section, _, _ = strings.Cut(section, "\n## ")
			var said []string
			for row := range strings.Lines(section) {
				if strings.HasPrefix(row, "|") {
					said = append(said, strings.TrimSpace(row))
				}
			}
			if version := p.version(t); !strings.Contains(section, version) {
				t.Errorf("the page does not name the version %s", version)
			}
			if len(said) < 2 || !slices.Equal(said[2:], c.rows) {
				t.Errorf("seen:\n%s\n\nsaid:\n%s", strings.Join(c.rows, "\n"), strings.Join(said, "\n"))
			}
		})
	}
}
