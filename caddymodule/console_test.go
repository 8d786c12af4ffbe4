package caddymodule

import (
	"io"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// consoleSite has a console, for people whom a header names, and a protected
// upstream.
func consoleSite(u *upstream, options string) string {
	return "handle_path /console* {\nidempotency_console {\n" + options + "\n}\n}\nhandle {\n" + protect(u, "owner shared") + "\n}"
}

const userOfHeader = "user {http.request.header.X-User}"

// ours is what the console's page sends with a call that decides something.
var ours = []string{"X-User", "anna", "Sec-Fetch-Site", "same-origin", consoleHeader, "1", "Content-Type", "application/json"}

// browse asks the site for something, on a connection of its own.
func browse(t *testing.T, method, path, body string, header ...string) adminAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(header, 2) {
		if pair[0] == "Host" {
			req.Host = pair[1]
		}
		req.Header.Set(pair[0], pair[1])
	}
	client := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
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

// checkGuarded checks that an answer lets a browser do nothing but what the page is
// for.
func checkGuarded(t *testing.T, path string, a adminAnswer) {
	t.Helper()
	policy := a.header.Get("Content-Security-Policy")
	for _, rule := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !slices.Contains(strings.Split(policy, "; "), rule) {
			t.Errorf("%s: the policy %q has no %q", path, policy, rule)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") || strings.Contains(policy, "data:") {
		t.Errorf("%s: policy %q", path, policy)
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: %s is %q", path, name, got)
		}
	}
}

