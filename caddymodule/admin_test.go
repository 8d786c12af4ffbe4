package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// adminSite is a site with an admin endpoint, at the address that is returned.
// The options are those of the global block.
func adminSite(t *testing.T, options, block string) (config, admin string) {
	t.Helper()
	admin = "127.0.0.1:" + testport.Take(t)
	return strings.Replace(site(t, block), "admin off", "admin "+admin+"\n"+options, 1), admin
}

// adminAnswer is an answer of the admin API.
type adminAnswer struct {
	status int
	header http.Header
	body   string
}

func (a adminAnswer) code() string { return a.problem().Code }

func (a adminAnswer) problem() (p adminError) {
	_ = json.Unmarshal([]byte(a.body), &p)
	return p
}

func (a adminAnswer) job(t *testing.T) *jobView {
	t.Helper()
	var j jobView
	if err := json.Unmarshal([]byte(a.body), &j); err != nil || a.status != 200 {
		t.Fatalf("got %d, no job: %s", a.status, a.body)
	}
	return &j
}

func (a adminAnswer) page(t *testing.T) (p jobsPage) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != 200 {
		t.Fatalf("got %d, no page of jobs: %s", a.status, a.body)
	}
	return p
}

// ask calls the admin API. A body goes as JSON, unless the header says else.
func ask(t *testing.T, admin, method, path, body string, header ...string) adminAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+admin+adminPrefix+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	var res *http.Response
	// The admin endpoint is replaced with each configuration.
	eventually(t, "the admin endpoint answers", func() bool {
		req.Body = io.NopCloser(strings.NewReader(body))
		res, err = client.Do(req)
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return adminAnswer{res.StatusCode, res.Header, string(text)}
}

// makeUnknown makes a job unknown, and returns its id.
func makeUnknown(t *testing.T, key string) string {
	t.Helper()
	a := post(t, "/die/"+key, key)
	if a.status != 504 || a.code() != "outcome-unknown" {
		t.Fatalf("got %+v", a)
	}
	return a.header.Get("Idempotency-Job")
}

func TestAdminShowsJobs(t *testing.T) {
	for name, store := range map[string]string{"bolt": "store bolt", "redis": "store redis redis://" + fakeRedis(t).Addr()} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			config, admin := adminSite(t, "", protect(u, "owner {http.request.header.X-User}\n"+store))
			load(t, config)
			a := post(t, "/die/17?secret=1", "k-in-clear", "X-User", "alice-in-clear", "Content-Type", "text/plain")
			id := a.header.Get("Idempotency-Job")
			post(t, "/pay", "done", "X-User", "bob")

			list := ask(t, admin, "GET", "jobs?state=unknown", "")
			page := list.page(t)
			if len(page.Jobs) != 1 || page.Next != "" || page.Jobs[0].ID != id {
				t.Fatalf("listed %s", list.body)
			}
			shown := ask(t, admin, "GET", "jobs/"+id, "")
			j := shown.job(t)
			e := j.Attempts[0].Evidence
			if j.Store != name || j.Space != "main" || j.State != "unknown" || len(j.Owner) != 64 || j.Age == "" || !j.Expires.IsZero() || j.Result != nil ||
				time.Since(j.Created).Abs() > time.Hour || j.Request != (requestView{Method: "POST", Host: address, Path: "/die/17", MediaType: "text/plain", Size: 9}) {
				t.Errorf("job %+v", j)
			}
			if at := j.Attempts[0]; j.AttemptCount != 1 || len(j.Attempts) != 1 || at.Number != 1 || at.State != "unknown" || at.Reason == "" ||
				at.Started.IsZero() || at.Ended.IsZero() || at.Took == "" || at.Lease.IsZero() {
				t.Errorf("attempt %+v", at)
			}
			if !e.Observed || e.Asked != 1 || e.Connected != 1 || e.Sent != 1 || e.FirstByte != 0 || e.Resent || e.Upstream != u.Listener.Addr().String() {
				t.Errorf("evidence %+v", e)
			}
			for _, find := range []string{
				`{"space":"main","owner":"alice-in-clear","key":"k-in-clear"}`,
				`{"owner":"alice-in-clear","key":"\"k-in-clear\""}`,
			} {
				if got := ask(t, admin, "POST", "find", find); got.job(t).ID != id {
					t.Errorf("find %s: %s", find, got.body)
				}
			}
			done := ask(t, admin, "POST", "find", `{"owner":"bob","key":"done"}`)
			if d := done.job(t); d.State != "completed" || d.Expires.IsZero() || d.Result == nil || d.Result.Status != 200 ||
				d.Result.Attempt != 1 || !d.Result.Kept || d.Result.Size == 0 || d.Result.Answered.IsZero() {
				t.Errorf("completed job %s", done.body)
			}
			for _, text := range []string{list.body, shown.body, done.body, ask(t, admin, "GET", "stats", "").body} {
				for _, secret := range []string{"in-clear", "secret", "amount", "execution", "bob", "redis://"} {
					if strings.Contains(text, secret) {
						t.Errorf("%q is shown in %s", secret, text)
					}
				}
			}
		})
	}
}

