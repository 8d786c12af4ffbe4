package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// charger is a provider that answers charges as it is told.
type charger struct {
	*httptest.Server
	mu       sync.Mutex
	answer   string
	requests []*http.Request
	bodies   []string
}

const (
	honest       = `{"id": "ch_1", "status": "succeeded"}`
	wrongMeaning = `{"id": "ch_1", "status": "pending"}` // as the schema wants it
	broken       = `{"id": 1, "status": "succeeded"}`
)

func newCharger(t *testing.T) *charger {
	t.Helper()
	c := &charger{answer: honest}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requests, c.bodies = append(c.requests, r), append(c.bodies, string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, c.answer)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *charger) say(answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

// seen returns the requests that have come since the last call.
func (c *charger) seen() (requests []*http.Request, bodies []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests, bodies = c.requests, c.bodies
	c.requests, c.bodies = nil, nil
	return requests, bodies
}

func (c *charger) executions() int {
	requests, _ := c.seen()
	return len(requests)
}

func (c *charger) proxy(options string) string {
	return options + "\nreverse_proxy " + c.Listener.Addr().String()
}

const later = `respond "later" 429`

// proving is a site whose fallback has to be proven, and its admin endpoint. The
// cases are those of the text.
type proving struct {
	t        *testing.T
	fallback *charger
	dir      string
	admin    string
	config   string
}

const safeCase = `### a card is charged
# @safe
# @repeat 2
POST /charges
Content-Type: application/json

{"amount": 1200, "order": "order-{{key}}"}

HTTP 200
/status == "succeeded"
`

func newProving(t *testing.T, cases, backup, contract string) *proving {
	t.Helper()
	p := &proving{t: t, fallback: newCharger(t), dir: t.TempDir()}
	p.write("charge.schema.json", readFile(t, "testdata/contract/charge.schema.json"))
	p.write("charge.http", cases)
	block := strings.Replace(providers(later, p.fallback.proxy(backup), fmt.Sprintf(
		"space payments\ncontract charge {\nschema %[1]s/charge.schema.json\ncase %[1]s/*.http\n%[2]s\n}", p.dir, contract)), "unproven allow", "", 1)
	p.config, p.admin = adminSite(t, "", block)
	load(t, p.config)
	return p
}

func (p *proving) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proving) prove(body string) (a proveAnswer) {
	p.t.Helper()
	got := ask(p.t, p.admin, http.MethodPost, "prove", body)
	if err := json.Unmarshal([]byte(got.body), &a); err != nil || got.status != 200 {
		p.t.Fatalf("got %d %s", got.status, got.body)
	}
	return a
}

func (p *proving) providers() (a providersAnswer) {
	p.t.Helper()
	got := ask(p.t, p.admin, http.MethodGet, "providers?space=payments", "")
	if err := json.Unmarshal([]byte(got.body), &a); err != nil || got.status != 200 || len(a.Providers) != 2 {
		p.t.Fatalf("got %d %s", got.status, got.body)
	}
	return a
}

// failsOver says whether a request is carried out on the fallback.
func (p *proving) failsOver(key string, want bool) {
	p.t.Helper()
	p.fallback.seen()
	got := insist(p.t, "/charges", key)
	status, executions := 429, 0
	if want {
		status, executions = 200, 1
	}
	if n := p.fallback.executions(); got.status != status || n != executions {
		p.t.Errorf("%s: got %d %s, and %d executions at the fallback, want %d and %d", key, got.status, got.body, n, status, executions)
	}
}

const onlyBackup = `{"provider": "backup"}`