func TestConsoleServesItsPage(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, consoleSite(u, userOfHeader)+"\nhandle /plain/* {\nidempotency_console {\nunprotected\n}\n}"))
	page := browse(t, "GET", "/console/", "", "X-User", "anna", "Sec-Fetch-Site", "none")
	checkGuarded(t, "/console/", page)
	if page.status != 200 || page.header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(page.body, "<main") {
		t.Errorf("the page: %d %v", page.status, page.header)
	}
	// Whatever the page asks for is there, and is of the page's own place.
	asked := regexp.MustCompile(`(?:src|href|from|import)[= ]*["'](\./)?([^"'#]+)["']`)
	todo, seen := []string{page.body}, map[string]bool{}
	for len(todo) > 0 {
		text := todo[0]
		todo = todo[1:]
		for _, found := range asked.FindAllStringSubmatch(text, -1) {
			name := found[2]
			if seen[name] {
				continue
			}
			seen[name] = true
			a := browse(t, "GET", "/console/"+name, "", "X-User", "anna")
			checkGuarded(t, name, a)
			if a.status != 200 || a.header.Get("Content-Type") == "" || a.body == "" {
				t.Errorf("%s: %d %v", name, a.status, a.header)
			}
			todo = append(todo, a.body)
		}
	}
	err := fs.WalkDir(consoleFiles, "console", func(path string, d fs.DirEntry, _ error) error {
		if name := d.Name(); !d.IsDir() && name != "index.html" && !seen[name] {
			t.Errorf("%s is not used", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if text := browse(t, "GET", "/plain/", "").body; text != page.body {
		t.Error("where the path is not stripped the page is another one")
	}
	for path, want := range map[string]string{"/console": "./console/", "/plain/sub": "./sub/"} {
		if a := browse(t, "GET", path, "", "X-User", "anna"); a.status != 302 || a.header.Get("Location") != want {
			t.Errorf("%s leads to %d %q", path, a.status, a.header.Get("Location"))
		}
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"HEAD", "/console/", 200},
		{"POST", "/console/", 405},
		{"GET", "/console/nosuch.js", 404},
		{"GET", "/console/..%2f..%2fconsole.go", 404},
		{"GET", "/console/_api/nosuch", 404},
		{"GET", "/console/_api/", 404},
	} {
		if a := browse(t, c.method, c.path, "", "X-User", "anna"); a.status != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
}

// Nobody whom the site has not authenticated is served, whatever they ask for.
func TestConsoleServesNobodyUnknown(t *testing.T) {
	u := newUpstream(t)
	for name, c := range map[string]struct {
		block  string
		header []string
	}{
		"nothing in front of it": {consoleSite(u, "user {http.auth.user.id}"), ours},
		"an empty header":        {consoleSite(u, userOfHeader), []string{consoleHeader, "1", "Content-Type", "application/json"}},
		"a header of spaces":     {consoleSite(u, userOfHeader), []string{"X-User", "  ", consoleHeader, "1", "Content-Type", "application/json"}},
	} {
		t.Run(name, func(t *testing.T) {
			load(t, site(t, c.block))
			key := strings.ReplaceAll(name, " ", "-")
			id := makeUnknown(t, key)
			for _, path := range []string{"", "console.js", "_api/session", "_api/jobs", "_api/jobs/" + id} {
				a := browse(t, "GET", "/console/"+path, "", c.header...)
				checkGuarded(t, path, a)
				if a.status != 403 || a.code() != codeNobody || strings.Contains(a.body, id) {
					t.Errorf("%s: %d %s", path, a.status, a.body)
				}
			}
			if a := browse(t, "POST", "/console/_api/jobs/"+id+"/resolve", `{"as":"failed","actor":"mallory","evidence":"none"}`, c.header...); a.status != 403 {
				t.Errorf("resolve: %d %s", a.status, a.body)
			}
			if a := post(t, "/die/"+key, key); a.code() != "outcome-unknown" || u.executions(key) != 1 {
				t.Errorf("after it: %+v, %d executions", a, u.executions(key))
			}
		})
	}
}

// With Caddy's own authentication in front, who decides is whom that has let in, not
// whom the call names.
func TestConsoleKeepsWhoDecides(t *testing.T) {
	u := newUpstream(t)
	const hash = "$2a$04$TAMbZye6KH7AUtK6A39xyOqalEedEXBZ971xAuk.sD3ViisFCi7IG"
	load(t, site(t, "basic_auth /console* {\nanna "+hash+"\n}\n"+consoleSite(u, "user {http.auth.user.id}")))
	if a := browse(t, "GET", "/console/", ""); a.status != 401 || a.header.Get("WWW-Authenticate") == "" {
		t.Errorf("without a password: %d", a.status)
	}
	anna := append([]string{"Authorization", "Basic YW5uYTpzZWNyZXQ="}, ours[2:]...)
	if a := browse(t, "GET", "/console/_api/session", "", anna...); strings.TrimSpace(a.body) != `{"user":"anna","unprotected":false}` {
		t.Errorf("session: %s", a.body)
	}
	id := makeUnknown(t, "k")
	a := browse(t, "POST", "/console/_api/jobs/"+id+"/resolve", `{"attempt":1,"as":"failed","actor":"ben","evidence":"journal"}`, anna...)
	if r := a.job(t).Attempts[0].Resolution; r == nil || r.Actor != "anna" || r.Evidence != "journal" {
		t.Errorf("resolved by %+v", r)
	}
	done := post(t, "/pay", "f").header.Get("Idempotency-Job")
	if a := browse(t, "POST", "/console/_api/jobs/"+done+"/forget", `{}`, anna...); a.status != 200 {
		t.Errorf("forget: %d %s", a.status, a.body)
	}
}

// Who is asked in an unprotected console is believed.
func TestUnprotectedConsole(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, consoleSite(u, "unprotected")))
	id := makeUnknown(t, "k")
	if a := browse(t, "GET", "/console/_api/session", ""); strings.TrimSpace(a.body) != `{"unprotected":true}` {
		t.Errorf("session: %s", a.body)
	}
	if a := browse(t, "POST", "/console/_api/jobs/"+id+"/resolve", `{"attempt":1,"as":"failed","evidence":"journal"}`, ours...); a.status != 400 {
		t.Errorf("without a name: %d %s", a.status, a.body)
	}
	a := browse(t, "POST", "/console/_api/jobs/"+id+"/resolve", `{"attempt":1,"as":"failed","actor":"ben","evidence":"journal"}`, ours...)
	if r := a.job(t).Attempts[0].Resolution; r == nil || r.Actor != "ben" {
		t.Errorf("resolved by %+v", r)
	}
}

// A page can have its own name lead to this machine, and be of the console's origin
// then. Where a password protects the console, it has none for that name.
func TestUnprotectedConsoleHasNoOtherName(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, consoleSite(u, "unprotected")))
	id := makeUnknown(t, "k")
	_, port, _ := strings.Cut(address, ":")
	for host, status := range map[string]int{
		"evil.example": 403, "evil.example:" + port: 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403,
		"localhost:" + port: 200, "ops.localhost": 200, "[::1]:" + port: 200, "[::1]": 200, address: 200, "10.1.2.3": 200,
	} {
		for _, path := range []string{"", "_api/jobs/" + id} {
			if a := browse(t, "GET", "/console/"+path, "", "Host", host); a.status != status {
				t.Errorf("%s as %s: %d %s", path, host, a.status, a.body)
			}
		}
	}
}

