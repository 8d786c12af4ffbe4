package caddymodule

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
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// patience is how long something may take that is bound to happen. It is reached
// only when something is broken.
const patience = 30 * time.Second

// address is where the tested Caddy listens. There is one in the process, so
// that tests that load a configuration can't run in parallel.
var address string

func TestMain(m *testing.M) {
	if os.Getenv(asCaddy) != "" { // see cli_test.go
		caddycmd.Main()
		os.Exit(0)
	}
	port, release, err := testport.Find()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	address = "127.0.0.1:" + port
	code := m.Run()
	release()
	os.Exit(code)
}

// adapt returns the JSON of a Caddyfile.
func adapt(config string) ([]byte, error) {
	result, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(caddyfile.Format([]byte(config)), nil)
	return result, err
}

// adaptAsIs is adapt for a file whose lines matter.
func adaptAsIs(config string) ([]byte, error) {
	result, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), nil)
	return result, err
}

// site is a Caddyfile with one site, at the address. The data directory is the
// test's own.
func site(t *testing.T, block string) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(address)
	return global(t) + fmt.Sprintf(":%s {\n\tbind 127.0.0.1\n%s\n}\n", port, block)
}

func global(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_DATA_HOME", dir)
	return fmt.Sprintf("{\n\tadmin off\n\tpersist_config off\n\tstorage file_system %s\n\tlog {\n\t\toutput idempotency_test\n\t\tformat json\n\t}\n}\n", dir)
}

// load runs a Caddyfile, in place of the one that runs. At the test's end it is
// stopped, and nothing may be left of it.
func load(t *testing.T, config string) {
	t.Helper()
	t.Cleanup(func() {
		stop(t)
		caddyLog.CheckAll(t, documented(t))
	})
	if err := reload(config); err != nil {
		t.Fatalf("load: %v\n%s", err, config)
	}
}

// reload runs a Caddyfile in place of the one that a test has loaded.
func reload(config string) error {
	result, err := adapt(config)
	if err != nil {
		return err
	}
	return caddy.Load(result, true)
}

func stop(t *testing.T) {
	t.Helper()
	if err := caddy.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	held.wait(ctx)
	if n := openStores(); n > 0 {
		t.Errorf("%d stores are still open", n)
	}
}

// openStores is how many stores the process has open.
func openStores() int {
	held.mu.Lock()
	defer held.mu.Unlock()
	return len(held.gone)
}

// validate provisions a Caddyfile without running it, as caddy validate does.
func validate(config string) error {
	result, err := adapt(config)
	if err != nil {
		return err
	}
	return validateJSON(result)
}

func validateJSON(config []byte) error {
	var c caddy.Config
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	return caddy.Validate(&c)
}

// upstream counts the executions of each key.
type upstream struct {
	*httptest.Server
	mu   sync.Mutex
	hits map[string]int
	// entered gets a value when a request to /hold has come, which then waits
	// until release is closed.
	entered chan struct{}
	release chan struct{}
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{hits: make(map[string]int), entered: make(chan struct{}, 1000), release: make(chan struct{})}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	u.mu.Lock()
	u.hits[key]++
	n := u.hits[key]
	u.mu.Unlock()
	for name, values := range r.Header {
		if strings.HasPrefix(name, "X-Seen-") {
			w.Header()[name] = values
		}
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/hold"):
		u.entered <- struct{}{}
		<-u.release
	case strings.HasPrefix(r.URL.Path, "/die"), strings.HasPrefix(r.URL.Path, "/first-dies") && n == 1:
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(w, "%s %s execution %d", key, r.URL.Path, n)
}

// executions returns how often the key's request was carried out.
func (u *upstream) executions(key string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.hits[key]
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) code() string {
	var problem struct{ Code string }
	_ = json.Unmarshal([]byte(a.body), &problem)
	return problem.Code
}

// post sends a request with a key, on a connection of its own.
func post(t *testing.T, path, key string, header ...string) answer {
	t.Helper()
	a, err := send(context.Background(), path, key, header...)
	if err != nil {
		t.Fatalf("POST %s: %v", path, err)
	}
	return a
}

func send(ctx context.Context, path, key string, header ...string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, strings.NewReader("amount=10"))
	if err != nil {
		return a, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	return do(req)
}

// do sends a request on a connection of its own.
func do(req *http.Request) (a answer, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(body)}, err
}

// once is do where an error fails the test.
func once(t *testing.T, req *http.Request) answer {
	t.Helper()
	a, err := do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return a
}

// insist is post for times at which Caddy changes its listeners. It then drops
// connections that nobody has accepted yet, with this module or without.
func insist(t *testing.T, path, key string, header ...string) (a answer) {
	t.Helper()
	eventually(t, "the connection holds", func() (ok bool) {
		var err error
		a, err = send(context.Background(), path, key, header...)
		return err == nil
	})
	return a
}

// eventually waits for what is bound to come true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("still not so: %s", what)
			return
		}
	}
}

// wrongOptions are options of a directive's block that can't stand.
type wrongOptions struct {
	name, options string
	where         string // text in the line that the error names
	want          []string
}

// refused tests that they are, with the line, and what else the error has to say.
func (c wrongOptions) refused(t *testing.T) {
	t.Parallel()
	config := fmt.Sprintf(":80 {\n\tidempotency {\n%s\n\t}\n}\n", c.options)
	_, err := adaptAsIs(config)
	if err == nil {
		t.Fatalf("accepted:\n%s", config)
	}
	for _, want := range append(c.want, fmt.Sprintf("at Caddyfile:%d", lineOf(config, c.where))) {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// lineOf returns the number of the first line of a file that contains text.
func lineOf(file, text string) int {
	before, _, _ := strings.Cut(file, text)
	return strings.Count(before, "\n") + 1
}

func readFile(t testing.TB, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")))
}

// serveProvisioned returns a function that sends a request with a key through
// the first server of a configuration that is provisioned but not started.
func serveProvisioned(t *testing.T, config []byte) func(key string) answer {
	t.Helper()
	var c caddy.Config
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(&c)
	if err != nil {
		t.Fatal(err)
	}
	app, err := ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	server := app.(*caddyhttp.App).Servers["srv0"]
	return func(key string) answer {
		r := httptest.NewRequest(http.MethodPost, "http://"+address+"/pay", strings.NewReader("amount=10"))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		return answer{w.Code, w.Header(), w.Body.String()}
	}
}

// fakeRedis is a Redis in this process. It ends after its last client: what it still
// works at meanwhile would race with its end.
func fakeRedis(t *testing.T) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for began := time.Now(); m.Server() != nil && m.CurrentConnectionCount() > 0 && time.Since(began) < patience; {
			time.Sleep(time.Millisecond)
		}
		m.Close()
	})
	return m
}