// A provider takes another one's place once it is proven, and no longer once it
// has failed a case.
func TestProveOpensTheGate(t *testing.T) {
	p := newProving(t, safeCase, "send_key Request-Id", "")
	p.failsOver("a", false)
	if v := p.providers().Providers[1]; v.Proof != "unproven" || !strings.Contains(v.Why, "caddy idempotency prove --space payments --provider backup") {
		t.Errorf("got %+v", v)
	}
	answer := p.prove(onlyBackup)
	if !answer.Passed || len(answer.Providers) != 1 || !answer.Providers[0].Proven || answer.Providers[0].Cases[0].Passed != 2 {
		t.Errorf("got %+v", answer)
	}
	requests, bodies := p.fallback.seen()
	if len(requests) != 2 {
		t.Fatalf("%d executions, want one for each repetition", len(requests))
	}
	first, second := requests[0].Header, requests[1].Header
	for _, name := range []string{"Idempotency-Key", "Request-Id"} {
		if first.Get(name) == "" || first.Get(name) == second.Get(name) {
			t.Errorf("%s: %q and %q, want a key of its own for each", name, first.Get(name), second.Get(name))
		}
	}
	if !strings.Contains(bodies[0], "order-"+first.Get("Idempotency-Key")) || requests[0].Header.Get("Idempotency-Job") != "" {
		t.Errorf("got %q", bodies[0])
	}
	p.failsOver("b", true)
	if v := p.providers().Providers; v[0].Proof != "primary" || v[1].Proof != "proven" || v[1].ProvenUntil.IsZero() || v[1].Attempts["final"] == 0 ||
		len(v[1].Upstreams) != 1 || !v[1].Upstreams[0].Healthy {
		t.Errorf("got %+v", v)
	}
	p.fallback.say(wrongMeaning)
	answer = p.prove(onlyBackup)
	if f := answer.Providers[0].Cases[0].Failures; answer.Passed || len(f) != 1 || f[0].What != "/status" || !strings.Contains(f[0].Found, "pending") {
		t.Errorf("got %+v", answer)
	}
	p.fallback.say(honest)
	p.failsOver("c", false)
}

// Cases that are not marked as safe are run only where somebody has said so, and
// leave an earlier proof alone otherwise.
func TestProveLeavesUnsafeCasesOut(t *testing.T) {
	p := newProving(t, strings.Replace(safeCase, "# @safe\n", "", 1), "", "")
	answer := p.prove(onlyBackup)
	if answer.Passed || !answer.Providers[0].Cases[0].LeftOut || p.fallback.executions() != 0 {
		t.Errorf("got %+v", answer)
	}
	p.failsOver("a", false)
	if answer := p.prove(`{"provider": "backup", "unsafe": true}`); !answer.Passed {
		t.Errorf("got %+v", answer)
	}
	p.failsOver("b", true)
	p.prove(onlyBackup)
	p.failsOver("c", true)
}

// The command that is named is one with which it is proven.
func TestNamedCommandProves(t *testing.T) {
	for name, c := range map[string]struct{ cases, warning, command string }{
		"safe":   {safeCase, "contract", "prove --space payments --provider backup"},
		"unsafe": {strings.Replace(safeCase, "# @safe\n", "", 1), "sent all the same with --unsafe", "prove --space payments --provider backup --unsafe"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProving(t, c.cases, "", "")
			why := p.providers().Providers[1].Why
			before, command, _ := strings.Cut(why, "; run: caddy idempotency ")
			if command != c.command || !strings.HasSuffix(before, c.warning) {
				t.Fatalf("got %q", why)
			}
			caddyCommand(t, nil, append(strings.Fields(command), "--address", p.admin)...).want(t, 0, "backup is proven until")
			p.failsOver("a", true)
		})
	}
}

// A case without a body is sent once, also over a connection that dies.
func TestCasesAreNotSentAgain(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		dying, executions := newDying(t, false)
		p := newProving(t, "### warm\nPUT /charges\n\nHTTP 200\n\n### dies\n"+method+" /charges/1\n\nHTTP 200\n", "", "")
		config := strings.ReplaceAll(p.config, p.fallback.Listener.Addr().String(), dying)
		load(t, strings.ReplaceAll(config, "schema ", "# "))
		answer := p.prove(`{"provider": "backup", "unsafe": true}`)
		if cases := answer.Providers[0].Cases; cases[0].Passed != 1 || cases[1].Passed != 0 || len(cases[1].Failures) != 1 {
			t.Errorf("%s: got %+v", method, answer)
		}
		if n := executions.Load(); n != 1 {
			t.Errorf("%s: %d executions", method, n)
		}
	}
}