// What a page of another site makes the operator's browser send decides nothing.
func TestConsoleRefusesOtherSites(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, consoleSite(u, userOfHeader)))
	id := makeUnknown(t, "k")
	decision := `{"attempt":1,"as":"failed","actor":"mallory","evidence":"none"}`
	for name, c := range map[string]struct {
		header []string
		status int
	}{
		"another site":                {[]string{"Sec-Fetch-Site", "cross-site", consoleHeader, "1"}, 403},
		"another port of this site":   {[]string{"Sec-Fetch-Site", "same-site", consoleHeader, "1"}, 403},
		"an origin of somebody":       {[]string{"Origin", "https://evil.example", consoleHeader, "1"}, 403},
		"no origin, in a sandbox":     {[]string{"Origin", "null", consoleHeader, "1"}, 403},
		"without the page's header":   {[]string{"Sec-Fetch-Site", "same-origin"}, 403},
		"a form, without that header": {[]string{"Content-Type", "application/x-www-form-urlencoded"}, 403},
		"a form, with that header":    {[]string{"Content-Type", "text/plain", consoleHeader, "1"}, 415},
	} {
		header := append([]string{"X-User", "anna", "Content-Type", "application/json"}, c.header...)
		for _, what := range []string{"jobs/" + id + "/resolve", "jobs/" + id + "/forget", "find", "prove"} {
			if a := browse(t, "POST", "/console/_api/"+what, decision, header...); a.status != c.status {
				t.Errorf("%s: %s: %d %s", name, what, a.status, a.body)
			}
		}
		// Nor can such a page read what it is not to know.
		if strings.Contains(name, "site") || strings.Contains(name, "origin") {
			if a := browse(t, "GET", "/console/_api/jobs", "", header...); a.status != 403 {
				t.Errorf("%s: GET: %d %s", name, a.status, a.body)
			}
		}
	}
	if a := browse(t, "GET", "/console/_api/jobs/"+id+"/resolve", "", ours...); a.status != 405 {
		t.Errorf("a decision by GET: %d %s", a.status, a.body)
	}
	j := browse(t, "GET", "/console/_api/jobs/"+id, "", ours...).job(t)
	if j.State != "unknown" || j.Attempts[0].Resolution != nil || u.executions("k") != 1 {
		t.Errorf("the job has changed: %+v", j)
	}
}

// Whoever decides second is told what the first one has decided, and changes nothing.
func TestConsoleTellsOfALostRace(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, consoleSite(u, userOfHeader)))
	id := makeUnknown(t, "k")
	path := "/console/_api/jobs/" + id + "/resolve"
	first := browse(t, "POST", path, `{"attempt":1,"as":"succeeded","evidence":"journal","response":{"status":201,"body":"charged"}}`, ours...)
	if first.job(t).State != "completed" {
		t.Fatalf("first: %s", first.body)
	}
	ben := append([]string{"X-User", "ben"}, ours[2:]...)
	second := browse(t, "POST", path, `{"attempt":1,"as":"failed","evidence":"not in the journal"}`, ben...)
	if second.status != 409 || second.code() != codeNotResolvable {
		t.Fatalf("second: %d %s", second.status, second.body)
	}
	if j := second.problem().Job; j == nil || j.State != "completed" || j.Attempts[0].Resolution == nil || j.Attempts[0].Resolution.Actor != "anna" {
		t.Errorf("the second is told of %+v", j)
	}
	if a := post(t, "/die/k", "k"); a.status != 201 || a.body != "charged" || u.executions("k") != 1 {
		t.Errorf("a repetition got %+v, after %d executions", a, u.executions("k"))
	}
}

