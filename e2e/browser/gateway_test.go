package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// patience is how long a condition may take to come true. It is reached only when
// something is broken.
const patience = 3 * time.Minute

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "idempotency-browser"); err != nil {
		fmt.Fprintln(os.Stderr, "browser: make a directory for the gateway's binary:", err)
		os.Exit(1)
	}
	code := m.Run()
	closeBrowser()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// binary builds the gateway, once. Its own tests look for races; here it is built
// like the rest of the product's tests without that.
var binary = sync.OnceValues(func() (string, error) {
	file := filepath.Join(buildDir, "gateway")
	build := exec.Command("go", "build", "-o", file, "./e2e/gateway")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the gateway: %w\n%s", err, out)
	}
	return file, nil
})

// gateway is a process of the built gateway, with an upstream behind it.
type gateway struct {
	t    *testing.T
	url  string
	log  string
	hold chan struct{} // closed when the upstream is to answer what it holds
	open func()
	seen chan string // paths of requests that have reached the upstream and are held

	mu         sync.Mutex
	executions map[string]int // by path, and by what was wanted
}

// start starts a gateway. The options are lines of its site besides.
func start(t *testing.T, site string) *gateway {
	t.Helper()
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, hold: make(chan struct{}), seen: make(chan string, 1000), executions: make(map[string]int)}
	g.open = sync.OnceFunc(func() { close(g.hold) })
	upstream := httptest.NewServer(http.HandlerFunc(g.upstream))
	t.Cleanup(upstream.Close)
	t.Cleanup(g.open) // before the upstream waits for what it holds
	dir := t.TempDir()
	port := testport.Take(t)
	g.url = "http://127.0.0.1:" + port
	g.log = filepath.Join(dir, "log")
	config := fmt.Sprintf("{\n\tadmin off\n\tpersist_config off\n}\n:%s {\n\tbind 127.0.0.1\n%s\n}\n",
		port, strings.NewReplacer("UPSTREAM", upstream.Listener.Addr().String()).Replace(site))
	if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(g.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(file, "run", "--config", "Caddyfile", "--adapter", "caddyfile")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { _ = cmd.Wait(); close(gone) }()
	t.Cleanup(func() {
		g.open()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-gone:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			<-gone
			t.Errorf("the gateway did not end\n%s", g.tail())
		}
	})
	eventually(t, "the gateway listens", func() bool {
		select {
		case <-gone:
			t.Fatalf("the gateway has ended at once\n%s", g.tail())
		default:
		}
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return g
}

// upstream does what the header X-Up says.
func (g *gateway) upstream(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	what := r.Header.Get("X-Up")
	g.mu.Lock()
	g.executions[r.URL.Path]++
	g.executions[what]++
	g.mu.Unlock()
	switch what {
	case "hold":
		g.seen <- r.URL.Path
		<-g.hold
	case "later": // so that it can be seen in pictures how long it took
		time.Sleep(700 * time.Millisecond)
	case "die":
		panic(http.ErrAbortHandler)
	}
	status := http.StatusCreated
	if what == "break" { // a contract that promises the other status
		status = http.StatusOK
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"id":"ch_%d"}`, time.Now().UnixNano())
}

// executed is how often requests to a path, or ones of which something was wanted,
// have reached the upstream.
func (g *gateway) executed(what string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.executions[what]
}

func (g *gateway) tail() string {
	log, _ := os.ReadFile(g.log)
	return string(log[max(0, len(log)-4000):])
}

// post sends a request with a key, and returns its job and status.
func (g *gateway) post(path, key string, header ...string) (job string, status int) {
	g.t.Helper()
	job, status, err := g.send(path, key, header...)
	if err != nil {
		g.t.Fatalf("POST %s: %v\n%s", path, err, g.tail())
	}
	return job, status
}

func (g *gateway) send(path, key string, header ...string) (job string, status int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, strings.NewReader("amount=10"))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header.Get("Idempotency-Job"), resp.StatusCode, err
}

// unknown makes a job whose outcome is unknown.
func (g *gateway) unknown(path, key string, header ...string) (job string) {
	g.t.Helper()
	job, status := g.post(path, key, append(header, "X-Up", "die")...)
	if status != http.StatusGatewayTimeout || job == "" {
		g.t.Fatalf("POST %s: status %d, job %q", path, status, job)
	}
	return job
}

// broken makes a job of which an answer is kept that broke the contract.
func (g *gateway) broken(path, key string, header ...string) (job string) {
	g.t.Helper()
	job, status := g.post(path, key, append(header, "X-Up", "break")...)
	if status != http.StatusGatewayTimeout || job == "" {
		g.t.Fatalf("POST %s: status %d, job %q", path, status, job)
	}
	return job
}

// raced makes a job of which one attempt is discarded, since another one was faster.
func (g *gateway) raced(path, order string) (job string) {
	g.t.Helper()
	job, status := g.post(path, order, "X-Order", order, "X-Up", "hold")
	if status != http.StatusCreated || g.executed("hold") == 0 || g.executed("later") == 0 {
		g.t.Fatalf("the race ended with status %d", status)
	}
	return job
}

// running makes a job whose attempt goes on until the test ends.
func (g *gateway) running(path, order string) {
	g.t.Helper()
	done := make(chan struct{})
	g.t.Cleanup(func() { g.open(); <-done })
	go func() {
		defer close(done)
		_, _, _ = g.send(path, order, "X-Order", order, "X-Up", "hold")
	}()
	for {
		select {
		case held := <-g.seen:
			if held == path {
				return
			}
		case <-time.After(patience):
			g.t.Fatalf("POST %s has not reached the upstream\n%s", path, g.tail())
		}
	}
}

// shown is what the console's API tells of a job.
type shown struct {
	State    string
	Attempts []struct {
		State      string
		Resolution *struct{ As, Actor, Evidence string }
	}
	Result *struct{ Status int }
}

// call makes a call of the console's API as a person.
func (g *gateway) call(person, method, path string, body any) (status int, answer []byte) {
	g.t.Helper()
	sent, err := json.Marshal(body)
	if err != nil {
		g.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.url+"/console/_api/"+path, bytes.NewReader(sent))
	if err != nil {
		g.t.Fatal(err)
	}
	req.SetBasicAuth(person, "secret")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Console", "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// job returns a job as it is now.
func (g *gateway) job(id string) (j shown) {
	g.t.Helper()
	status, answer := g.call("ben", http.MethodGet, "jobs/"+id, nil)
	if err := json.Unmarshal(answer, &j); err != nil || status != http.StatusOK {
		g.t.Fatalf("job %s: %d %s", id, status, answer)
	}
	return j
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
