package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// bank is an upstream that carries out a charge and then drops the connection,
// and that can be asked about charges.
type bank struct {
	*httptest.Server
	mu      sync.Mutex
	charges map[string]int
	lookups []*http.Request
	status  int  // of the answers to lookups
	cut     bool // whether those are
}

func newBank(t *testing.T, status int) *bank {
	t.Helper()
	b := &bank{charges: make(map[string]int), status: status}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Method == http.MethodPost {
		b.charges[strings.Trim(r.Header.Get("Idempotency-Key"), `"`)]++
		panic(http.ErrAbortHandler)
	}
	b.lookups = append(b.lookups, r.Clone(context.Background()))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(b.status)
	fmt.Fprint(w, `{"data":[{"id":"ch_1"}]}`)
	if b.cut {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func (b *bank) charged(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.charges[key]
}

func (b *bank) asked() []*http.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lookups
}

func (b *bank) answerWith(status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = status
}

// reconciled is a site in front of the bank.
func (b *bank) reconciled(options, reconcile string) string {
	return fmt.Sprintf("idempotency {\nowner shared\n%s\nreconcile {\n%s\n}\n}\nreverse_proxy %s", options, reconcile, b.Listener.Addr())
}

// recorded returns the job with this id as its store has it.
func recorded(t *testing.T, id string) (job *keystore.Job) {
	t.Helper()
	sharedStores.Range(func(_, value any) bool {
		j, err := value.(*sharedStore).gateway.Job(context.Background(), id)
		if err == nil {
			job = j
		}
		return job == nil
	})
	if job == nil {
		t.Fatalf("there is no job %q", id)
	}
	return job
}

// leaveUnknown sends a request of which it is then not known whether it was
// carried out, and returns the job's id.
func leaveUnknown(t *testing.T, key string, header ...string) string {
	t.Helper()
	a := insist(t, "/charge", key, header...)
	if a.status != 504 || a.code() != "outcome-unknown" {
		t.Fatalf("got %+v", a)
	}
	if a.header.Get("Retry-After") == "" {
		t.Error("the upstream will be asked, and the client is not invited to come back")
	}
	return a.header.Get("Idempotency-Job")
}

func TestReconcilerCompletesWhatALookupConfirms(t *testing.T) {
	for name, store := range map[string]string{"bolt": "", "redis": "store redis redis://" + fakeRedis(t).Addr()} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LOOKUP_TOKEN", "secret")
			b := newBank(t, 200)
			load(t, site(t, b.reconciled(store, `
				lookup GET /charges?key={http.idempotency.key_sent}&bare={http.idempotency.key}&n={http.idempotency.attempt}&job={http.idempotency.job}
				header Authorization "Bearer {env.LOOKUP_TOKEN}"
				every 1ms
				succeeded 200
				cancelled 404 after 2m
				replay_from /data/0`)))
			const key = `k&x=1+2%41?#/..`
			id := leaveUnknown(t, `"`+key+`"`)
			eventually(t, "the job is completed", func() bool { return !recorded(t, id).CompletedBy.IsZero() })
			for range 2 {
				a := insist(t, "/charge", key)
				if a.status != 200 || a.body != `{"id":"ch_1"}` || a.header.Get("Idempotent-Replayed") != "true" || a.header.Get("Content-Type") != "application/json" {
					t.Errorf("a repetition got %+v", a)
				}
			}
			if n := b.charged(key); n != 1 {
				t.Errorf("%d executions", n)
			}
			asked := b.asked()[0]
			q := asked.URL.Query()
			if asked.URL.Path != "/charges" || q.Get("key") != `"`+key+`"` || q.Get("bare") != key || q.Get("n") != "1" || q.Get("job") != id {
				t.Errorf("asked for %s", asked.URL)
			}
			if asked.Header.Get("Authorization") != "Bearer secret" || asked.Host != address || asked.Header.Get("Idempotency-Key") != "" {
				t.Errorf("asked at %s with %v", asked.Host, asked.Header)
			}
			if r := recorded(t, id).Attempts[0].Resolution; r == nil || strings.Contains(r.Evidence, key) {
				t.Errorf("resolution %+v", r)
			}
		})
	}
}

// What permits a second execution is never concluded at once.
func TestReconcilerDoesNotCancelOnAFirstAnswer(t *testing.T) {
	for name, c := range map[string]struct{ after, note string }{
		"before its time":         {"1h\nfor 2h", "too early to tell"},
		"seen for the first time": {"1ms", "to be confirmed by a second answer"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBank(t, 404)
			options := "timeout 3s\nlease 3s\nlinger 1s" // the ends of lease and linger count too
			load(t, site(t, b.reconciled(options, "lookup GET /charges\nevery 1ms\nsucceeded 200\ncancelled 404 after "+c.after)))
			id := leaveUnknown(t, "k")
			eventually(t, c.note, func() bool { return recorded(t, id).Attempts[0].Lookups.Note == c.note })
			if a := insist(t, "/charge", "k"); a.status != 504 {
				t.Errorf("got %+v", a)
			}
			if n := b.charged("k"); n != 1 {
				t.Errorf("%d executions", n)
			}
		})
	}
}

