package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// till is an API that pays whenever it is asked to. What it does the first time is
// in the key.
type till struct {
	*httptest.Server
	mu       sync.Mutex
	requests map[string]int
	payments map[string]int
	gate     chan struct{} // slow requests wait for it
	during   func()        // called while a request that is called cut is carried out
}

func newTill(t *testing.T) *till {
	t.Helper()
	a := &till{requests: make(map[string]int), payments: make(map[string]int), gate: make(chan struct{})}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	_, _ = io.Copy(io.Discard, r.Body)
	kind, _, _ := strings.Cut(key, "-")
	a.mu.Lock()
	a.requests[key]++
	first := a.requests[key] == 1
	a.mu.Unlock()
	switch {
	case !first:
	case kind == "busy":
		w.Header().Set("Retry-After", "1")
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	case kind == "dated":
		w.Header().Set("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT")
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	case kind == "slow":
		<-a.gate
	}
	a.mu.Lock()
	a.payments[key]++
	n, during := a.payments[key], a.during
	a.mu.Unlock()
	switch {
	case kind == "lost":
		panic(http.ErrAbortHandler)
	case kind == "cut" && first:
		during()
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]string{"payment": fmt.Sprintf("%s-%d", key, n)})
}

func (a *till) want(t *testing.T, key string, requests int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.requests[key] != requests || a.payments[key] != 1 {
		t.Errorf("%s: %d requests came to the API, which paid %d times; want %d, and one payment", key, a.requests[key], a.payments[key], requests)
	}
}

// The clients in the documentation do what it says to do: whatever goes wrong, they
// bring about one payment, or say that it is pending.
func TestHTTPPageClients(t *testing.T) {
	t.Parallel()
	page := pages.Of(t, "..", "docs/http.md")
	for _, c := range []struct {
		heading, file string
		command       []string
	}{
		{"### Go", "pay.go", []string{"./pay"}},
		{"### Node", "pay.js", []string{"node", "pay.js"}},
		{"### Python", "pay.py", []string{"python3", "pay.py"}},
		{"### curl", "pay.sh", []string{"sh", "pay.sh"}},
	} {
		t.Run(strings.TrimPrefix(c.heading, "### "), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := page.Section(t, c.heading).Blocks()[0].Text
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.file == "pay.go" {
				build := exec.Command("go", "build", "-o", "pay", "pay.go")
				build.Dir = dir
				if out, err := build.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			checkClient(t, dir, c.command)
		})
	}
}

func checkClient(t *testing.T, dir string, command []string) {
	t.Helper()
	api := newTill(t)
	plain := site{handler: "reverse_proxy " + api.Listener.Addr().String()}.with("owner", "shared")
	formed := plain
	formed.handler += "\nhandle_errors {\nrespond \"sorry\"\n}"
	g := startGatewayWith(t, "", plain, plain.with("wait", "100ms"), formed)
	straight := newLine(t, g.addr(0))
	pay := func(at, key, body string) ran {
		cmd := exec.Command(command[0], append(command[1:], "http://"+at+"/pay", key, body)...)
		cmd.Dir = dir
		return runCommand(t, cmd, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir})
	}
	const ten, eleven = `{"amount":10}`, `{"amount":11}`
	want := func(r ran, code int, out string) {
		t.Helper()
		if r.code != code || strings.TrimSpace(r.out) != out {
			t.Errorf("the program ends with %d and prints %q, want %d and %q\n%s", r.code, r.out, code, out, r.err)
		}
	}

	for range 2 {
		want(pay(straight.addr(), "well-1", ten), 0, `done 201 {"payment":"well-1-1"}`)
	}
	api.want(t, "well-1", 1)
	want(pay(straight.addr(), "well-1", eleven), 1, "refused key-reused")

	for _, key := range []string{"busy-1", "dated-1"} {
		want(pay(straight.addr(), key, ten), 0, fmt.Sprintf(`done 201 {"payment":"%s-1"}`, key))
		api.want(t, key, 2)
	}

	api.mu.Lock()
	api.during = straight.cut
	api.mu.Unlock()
	want(pay(straight.addr(), "cut-1", ten), 0, `done 201 {"payment":"cut-1-1"}`)
	api.want(t, "cut-1", 1)

	lost := pay(straight.addr(), "lost-1", ten)
	jobs := g.list()
	if len(jobs) != 1 {
		t.Fatalf("unknown jobs: %q", jobs)
	}
	want(lost, 75, "pending "+jobs[0])
	api.want(t, "lost-1", 1)

	// A site may give refusals another form.
	lost = pay(g.addr(2), "lost-2", ten)
	known := jobs[0]
	jobs = slices.DeleteFunc(g.list(), func(id string) bool { return id == known })
	if len(jobs) != 1 {
		t.Fatalf("unknown jobs: %q", jobs)
	}
	want(lost, 75, "pending "+jobs[0])
	api.want(t, "lost-2", 1)

	// One that is already under way, on a route where nobody waits for long.
	first := make(chan ran)
	go func() { first <- pay(g.addr(1), "slow-1", ten) }()
	eventually(t, "the first is under way", func() bool {
		api.mu.Lock()
		defer api.mu.Unlock()
		return api.requests["slow-1"] == 1
	})
	second := make(chan ran)
	go func() { second <- pay(g.addr(1), "slow-1", ten) }()
	eventually(t, "the second is told that the first is running", func() bool {
		return g.counts("caddy_idempotency_requests_total", "verdict")["in_flight"] > 0
	})
	close(api.gate)
	for _, r := range []ran{<-first, <-second} {
		want(r, 0, `done 201 {"payment":"slow-1-1"}`)
	}
	api.want(t, "slow-1", 1)
}
