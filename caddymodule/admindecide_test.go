package caddymodule

import (
	"strings"
	"testing"
)

func TestAdminResolves(t *testing.T) {
	for _, c := range []struct{ as, response, retry, state string }{
		{"cancelled", "", "execution 2", "open"},
		{"failed", "", "execution 2", "open"},
		{"succeeded", `,"response":{"status":201,"header":{"content-type":["text/plain"],"x-charge":["ch_17"],"set-cookie":["s=1"],"content-length":["99"]},"body":"charged"}`, "charged", "completed"},
		{"succeeded", `,"response":{"status":201,"body_base64":"Y2hhcmdlZA=="}`, "charged", "completed"},
	} {
		t.Run(c.as, func(t *testing.T) {
			u := newUpstream(t)
			config, admin := adminSite(t, "", protect(u, "owner shared"))
			load(t, config)
			id := post(t, "/first-dies", "k").header.Get("Idempotency-Job")
			decision := `{"attempt":1,"as":"` + c.as + `","actor":"alice","evidence":"bank statement"` + c.response + `}`
			j := ask(t, admin, "POST", "jobs/"+id+"/resolve", decision).job(t)
			a := j.Attempts[0]
			if j.ID != id || j.State != c.state || a.State != c.as || a.Resolution == nil || a.Resolution.As != c.as || a.Resolution.Actor != "alice" ||
				a.Resolution.Evidence != "bank statement" || a.Resolution.At.IsZero() || j.Expires.IsZero() {
				t.Errorf("after it: %+v, %+v", j, a.Resolution)
			}
			again := ask(t, admin, "POST", "jobs/"+id+"/resolve", strings.Replace(decision, "alice", "bob", 1))
			if again.status != 409 || again.code() != codeNotResolvable || again.problem().Job == nil || again.problem().Job.State != c.state {
				t.Errorf("a second decision: %d %s", again.status, again.body)
			}
			retry := post(t, "/first-dies", "k")
			if !strings.HasSuffix(retry.body, c.retry) || retry.header.Get("Idempotency-Job") != id {
				t.Errorf("a retry got %+v", retry)
			}
			if strings.Contains(c.response, "x-charge") &&
				(retry.status != 201 || retry.header.Get("X-Charge") != "ch_17" || retry.header.Get("Set-Cookie") != "" || retry.header.Get("Content-Length") != "7") {
				t.Errorf("the given response came as %+v", retry)
			}
		})
	}
}

func TestGivenResponses(t *testing.T) {
	for name, g := range map[string]givenResponse{
		"no status":         {},
		"an interim status": {Status: 100},
		"no such status":    {Status: 600},
		"two bodies":        {Status: 200, Body: "a", BodyBase64: []byte("b")},
		"a body with 204":   {Status: 204, Body: "a"},
		"a header's name":   {Status: 200, Header: map[string][]string{"a b": {"c"}}},
		"a header's value":  {Status: 200, Header: map[string][]string{"A": {"b\r\nC: d"}}},
		"a body left out":   {Status: 200, Header: map[string][]string{"content-length": {"5"}}},
	} {
		if r, err := g.response(); err == nil {
			t.Errorf("%s: taken as %+v", name, r)
		}
	}
	for name, g := range map[string]givenResponse{
		"a body":             {Status: 200, Header: map[string][]string{"Content-Length": {"5"}}, Body: "hello"},
		"no body":            {Status: 200, Header: map[string][]string{"Content-Length": {"0"}}},
		"none that could be": {Status: 304, Header: map[string][]string{"Content-Length": {"5"}}},
	} {
		if _, err := g.response(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdminRefusesToResolveWhatIsRunning(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	done := make(chan answer)
	go func() { done <- insist(t, "/hold", "k") }()
	<-u.entered
	running := ask(t, admin, "POST", "find", `{"shared":true,"key":"k"}`).job(t)
	if running.State != "running" {
		t.Errorf("it is %s", running.State)
	}
	for _, attempt := range []string{"", `"attempt":1,`} {
		got := ask(t, admin, "POST", "jobs/"+running.ID+"/resolve", `{`+attempt+`"as":"cancelled","actor":"alice","evidence":"none"}`)
		if got.status != 409 || got.code() != codeNotResolvable || got.problem().Job == nil || got.problem().Job.State != "running" {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	close(u.release)
	if a := <-done; a.status != 200 {
		t.Errorf("the request got %+v", a)
	}
}

func TestAdminForgets(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	id := post(t, "/pay", "k").header.Get("Idempotency-Job")
	if got := ask(t, admin, "POST", "jobs/"+id+"/forget", `{"actor":"alice"}`); got.status != 200 || !strings.Contains(got.body, `"forgotten":"`+id) {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if got := ask(t, admin, "POST", "jobs/"+id+"/forget", `{"actor":"alice"}`); got.status != 404 || got.code() != codeNoJob {
		t.Errorf("twice: %d %s", got.status, got.body)
	}
	if a := post(t, "/pay", "k"); a.body != "k /pay execution 2" || a.header.Get("Idempotency-Job") == id {
		t.Errorf("the key's next request got %+v", a)
	}
}