func TestReconcilerLeavesTheRestUnknownWithEvidence(t *testing.T) {
	for _, status := range []int{401, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			b := newBank(t, status)
			load(t, site(t, b.reconciled("", "lookup GET /charges\nevery 1ms\nfor 20ms\nsucceeded 200")))
			id := leaveUnknown(t, "k")
			eventually(t, "it stops asking", func() bool {
				l := recorded(t, id).Attempts[0].Lookups
				return strings.HasPrefix(l.Note, "asked for long enough (20ms)") && l.Status == status && l.Count > 0
			})
			if a := insist(t, "/charge", "k"); a.status != 504 {
				t.Errorf("got %+v", a)
			}
			if n := b.charged("k"); n != 1 {
				t.Errorf("%d executions", n)
			}
		})
	}
}

// A handler learns the way to its upstream from requests, so that after a start
// there is none at first. That is no answer, and no time that counts.
func TestRelativeLookupWaitsForARequestOfTheRoute(t *testing.T) {
	b := newBank(t, 500)
	config := site(t, b.reconciled("", "lookup GET /charges\nevery 1ms\nfor 20ms\nsucceeded 200"))
	load(t, config)
	id := leaveUnknown(t, "k")
	eventually(t, "it stops asking", func() bool {
		return strings.HasPrefix(recorded(t, id).Attempts[0].Lookups.Note, "asked for long enough")
	})
	if err := reload(config); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says why it does not ask", func() bool {
		return strings.Contains(recorded(t, id).Attempts[0].Lookups.Note, "no request of the route has come by since the start")
	})
	b.answerWith(200)
	insist(t, "/charge", "k")
	eventually(t, "the job is completed", func() bool { return !recorded(t, id).CompletedBy.IsZero() })
	if n := b.charged("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

func TestAbsoluteLookupNeedsNoRequest(t *testing.T) {
	b := newBank(t, 500)
	t.Setenv("BANK", "http://"+b.Listener.Addr().String()+"/api/")
	config := site(t, b.reconciled("", "lookup GET {env.BANK}/charges/{http.idempotency.key}\nheader Host bank.example\nevery 1ms\nfor 20ms\nsucceeded 200"))
	load(t, config)
	id := leaveUnknown(t, "k")
	b.answerWith(200)
	if err := reload(config); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is completed", func() bool { return !recorded(t, id).CompletedBy.IsZero() })
	asked := b.asked()
	if last := asked[len(asked)-1]; last.URL.Path != "/api/charges/k" || last.Host != "bank.example" {
		t.Errorf("asked for %s at %s", last.URL, last.Host)
	}
	if a := insist(t, "/charge", "k"); a.body != `{"data":[{"id":"ch_1"}]}` || b.charged("k") != 1 {
		t.Errorf("got %+v, %d executions", a, b.charged("k"))
	}
}

// A chain in which nobody answers returns without an error. Taken for an answer,
// that would be a 200.
func TestLookupThatNobodyAnswersSettlesNothing(t *testing.T) {
	b := newBank(t, 200)
	load(t, site(t, "idempotency {\nowner shared\nreconcile {\nlookup GET /charges\nevery 1ms\nfor 20ms\nsucceeded 200\n}\n}\n"+
		"@post method POST\nreverse_proxy @post "+b.Listener.Addr().String()))
	id := leaveUnknown(t, "k")
	eventually(t, "it stops asking", func() bool {
		note := recorded(t, id).Attempts[0].Lookups.Note
		return strings.HasPrefix(note, "asked for long enough") && strings.HasSuffix(note, "nobody answered the lookup")
	})
	if a := insist(t, "/charge", "k"); a.status != 504 {
		t.Errorf("got %+v", a)
	}
}

// Caddy logs the requests of answers that break off. That of a lookup has the key
// in its URL.
func TestLogsOfLookupsDoNotShowTheKey(t *testing.T) {
	b := newBank(t, 200)
	b.cut = true
	file := filepath.Join(t.TempDir(), "log")
	config := strings.Replace(site(t, b.reconciled("", "lookup GET /charges?key={http.idempotency.key}\nevery 1ms\nfor 20ms\nsucceeded 200")),
		"output idempotency_test", "output file "+file, 1)
	load(t, config)
	id := leaveUnknown(t, "very-secret")
	eventually(t, "it stops asking", func() bool {
		note := recorded(t, id).Attempts[0].Lookups.Note
		return strings.HasPrefix(note, "asked for long enough") && strings.HasSuffix(note, "the answer to the lookup broke off")
	})
	log := readFile(t, file)
	if !strings.Contains(log, "aborting with incomplete response") || !strings.Contains(log, "broke off") {
		t.Errorf("the log does not say what happened: %s", log)
	}
	if strings.Contains(log, "very-secret") {
		t.Errorf("the log shows the key: %s", log)
	}
}

// A lookup is nobody's request: what the handlers before this one have found out
// about the latest caller does not go along.
func TestLookupHasNothingOfTheLatestRequest(t *testing.T) {
	b := newBank(t, 500)
	load(t, site(t, `
		vars caller {http.request.header.X-User}
		root * /srv
		idempotency {
			owner {http.vars.caller}
			reconcile {
				lookup GET /charges
				header Host bank.example
				every 1ms
				succeeded 200
			}
		}
		reverse_proxy `+b.Listener.Addr().String()+` {
			header_up X-Caller "{http.vars.caller}"
			header_up X-Root "{http.vars.root}"
		}`))
	leaveUnknown(t, "k", "X-User", "alice", "Cookie", "session=1")
	eventually(t, "it is asked", func() bool { return len(b.asked()) > 0 })
	asked := b.asked()[0]
	if asked.Header.Get("X-Caller") != "" || asked.Header.Get("X-User") != "" || asked.Header.Get("Cookie") != "" {
		t.Errorf("asked with %v", asked.Header)
	}
	if asked.Host != "bank.example" || asked.Header.Get("X-Root") != "/srv" || asked.Header.Get("X-Forwarded-Host") != "bank.example" {
		t.Errorf("asked at %s with %v", asked.Host, asked.Header)
	}
}

func TestReconcilersEndWithTheirConfiguration(t *testing.T) {
	b := newBank(t, 500)
	config := site(t, "handle /a {\n"+b.reconciled("space a", "lookup GET /charges\nevery 1ms\nsucceeded 200")+"\n}\nhandle {\n"+
		b.reconciled("space b", "lookup GET "+b.URL+"/charges\nevery 1ms\nsucceeded 200")+"\n}")
	stacks := func(text string) int {
		all := make([]byte, 8<<20)
		return strings.Count(string(all[:runtime.Stack(all, true)]), text)
	}
	load(t, config)
	leaveUnknown(t, "k")
	for range 20 {
		if err := reload(config); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "two are left", func() bool { return stacks("(*Route).Reconcile(") == 2 && openStores() == 1 })
	stop(t)
	eventually(t, "nothing is left", func() bool {
		return stacks("(*Route).Reconcile(") == 0 && stacks("(*lookup).") == 0 && openStores() == 0
	})
}

func TestLabelIsShownWithTheJob(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, "uri strip_prefix /v1\n"+protect(u, "owner shared\nlabel \"{http.request.header.X-Order} {http.request.uri.path}\"")))
	a := post(t, "/v1/pay", "k", "X-Order", "o-17")
	if label := recorded(t, a.header.Get("Idempotency-Job")).Request.Label; label != "o-17 /pay" {
		t.Errorf("label %q", label)
	}
}