// A case finds what an attempt finds: whose chain it is, what stands for a job, and
// how the client has come. The key goes out as it is written, and is another one each
// time, whatever is written.
func TestCasesGoAsAttemptsDo(t *testing.T) {
	for written, sent := range map[string]string{
		"":                                 "%s",
		"Idempotency-Key: {{key}}\n":       "%s",
		"Idempotency-Key: \"{{key}}\"\n":   "\"%s\"",
		"idempotency-KEY: \"{{key}}\"\n":   "\"%s\"",
		"Idempotency-Key: \"\"{{key}}\"\n": "%s",
		"Idempotency-Key: {{key}}\nIdempotency-Key: {{key}}\n": "%s",
	} {
		cases := strings.Replace(safeCase, "POST /charges\n", "POST https://shop.example/charges\nAccept-Encoding: br\n"+written, 1)
		p := newProving(t, cases, "request_header X-Seen \"{http.idempotency.provider} {http.idempotency.attempt} {http.request.scheme} {http.request.host}\"\n"+
			"request_header X-Job {http.idempotency.job}", "")
		p.prove(onlyBackup)
		requests, bodies := p.fallback.seen()
		if len(requests) != 2 {
			t.Fatalf("%q: %d executions", written, len(requests))
		}
		for i, r := range requests {
			key := r.Header.Get("X-Job")
			if got := r.Header["Idempotency-Key"]; len(got) != 1 || got[0] != fmt.Sprintf(sent, key) || !strings.Contains(bodies[i], "order-"+key) {
				t.Errorf("%q: the key is %q, that of the run is %s", written, got, key)
			}
			if got := r.Header.Get("X-Seen"); got != "backup 1 https shop.example" || r.Header.Get("X-Forwarded-Proto") != "https" {
				t.Errorf("got %q and %q", got, r.Header.Get("X-Forwarded-Proto"))
			}
			if r.Header.Get("Accept-Encoding") == "br" {
				t.Error("it asks for an encoding")
			}
		}
		if requests[0].Header.Get("X-Job") == requests[1].Header.Get("X-Job") {
			t.Error("two runs have one key")
		}
	}
}

// Where no proof could be kept, no case is run: it may cost money.
func TestProveNeedsItsStore(t *testing.T) {
	redis := fakeRedis(t)
	p := newProving(t, safeCase, "", "")
	load(t, strings.Replace(p.config, "space payments", "space payments\nstore redis redis://"+redis.Addr(), 1))
	p.prove(onlyBackup)
	p.failsOver("a", true)
	redis.Close()
	answer := p.prove(onlyBackup)
	if v := answer.Providers[0]; answer.Passed || v.Proven || !strings.Contains(v.Error, "no case was run") || len(v.Cases) != 0 {
		t.Errorf("got %+v", answer)
	}
	if n := p.fallback.executions(); n != 0 {
		t.Errorf("%d executions", n)
	}
	caddyCommand(t, nil, "--address", p.admin, "prove", "--provider", "backup").want(t, exitNotProven, "backup is not proven: no case was run")
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is proven", func() bool { return p.prove(onlyBackup).Passed })
}

