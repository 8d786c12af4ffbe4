package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// callAdmin calls the admin API, and returns the status and the refusal's code.
func (g *gateway) callAdmin(method, path, body string, header http.Header) (status int, code string) {
	g.t.Helper()
	req, err := http.NewRequest(method, "http://"+g.admin+"/idempotency/"+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header = header
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := c.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	var refusal struct{ Code string }
	_ = json.Unmarshal(all, &refusal)
	return resp.StatusCode, refusal.Code
}

// SEC-10: a web page can make an operator's browser post to the admin endpoint of
// their machine. Nothing comes of it: the job stays unknown and is not executed again.
func TestSEC10CrossSitePostDecidesNothing(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up))
	job := unknownByHangUp(t, g, up, "browser")
	_, port, _ := strings.Cut(g.admin, ":")
	decision := `{"as":"cancelled","actor":"mallory","evidence":"none"}`
	// Caddy itself refuses an origin that is not the endpoint's; what comes without
	// one, or looks like its own, is ours to refuse.
	for name, header := range map[string]http.Header{
		"origin":                {"Origin": {"https://evil.example"}, "Content-Type": {"application/json"}},
		"origin of a page here": {"Origin": {"http://127.0.0.1:3000"}, "Content-Type": {"application/json"}},
		"cross-site":            {"Sec-Fetch-Site": {"cross-site"}, "Content-Type": {"application/json"}},
		"same site":             {"Sec-Fetch-Site": {"same-site"}, "Content-Type": {"application/json"}},
		"without preflight":     {"Origin": {"https://evil.example"}, "Content-Type": {"text/plain"}},
		"null origin":           {"Origin": {"null"}, "Content-Type": {"application/json"}},
	} {
		status, code := g.callAdmin(http.MethodPost, "jobs/"+job+"/resolve", decision, header)
		caddys := header.Get("Origin") != "" && (status == http.StatusForbidden || status == http.StatusBadRequest)
		if ours := status == http.StatusForbidden && code == "cross-origin"; !ours && !caddys {
			t.Errorf("%s: answered with %d %s", name, status, code)
		}
	}
	plain := http.Header{"Content-Type": {"text/plain"}, "Origin": {"http://127.0.0.1:" + port}}
	if status, code := g.callAdmin(http.MethodPost, "jobs/"+job+"/resolve", decision, plain); status != http.StatusUnsupportedMediaType || code != "media-type" {
		t.Errorf("another media type: answered with %d %s", status, code)
	}
	if a := g.show(job).attempt(t, 1); a.State != "unknown" || a.Resolution.As != "" {
		t.Errorf("the attempt is not unknown any more: %+v", a)
	}
	wantUnknown(t, g.client().do(post("browser")))
	up.want("browser", 1)
}

// unknownByHangUp makes a job unknown whose upstream has executed and hung up.
func unknownByHangUp(t *testing.T, g *gateway, up *upstream, key string) (job string) {
	t.Helper()
	a := g.client().do(post(key).tell("Up-Die", "noreply"))
	wantUnknown(t, a)
	up.want(key, 1)
	return a.job()
}

// Where an admin token is configured, nothing can be seen or decided without it.
func TestSEC10WrongAdminTokenIsRefused(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "idempotency {\nadmin_token right\n}", to(up))
	job := unknownByHangUp(t, g, up, "token")
	decision := `{"as":"cancelled","actor":"mallory","evidence":"none"}`
	for name, authorization := range map[string][]string{"none": nil, "wrong": {"Bearer wrong"}, "empty": {"Bearer "}, "another scheme": {"Basic right"}} {
		header := http.Header{"Content-Type": {"application/json"}}
		if authorization != nil {
			header["Authorization"] = authorization
		}
		for _, call := range []struct{ method, path, body string }{
			{http.MethodGet, "jobs", ""},
			{http.MethodGet, "jobs/" + job, ""},
			{http.MethodGet, "stats", ""},
			{http.MethodPost, "find", `{"owner":"alice","key":"token"}`},
			{http.MethodPost, "jobs/" + job + "/resolve", decision},
			{http.MethodPost, "jobs/" + job + "/forget", `{"actor":"mallory"}`},
		} {
			if status, code := g.callAdmin(call.method, call.path, call.body, header); status != http.StatusUnauthorized || code != "unauthorized" {
				t.Errorf("%s token, %s %s: answered with %d %s", name, call.method, call.path, status, code)
			}
		}
	}
	for _, args := range [][]string{
		{"list", "--token", "wrong"},
		{"show", job},
		{"resolve", job, "--as", "cancelled", "--evidence", "none", "--yes", "--token", "wrong"},
	} {
		if r := g.cli(args...); r.code != 5 || r.out != "" {
			t.Errorf("caddy idempotency %v: exit code %d, want 5\n%s%s", args, r.code, r.out, r.err)
		}
	}
	wantUnknown(t, g.client().do(post("token")))
	up.want("token", 1)

	g.resolve(job, "cancelled", "--token", "right")
	wantExecuted(t, g.client().do(post("token")))
	up.want("token", 2)
}
