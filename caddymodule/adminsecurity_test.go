package caddymodule

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// What a page of another site makes the operator's browser send changes nothing.
// Caddy's own check is in front of ours, and can be configured away; so each call
// is made both through the endpoint and straight to the handler.
func TestSEC10CrossSitePostToTheAdminEndpoint(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	id := makeUnknown(t, "k")
	_, port, _ := strings.Cut(admin, ":")
	for name, header := range map[string][]string{
		"text/plain":                         {"Origin", "https://evil.example", "Content-Type", "text/plain"},
		"text/plain, with Sec-Fetch-Site":    {"Origin", "https://evil.example", "Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"},
		"JSON":                               {"Origin", "https://evil.example"},
		"JSON, with Sec-Fetch-Site":          {"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"},
		"only Sec-Fetch-Site":                {"Sec-Fetch-Site", "cross-site"},
		"another port":                       {"Origin", "http://127.0.0.1:1"},
		"another port, with Sec-Fetch-Site":  {"Origin", "http://localhost:1", "Sec-Fetch-Site", "same-site"},
		"same port of another name":          {"Origin", "http://evil.example:" + port},
		"no origin at all, in a sandbox":     {"Origin", "null"},
		"text/plain of nobody in particular": {"Content-Type", "text/plain"},
	} {
		for path, body := range map[string]string{
			"jobs/" + id + "/resolve": `{"as":"failed","actor":"mallory","evidence":"none"}`,
			"jobs/" + id + "/forget":  `{"actor":"mallory"}`,
			"find":                    `{"shared":true,"key":"k"}`,
		} {
			if got := ask(t, admin, "POST", path, body, header...); got.status != 403 && got.status != 415 && got.status != 400 {
				t.Errorf("%s: POST %s through the endpoint: %d %s", name, path, got.status, got.body)
			}
			r := httptest.NewRequest("POST", "http://"+admin+adminPrefix+path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			w := httptest.NewRecorder()
			if err := serveAdmin(w, r); err != nil || (w.Code != 403 && w.Code != 415) {
				t.Errorf("%s: POST %s: %d %s, %v", name, path, w.Code, w.Body, err)
			}
		}
		if name == "text/plain of nobody in particular" {
			continue
		}
		r := httptest.NewRequest("GET", "http://"+admin+adminPrefix+"jobs", nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		if err := serveAdmin(w, r); err != nil || w.Code != 403 {
			t.Errorf("%s: GET: %d %s, %v", name, w.Code, w.Body, err)
		}
	}
	j := ask(t, admin, "GET", "jobs/"+id, "").job(t)
	if j.State != "unknown" || j.Attempts[0].Resolution != nil || j.Version != 1 {
		t.Errorf("the job has changed: %+v", j)
	}
	if n := u.executions("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
	// A page of the endpoint itself, and what is no browser, may.
	for _, header := range [][]string{{"Origin", "http://" + admin}, {"Origin", "http://" + admin, "Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}, nil} {
		if got := ask(t, admin, "POST", "find", `{"shared":true,"key":"k"}`, header...); got.status != 200 {
			t.Errorf("%v: %d %s", header, got.status, got.body)
		}
	}
}

func TestAdminToken(t *testing.T) {
	u := newUpstream(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_ADMIN_TOKEN", "from-env")
	config, admin := adminSite(t, "idempotency {\nadmin_token {env.TEST_ADMIN_TOKEN}\n}", protect(u, "owner shared"))
	if adapted, err := adapt(config); err != nil || !strings.Contains(string(adapted), `"idempotency":{"admin_token":"{env.TEST_ADMIN_TOKEN}"}`) {
		t.Errorf("adapted to %s, %v", adapted, err)
	}
	load(t, config)
	id := makeUnknown(t, "k")
	status := func(authorization string) int {
		t.Helper()
		var header []string
		if authorization != "" {
			header = []string{"Authorization", authorization}
		}
		got := ask(t, admin, "GET", "jobs/"+id, "", header...)
		if got.status == 401 && (got.code() != codeUnauthorized || got.header.Get("WWW-Authenticate") == "") {
			t.Errorf("refused with %s", got.body)
		}
		return got.status
	}
	try := func(when string, want map[string]int) {
		t.Helper()
		for authorization, want := range want {
			if got := status(authorization); got != want {
				t.Errorf("%s, with %q: %d, want %d", when, authorization, got, want)
			}
		}
	}
	try("at first", map[string]int{
		"": 401, "Bearer": 401, "Bearer ": 401, "Bearer wrong": 401, "Bearer from-en": 401, "Bearer from-envx": 401, "Basic from-env": 401, "from-env": 401,
		"Bearer {env.TEST_ADMIN_TOKEN}": 401, "Bearer from-env": 200, "bearer from-env": 200,
	})
	if got := ask(t, admin, "POST", "jobs/"+id+"/resolve", `{"as":"failed","actor":"a","evidence":"e"}`, "Authorization", "Bearer wrong"); got.status != 401 {
		t.Errorf("resolve with a wrong token: %d", got.status)
	}
	if got := ask(t, admin, "GET", "nothing", "", "Authorization", "Bearer wrong"); got.status != 401 {
		t.Errorf("what there is, is told without the token: %d", got.status)
	}
	// The token is that of the configuration that runs.
	if err := reload(strings.Replace(config, "{env.TEST_ADMIN_TOKEN}", "{file."+file+"}", 1)); err != nil {
		t.Fatal(err)
	}
	try("after a reload", map[string]int{"": 401, "Bearer from-env": 401, "Bearer from-file": 200})
	failing := strings.Replace(config, "bind 127.0.0.1", "bind 192.0.2.1", 1)
	if err := reload(failing); err == nil {
		t.Fatal("a configuration that can't start has started")
	}
	try("after a failed reload", map[string]int{"": 401, "Bearer from-env": 401, "Bearer from-file": 200})
	if err := reload(strings.Replace(config, "admin_token {env.TEST_ADMIN_TOKEN}", "", 1)); err != nil {
		t.Fatal(err)
	}
	try("without one", map[string]int{"": 200, "Bearer from-file": 200})
}

func TestAdminTokenThatCannotBe(t *testing.T) {
	u := newUpstream(t)
	config, _ := adminSite(t, "idempotency {\nadmin_token %s\n}", protect(u, "owner shared"))
	t.Setenv("TEST_EMPTY", "")
	t.Setenv("TEST_SPACE", "a s3cret")
	for token, want := range map[string]string{
		"{env.TEST_EMPTY}": "admin_token", "{env.TEST_SPACE}": "visible ASCII", "{nosuch.thing}": "nosuch.thing", `""`: "admin_token", "": "admin_token",
		"a b": "admin_token", "a\nadmin_token b": "given twice", "a\nretention 1h": "retention",
		"a\n}\nidempotency {\nadmin_token b": "given twice",
	} {
		err := validate(strings.Replace(config, "%s", token, 1))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", token, err)
		}
	}
}

// Neither token nor key, owner or body gets into a log.
func TestAdminLogsNoSecrets(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "idempotency {\nadmin_token t-in-clear\n}", protect(u, "owner {http.request.header.X-User}"))
	load(t, config)
	var log lockedBuffer
	listener := &App{log: slog.NewTextHandler(&log, nil)}
	began(listener)
	t.Cleanup(func() { ended(listener) })
	right := []string{"Authorization", "Bearer t-in-clear"}
	post(t, "/die/1", "k-in-clear", "X-User", "o-in-clear")
	ask(t, admin, "POST", "find", `{"owner":"o-in-clear","key":"k-in-clear"}`)
	found := ask(t, admin, "POST", "find", `{"owner":"o-in-clear","key":"k-in-clear"}`, right...).job(t)
	ask(t, admin, "POST", "find", `{"owner":"o-in-clear","key":"other-in-clear"}`, right...)
	ask(t, admin, "POST", "jobs/"+found.ID+"/resolve", `{"as":"succeeded","actor":"alice","evidence":"e-in-clear","response":{"status":200,"body":"b-in-clear"}}`, right...)
	if s := log.String(); strings.Contains(s, "in-clear") || !strings.Contains(s, codeUnauthorized) || !strings.Contains(s, "alice") {
		t.Errorf("logged: %s", s)
	}
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