// Whoever has changed a case, and not loaded it, is not left to believe that it was
// run.
func TestProveTellsOfChangedFiles(t *testing.T) {
	p := newProving(t, safeCase, "", "")
	told := func(want bool) {
		t.Helper()
		answer := p.prove(onlyBackup)
		r := caddyCommand(t, nil, "--address", p.admin, "prove", "--provider", "backup")
		r.want(t, 0, "backup is proven until")
		if answer.Providers[0].Outdated != want || strings.Contains(r.out, "caddy reload --force") != want {
			t.Errorf("got %+v and %s", answer, r.out)
		}
	}
	told(false)
	p.write("charge.http", safeCase+"/id exists\n")
	told(true)
	p.write("charge.http", "nonsense")
	told(true)
	p.write("charge.http", safeCase)
	told(false)
	p.write("charge.schema.json", "{}")
	told(true)
}

// A proof is of one configuration and one contract.
func TestProofsEndWithAChange(t *testing.T) {
	p := newProving(t, safeCase, "", "")
	p.prove(onlyBackup)
	p.failsOver("a", true)
	for name, change := range map[string]func() string{
		"provider": func() string {
			return strings.Replace(p.config, "provider backup {", "provider backup {\nrequest_header X-New yes", 1)
		},
		"contract": func() string {
			return strings.Replace(p.config, "contract charge {", "contract charge {\nstatus 200", 1)
		},
		"case": func() string {
			p.write("charge.http", safeCase+"/id exists\n")
			return p.config + "\n"
		},
	} {
		if err := reload(change()); err != nil {
			t.Fatal(err)
		}
		p.failsOver(name, false)
		p.prove(onlyBackup)
		p.failsOver(name+"-again", true)
		p.write("charge.http", safeCase)
		if err := reload(p.config); err != nil {
			t.Fatal(err)
		}
		p.failsOver(name+"-as-before", true) // the first proof still lives
	}
	// A name of the contract's, and other things around, change nothing.
	if err := reload(strings.Replace(p.config, "contract charge", "timeout 20s\ncontract other", 1)); err != nil {
		t.Fatal(err)
	}
	p.failsOver("b", true)
}

// A proof ends with its age.
func TestProofsAge(t *testing.T) {
	p := newProving(t, safeCase, "", "proof_max_age 3s")
	if answer := p.prove(onlyBackup); !answer.Passed {
		t.Fatalf("got %+v", answer)
	}
	eventually(t, "the proof has aged", func() bool { return p.providers().Providers[1].Proof == "unproven" })
	p.failsOver("b", false)
}

// What a provider has done counts where it was done, though another one elsewhere has
// its name.
func TestProvidersOfOneNameInTwoSpaces(t *testing.T) {
	p := newProving(t, safeCase, "", "")
	fallback := p.fallback.proxy("")
	other := providers(later, fallback, "space other-"+t.Name())
	if err := reload(p.config + "http://localhost:" + testport.Take(t) + " {\nbind 127.0.0.1\n" + other + "\n}\n"); err != nil {
		t.Fatal(err)
	}
	p.prove(onlyBackup)
	before := p.providers().Providers[1]
	p.failsOver("a", true)
	p.fallback.say(broken)
	insist(t, "/charges", "b")
	got := p.providers().Providers[1]
	if got.Attempts["final"] != before.Attempts["final"]+1 || got.Violations != before.Violations+1 {
		t.Errorf("got %+v after %+v", got, before)
	}
	elsewhere := ask(t, p.admin, http.MethodGet, "providers?space=other-"+t.Name(), "")
	var all providersAnswer
	if err := json.Unmarshal([]byte(elsewhere.body), &all); err != nil || len(all.Providers) != 2 {
		t.Fatalf("got %s", elsewhere.body)
	}
	if v := all.Providers[1]; v.Name != "backup" || len(v.Attempts) != 0 || v.Violations != 0 {
		t.Errorf("elsewhere: got %+v", v)
	}
}