func TestConsoleWithoutHandlers(t *testing.T) {
	load(t, site(t, "idempotency_console {\nunprotected\n}"))
	if a := browse(t, "GET", "/", ""); a.status != 200 {
		t.Errorf("the page: %d", a.status)
	}
	if a := browse(t, "GET", "/_api/jobs", ""); a.status != 503 || a.code() != codeNotRunning {
		t.Errorf("jobs: %d %s", a.status, a.body)
	}
}

// The directive needs no order, and comes after authentication.
func TestConsoleComesAfterAuthentication(t *testing.T) {
	t.Parallel()
	adapted, err := adapt(":80 {\n\tidempotency_console {\n\t\tuser {http.auth.user.id}\n\t}\n\tforward_auth localhost:9091 {\n\t\turi /verify\n\t}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	auth, console := strings.Index(string(adapted), "reverse_proxy"), strings.Index(string(adapted), "idempotency_console")
	if auth < 0 || console < auth {
		t.Errorf("adapted to %s", adapted)
	}
}

func TestWrongOptionsOfTheConsoleAreRefused(t *testing.T) {
	t.Parallel()
	for options, want := range map[string][]string{
		"":                                {"idempotency_console: everybody could settle jobs", "basic_auth", "`user {http.auth.user.id}`", "`unprotected`", ":2"},
		"user":                            {"user: write `user {http.auth.user.id}`", ":3"},
		"user anna":                       {`user "anna": the same for everybody`, "basic_auth", ":3"},
		"user {env.USER}":                 {"the same for everybody", ":3"},
		"user {http.request.remote.host}": {"nobody has authenticated", "basic_auth", ":3"},
		"user {http.request.uri.query.u}": {"nobody has authenticated", ":3"},
		"user {http.request.cookie.u}":    {"nobody has authenticated", ":3"},
		"user {http.auth.user.id}-{host}": {"nobody has authenticated", ":3"},
		"user {client_ip}":                {"nobody has authenticated", "basic_auth", ":3"},
		"user {vars.uuid}":                {"nobody has authenticated", ":3"},
		"user {http.response.header.X-A}": {"nobody has authenticated", ":3"},
		"user {err.message}":              {"nobody has authenticated", ":3"},
		"user a b":                        {"user a b: write", ":3"},
		"user {http.auth.user.id}\nuser {http.auth.user.id}": {"given twice", ":4"},
		"user {http.auth.user.id}\nunprotected":              {"unprotected: there is a user as well", ":4"},
		"unprotected on":                                     {"unprotected on: stands alone", ":3"},
		"owner shared":                                       {"no such option of idempotency_console; the options are unprotected, user", ":3"},
	} {
		_, err := adaptAsIs(":80 {\n\tidempotency_console {\n" + options + "\n\t}\n}\n")
		for _, want := range want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %s", options, err, want)
			}
		}
	}
	for _, user := range []string{"{http.auth.user.id}", "{http.auth.user.email}", "{header.Remote-User}", "{tls_client_subject}", "{vars.person}", "{http.vars.client_ip_owner}"} {
		if _, err := adaptAsIs(":80 {\n\tidempotency_console {\nuser " + user + "\n\t}\n}\n"); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	if _, err := adaptAsIs(":80 {\n\tidempotency_console open\n}\n"); err == nil || !strings.Contains(err.Error(), "no arguments but a matcher") {
		t.Errorf("got %v", err)
	}
	// A configuration in JSON is held to the same.
	for raw, want := range map[string]string{
		`{"handler":"idempotency_console"}`:                                   "everybody could settle jobs",
		`{"handler":"idempotency_console","user":"anna"}`:                     "the same for everybody",
		`{"handler":"idempotency_console","user":"{http.vars.client_ip}"}`:    "nobody has authenticated",
		`{"handler":"idempotency_console","user":"{x.y}","unprotected":true}`: "unprotected",
	} {
		err := validateJSON([]byte(`{"apps":{"http":{"servers":{"s":{"routes":[{"handle":[` + raw + `]}]}}}}}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", raw, err)
		}
	}
}