func TestAdminListsByFilterAndPage(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared\nspace s1"))
	load(t, config)
	ids := make(map[string]bool)
	for n := range 5 {
		ids[makeUnknown(t, fmt.Sprint("k", n))] = true
	}
	post(t, "/pay", "done")
	for filter, want := range map[string]int{
		"": 6, "state=completed": 1, "state=open": 0, "state=unknown": 5, "state=running": 0, "state=unknown&space=s1": 5, "state=unknown&space=s2": 0,
		"state=unknown&min_age=1h": 0, "state=unknown&min_age=0s": 5, "state=unknown&provider=other": 0, "state=unknown&store=bolt": 5,
	} {
		if got := ask(t, admin, "GET", "jobs?"+filter, ""); len(got.page(t).Jobs) != want {
			t.Errorf("%s: %s", filter, got.body)
		}
	}
	cursor := ""
	for pages := 1; ; pages++ {
		page := ask(t, admin, "GET", "jobs?state=unknown&limit=2&cursor="+cursor, "").page(t)
		if len(page.Jobs) > 2 {
			t.Errorf("%d jobs on a page", len(page.Jobs))
		}
		for _, j := range page.Jobs {
			if !ids[j.ID] {
				t.Errorf("%s is listed twice, or is none of them", j.ID)
			}
			delete(ids, j.ID)
		}
		if cursor = page.Next; cursor == "" || pages > 10 {
			break
		}
	}
	if len(ids) > 0 {
		t.Errorf("never listed: %v", ids)
	}
	for _, wrong := range []string{
		"state=lost", "min_age=old", "min_age=-1s", "limit=0", "limit=x", "limit=100000", "store=redis", "cursor=x", "cursor=" + joinCursor("redis", ""),
		"cursor=" + joinCursor("bolt", "x"),
	} {
		if got := ask(t, admin, "GET", "jobs?"+wrong, ""); got.status != 400 || got.code() != codeBadCall {
			t.Errorf("%s: %d %s", wrong, got.status, got.body)
		}
	}
}