// An answer that breaks the contract never gets to a client, and is kept for
// whoever decides.
func TestKeptAnswerBecomesTheResult(t *testing.T) {
	p := newProving(t, safeCase, "", "")
	p.prove(onlyBackup)
	p.fallback.say(broken)
	got := post(t, "/charges", "k")
	if got.status != 504 || got.code() != "outcome-unknown" || strings.Contains(got.body, "ch_") {
		t.Fatalf("got %+v", got)
	}
	id := got.header.Get("Idempotency-Job")
	at := []string{"--address", p.admin}
	caddyCommand(t, nil, append(at, "show", id)...).want(t, 0, "provider", "backup", "broke the contract", "/id: expected", "resolve with --response kept")
	caddyCommand(t, nil, append(at, "providers")...).want(t, 0, "primary", "proven until", "1 of 1 healthy", "unknown")
	if v := p.providers().Providers[1]; v.Violations == 0 {
		t.Errorf("got %+v", v)
	}
	at = append(at, "resolve", id, "--evidence", "read it", "--actor", "bob")
	caddyCommand(t, nil, append(at, "--as", "failed", "--response", "kept")...).want(t, exitError, "an attempt that is resolved as failed has none")
	caddyCommand(t, nil, append(at, "--as", "succeeded", "--response", "kept")...).want(t, 0, "it is completed", "status 200")
	if again := post(t, "/charges", "k"); again.status != 200 || again.body != broken {
		t.Errorf("got %+v", again)
	}
}

func TestCLIProve(t *testing.T) {
	p := newProving(t, safeCase+"\n### a large one\nPOST /charges\n\nHTTP 200\n", "", "")
	at := []string{"--address", p.admin, "prove", "--provider", "backup"}
	caddyCommand(t, nil, at...).want(t, exitNotProven, "2 of 2", "passed", "left out", "--unsafe", "not every provider is proven")
	p.fallback.say(wrongMeaning)
	caddyCommand(t, nil, append(at, "--unsafe")...).want(t, exitNotProven, "FAILED", "0 of 2", "a card is charged", "charge.http:", "/status",
		`expected  "succeeded"`, `found     "pending"`, "backup is not proven.")
	r := caddyCommand(t, nil, append(at, "--unsafe", "--json")...)
	var answer proveAnswer
	if err := json.Unmarshal([]byte(r.out), &answer); err != nil || answer.Passed || len(answer.Providers[0].Cases[0].Failures) != 1 || r.code != exitNotProven {
		t.Errorf("got %+v", r)
	}
	p.fallback.say(honest)
	caddyCommand(t, nil, append(at, "--unsafe", "--space", "payments")...).want(t, 0, "backup is proven until")
	caddyCommand(t, nil, append(at, "--space", "other")...).want(t, exitError, "there is no such provider")
	caddyCommand(t, nil, "--address", p.admin, "prove", "--space", "payments").want(t, exitNotProven,
		"429", "primary is not proven.", "backup is not proven, since cases were left out that are not marked as safe; run them with --unsafe.")
	caddyCommand(t, nil, "--address", p.admin, "providers", "--space", "other").want(t, 0, "There are no such providers.")
}

// Whoever can't be trusted proves nothing.
func TestProveIsRefusedToStrangers(t *testing.T) {
	p := newProving(t, safeCase, "", "")
	for name, c := range map[string]struct {
		method, body string
		header       []string
		status       int
	}{
		"by GET":                 {http.MethodGet, "", nil, 405},
		"by a form":              {http.MethodPost, onlyBackup, []string{"Content-Type", "text/plain"}, 415},
		"from another site":      {http.MethodPost, onlyBackup, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"of nobody":              {http.MethodPost, `{"provider": "nobody"}`, nil, 400},
		"with something unknown": {http.MethodPost, `{"providers": ["backup"]}`, nil, 400},
	} {
		if got := ask(t, p.admin, c.method, "prove", c.body, c.header...); got.status != c.status {
			t.Errorf("%s: got %d %s, want %d", name, got.status, got.body, c.status)
		}
	}
	if n := p.fallback.executions(); n != 0 {
		t.Errorf("%d executions", n)
	}
}