// What kept a lookup from being made is shown, though none was made.
func TestNotesWithoutLookupsAreShown(t *testing.T) {
	t.Parallel()
	a := viewOfAttempt(&keystore.Attempt{Number: 1, Lookups: keystore.Lookups{Note: "the reason"}})
	var out strings.Builder
	if err := printJob(&out, &jobView{Attempts: []attemptView{a}}); err != nil || !strings.Contains(out.String(), "none so far: the reason") {
		t.Errorf("printed %s, %v", out.String(), err)
	}
	text, err := json.Marshal(a.Lookups)
	if err != nil || string(text) != `{"count":0,"note":"the reason"}` {
		t.Errorf("got %s, %v", text, err)
	}
	if a := viewOfAttempt(&keystore.Attempt{Number: 1}); a.Lookups != nil {
		t.Errorf("got %+v", a.Lookups)
	}
}

// One handler in a named route, and a bank for each site that invokes it.
func TestLookupsOfANamedRouteGoToTheSiteOfTheirJob(t *testing.T) {
	banks := map[string]*bank{"a.example": newBank(t, 500), "b.example": newBank(t, 500)}
	_, port, _ := net.SplitHostPort(address)
	config := global(t) + "&(pay) {\nidempotency {\nowner shared\nreconcile {\nlookup GET /charges?key={http.idempotency.key}\nevery 1ms\nsucceeded 200\n}\n}\n}\n"
	for host, b := range banks {
		config += fmt.Sprintf("http://%s:%s {\nbind 127.0.0.1\ninvoke pay\nreverse_proxy %s\n}\n", host, port, b.Listener.Addr())
	}
	load(t, config)
	for host := range banks {
		leaveUnknown(t, "of-"+host, "Host", host)
	}
	known := make(map[string]int)
	for host, b := range banks {
		known[host] = len(b.asked())
	}
	for host, b := range banks {
		eventually(t, host+" is asked again", func() bool { return len(b.asked()) > known[host]+1 })
		for _, r := range b.asked() {
			if key := r.URL.Query().Get("key"); key != "of-"+host || r.Host != host {
				t.Errorf("%s was asked for %s at %s", host, key, r.Host)
			}
		}
	}
}