// Several stores are listed one after the other, and a job is found in whichever
// it is.
func TestAdminWithSeveralStores(t *testing.T) {
	u, dir := newUpstream(t), t.TempDir()
	redis := fakeRedis(t)
	config, admin := adminSite(t, "", fmt.Sprintf("handle /die/a {\n%s\n}\nhandle /die/b {\n%s\n}\nhandle {\n%s\n}",
		protect(u, "owner shared\nstore bolt "+dir+"/a.db"), protect(u, "owner shared\nstore bolt "+dir+"/b.db"),
		protect(u, "owner shared\nstore redis redis://"+redis.Addr())))
	load(t, config)
	stores := map[string]string{makeUnknown(t, "a"): "bolt-1", makeUnknown(t, "b"): "bolt-2", makeUnknown(t, "c"): "redis"}
	var order []string
	cursor := ""
	for {
		page := ask(t, admin, "GET", "jobs?state=unknown&cursor="+cursor, "").page(t)
		for _, j := range page.Jobs {
			order = append(order, j.Store)
			if stores[j.ID] != j.Store {
				t.Errorf("%s is in %s", j.ID, j.Store)
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if got := strings.Join(order, " "); got != "bolt-1 bolt-2 redis" {
		t.Errorf("listed %s", got)
	}
	for id, store := range stores {
		if j := ask(t, admin, "GET", "jobs/"+id, "").job(t); j.Store != store {
			t.Errorf("shown in %s", j.Store)
		}
	}
	var stats statsAnswer
	if err := json.Unmarshal([]byte(ask(t, admin, "GET", "stats", "").body), &stats); err != nil || len(stats.Stores) != 3 ||
		stats.Stores[0].Path != filepath.Join(dir, "a.db") || stats.Stores[2].Path != "" || stats.Stores[0].Unknown != 1 || stats.Stores[0].OldestUnknown == "" {
		t.Errorf("stats %+v, %v", stats, err)
	}

	redis.Close() // one of them is down
	for id, store := range stores {
		want := 200
		if store == "redis" {
			want = 503
		}
		if got := ask(t, admin, "GET", "jobs/"+id, ""); got.status != want || (want == 503 && got.code() != codeNoStore) {
			t.Errorf("%s: %d %s", store, got.status, got.body)
		}
	}
	if got := ask(t, admin, "GET", "jobs?state=unknown&store=bolt-2", ""); len(got.page(t).Jobs) != 1 {
		t.Errorf("of one store: %s", got.body)
	}
}

func TestAdminRefusals(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	id := makeUnknown(t, "k")
	decision := `{"as":"failed","actor":"alice","evidence":"journal"}`
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
		header             []string
	}{
		{"GET", "nothing", "", 404, codeNotFound, nil},
		{"GET", "jobs/", "", 404, codeNoJob, nil},
		{"GET", "jobs/" + id + "x", "", 404, codeNoJob, nil},
		{"GET", "jobs/" + id[:64] + ".00000000", "", 404, codeNoJob, nil},
		{"DELETE", "jobs/" + id, "", 405, codeMethod, nil},
		{"GET", "jobs/" + id + "/resolve", "", 405, codeMethod, nil},
		{"POST", "stats", "", 405, codeMethod, nil},
		{"POST", "find", `{"owner":"","key":"k"}`, 400, codeBadCall, nil},
		{"POST", "find", `{"owner":"alice","shared":true,"key":"k"}`, 400, codeBadCall, nil},
		{"POST", "find", `{"shared":true}`, 400, codeBadCall, nil},
		{"POST", "find", `{"owner":"alice","key":"k"}`, 404, codeNoJob, nil},
		{"POST", "find", `{"shared":true,"key":"k"`, 400, codeBadCall, nil},
		{"POST", "find", `{"shared":true,"key":"k"} {}`, 400, codeBadCall, nil},
		{"POST", "find", `{"shared":true,"key":"k","x":1}`, 400, codeBadCall, nil},
		{"POST", "find", `shared=true&key=k`, 415, codeMediaType, []string{"Content-Type", "application/x-www-form-urlencoded"}},
		{"POST", "jobs/" + id + "/resolve", decision, 415, codeMediaType, []string{"Content-Type", "text/plain"}},
		{"POST", "jobs/" + id[:64] + ".00000000/resolve", decision, 404, codeNoJob, nil},
		{"POST", "jobs/" + id + "/resolve", `{"as":"failed","evidence":"journal"}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/resolve", `{"as":"failed","actor":"alice"}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/resolve", `{"as":"lost","actor":"alice","evidence":"journal"}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/resolve", `{"as":"succeeded","actor":"alice","evidence":"journal"}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/resolve", `{"as":"failed","actor":"alice","evidence":"journal","response":{"status":200}}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/resolve", `{"attempt":2,"as":"failed","actor":"alice","evidence":"journal"}`, 400, codeNoAttempt, nil},
		{"POST", "jobs/" + id + "/resolve", `{"as":"failed","actor":"` + strings.Repeat("a", 257) + `","evidence":"journal"}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/resolve", `{"as":"failed","actor":"alice","evidence":"` + strings.Repeat("e", 4097) + `"}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/forget", `{"actor":""}`, 400, codeBadCall, nil},
		{"POST", "jobs/" + id + "/forget", `{"actor":"alice"}`, 409, codeNotForgettable, nil},
	} {
		got := ask(t, admin, c.method, c.path, c.body, c.header...)
		if got.status != c.status || got.code() != c.code || got.problem().Message == "" || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, got.status, got.body, c.status, c.code)
		}
	}
	if s := ask(t, admin, "GET", "jobs/"+id, "").job(t).State; s != "unknown" {
		t.Errorf("the job is %s", s)
	}
	if got := ask(t, admin, "DELETE", "stats", ""); got.header.Get("Allow") != "GET" {
		t.Errorf("Allow: %q", got.header.Get("Allow"))
	}
	// Straight to the handler: an endpoint that stops reading can break the
	// connection before its answer is read.
	large := httptest.NewRequest("POST", "http://"+admin+adminPrefix+"find", io.MultiReader(
		strings.NewReader(`{"key":"`), bytes.NewReader(bytes.Repeat([]byte("k"), maxAdminBody)), strings.NewReader(`"}`)))
	large.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if err := serveAdmin(w, large); err != nil || w.Code != 413 {
		t.Errorf("a body that is too large: %d %s, %v", w.Code, w.Body, err)
	}
}

// Two owners who differ in white space alone are two, also for whoever looks for a job
// by its key.
func TestAdminFindsTheOwnerByteByByte(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner {http.request.uri.query.u}"))
	load(t, config)
	jobs := make(map[string]string)
	for _, owner := range []string{"alice", "alice ", "\u00a0alice"} {
		jobs[owner] = post(t, "/pay?u="+url.PathEscape(owner), "k").header.Get("Idempotency-Job")
	}
	for owner, id := range jobs {
		if got := ask(t, admin, "POST", "find", `{"owner":"`+owner+`","key":"k"}`); got.status != 200 || got.job(t).ID != id {
			t.Errorf("%q: %d %s, want the job %s", owner, got.status, got.body, id)
		}
	}
	for _, owner := range []string{" alice", "alice  ", " "} {
		if got := ask(t, admin, "POST", "find", `{"owner":"`+owner+`","key":"k"}`); got.status != 404 && got.status != 400 {
			t.Errorf("%q: %d %s", owner, got.status, got.body)
		}
	}
}

func TestAdminWhereNothingRuns(t *testing.T) {
	config, admin := adminSite(t, "", "respond hello")
	load(t, config)
	if got := ask(t, admin, "GET", "jobs", ""); got.status != 503 || got.code() != codeNotRunning {
		t.Errorf("without a handler: %d %s", got.status, got.body)
	}
	config = strings.Replace(config, "admin "+admin, "admin "+admin+"\nidempotency {\nadmin_token s3cret\n}", 1)
	if err := reload(config); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, admin, "GET", "jobs", ""); got.status != 503 || got.code() != codeNotRunning {
		t.Errorf("with the app, but no handler: %d %s", got.status, got.body)
	}
	stop(t)
	if got := ask(t, admin, "GET", "jobs", ""); got.status != 503 || got.code() != codeNotRunning {
		t.Errorf("stopped: %d %s", got.status, got.body)
	}
}
