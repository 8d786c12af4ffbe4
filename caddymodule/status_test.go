package caddymodule

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// statusSite protects an upstream, and tells callers of their jobs.
func statusSite(u *upstream, options string) string {
	const owner = "owner {http.request.header.X-User}\n"
	return "handle_path /jobs/* {\nidempotency_status {\n" + owner + "}\n}\nhandle {\n" +
		protect(u, owner+"status_path /jobs\n"+options) + "\n}"
}

// get asks for something, on a connection of its own.
func get(t *testing.T, method, path, user string) answer {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		req.Header.Set("X-User", user)
	}
	return once(t, req)
}

func stateOf(t *testing.T, path, user string) (s jobStatus) {
	t.Helper()
	a := get(t, "GET", path, user)
	if a.status != 200 || a.header.Get("Content-Type") != "application/json" || a.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("GET %s: %+v", path, a)
	}
	if err := json.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStatusTellsOwnersHowTheirJobsStand(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, statusSite(u, "wait 1ms")))

	first := make(chan answer)
	go func() { first <- post(t, "/hold", "k", "X-User", "alice") }()
	<-u.entered
	inFlight := post(t, "/hold", "k", "X-User", "alice")
	where := inFlight.header.Get("Location")
	if inFlight.status != 409 || where != "/jobs/"+inFlight.header.Get("Idempotency-Job") {
		t.Fatalf("got %+v", inFlight)
	}
	s := stateOf(t, where, "alice")
	if s.State != "running" || len(s.Attempts) != 1 || s.Attempts[0].State != "starting" || s.Attempts[0].Number != 1 ||
		time.Since(s.Attempts[0].Started) > time.Minute || !s.Attempts[0].Ended.IsZero() || !s.Expires.IsZero() || s.Result != nil {
		t.Errorf("while it runs: %+v", s)
	}
	close(u.release)
	if a := <-first; a.status != 200 || a.header.Get("Location") != "" {
		t.Errorf("got %+v", a)
	}
	s = stateOf(t, where, "alice")
	if s.State != "completed" || s.Job != inFlight.header.Get("Idempotency-Job") || s.Attempts[0].State != "succeeded" || s.Attempts[0].Ended.IsZero() ||
		time.Until(s.Expires) < time.Hour || s.Result == nil || s.Result.Status != 200 || !s.Result.Kept || s.AttemptCount != 1 {
		t.Errorf("when it is done: %+v", s)
	}

	unknown := post(t, "/die", "u", "X-User", "alice")
	if unknown.status != 504 || unknown.header.Get("Location") != "/jobs/"+unknown.header.Get("Idempotency-Job") {
		t.Fatalf("got %+v", unknown)
	}
	if s := stateOf(t, unknown.header.Get("Location"), "alice"); s.State != "unknown" || s.Attempts[0].State != "unknown" || s.Result != nil {
		t.Errorf("when it is unknown: %+v", s)
	}

	all := get(t, "GET", where, "alice").body
	for _, secret := range []string{"alice", `"k"`, "execution", "127.0.0.1", "/hold", "POST"} {
		if strings.Contains(all, secret) {
			t.Errorf("the status shows %s: %s", secret, all)
		}
	}
	if a := get(t, "HEAD", where, "alice"); a.status != 200 || a.body != "" {
		t.Errorf("HEAD: %+v", a)
	}
}

// Whether a job is there is told to nobody but its owner.
func TestStatusIsTheOwnersOnly(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, statusSite(u, "")+"\nhandle_path /others/* {\nidempotency_status {\nowner {http.request.header.X-User}\nspace other\n}\n}"+
		"\nhandle_path /shared/* {\nidempotency_status {\nowner shared\n}\n}"))
	id := post(t, "/pay", "k", "X-User", "alice").header.Get("Idempotency-Job")
	want := get(t, "GET", "/jobs/"+strings.Repeat("0", 64)+".00000000", "alice")
	if want.status != 404 || want.code() != "no-such-job" || want.header.Get("Content-Type") != "application/problem+json" || want.header.Get("Cache-Control") != "no-store" {
		t.Errorf("no such job: %+v", want)
	}
	for name, c := range map[string]struct{ path, user string }{
		"somebody else's":            {"/jobs/" + id, "bob"},
		"of the word shared":         {"/jobs/" + id, "shared"},
		"in another space":           {"/others/" + id, "alice"},
		"shared":                     {"/shared/" + id, "alice"},
		"with another random rest":   {"/jobs/" + id[:len(id)-8] + "00000000", "alice"},
		"garbage":                    {"/jobs/x", "alice"},
		"escaped garbage":            {"/jobs/%00%ff..", "alice"},
		"nothing":                    {"/jobs/", "alice"},
		"with something after it":    {"/jobs/" + id + "/", "alice"},
		"in capitals, if it differs": {"/jobs/" + strings.ToUpper(id) + "x", "alice"},
	} {
		a := get(t, "GET", c.path, c.user)
		if a.status != want.status || a.body != want.body || a.header.Get("Idempotency-Job") != "" {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if a := get(t, "GET", "/jobs/"+id, ""); a.status != 400 || a.code() != "owner-missing" {
		t.Errorf("nobody: %+v", a)
	}
	for _, method := range []string{"POST", "DELETE", "PUT"} {
		if a := get(t, method, "/jobs/"+id, "alice"); a.status != 405 || a.code() != "method-not-allowed" || a.header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %+v", method, a)
		}
	}
	if s := stateOf(t, "/jobs/"+id, "alice"); s.State != "completed" {
		t.Errorf("the owner is told %+v", s)
	}
}

func TestStatusWithoutItsStore(t *testing.T) {
	redis := fakeRedis(t)
	load(t, site(t, "idempotency_status /jobs/* {\nowner shared\nstore redis redis://"+redis.Addr()+"\n}"))
	redis.SetError("ERR down")
	if a := get(t, "GET", "/jobs/"+strings.Repeat("0", 64)+".00000000", ""); a.status != 503 || a.code() != "store-unavailable" || a.header.Get("Retry-After") == "" {
		t.Errorf("got %+v", a)
	}
}

func TestStatusRefusalsGoToErrorRoutes(t *testing.T) {
	load(t, site(t, "idempotency_status /jobs/* {\nowner shared\n}\nhandle_errors {\nrespond \"page {err.status_code} {http.idempotency.code}\"\n}"))
	if a := get(t, "GET", "/jobs/x", ""); a.status != 404 || a.body != "page 404 no-such-job" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %+v", a)
	}
}

func TestWrongOptionsOfTheStatusAreRefused(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]string{
		"":                                     "`owner shared`",
		"owner alice":                          "`owner shared`",
		"owner shared\nwait 5s":                "no such option of idempotency_status; the options are digest_secret, owner, space, store",
		"owner shared\nspace _x":               "choose another",
		"owner shared\nspace {host}":           "fixed name",
		"owner shared\nspace a\nspace b":       "given twice",
		"owner shared\nstore mongodb":          "`store redis <url>`",
		"owner shared\nstore redis http://x/y": "redis://",
	} {
		if _, err := adaptAsIs(":80 {\n\tidempotency_status {\n" + options + "\n\t}\n}\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", options, err, want)
		}
	}
	if _, err := adaptAsIs(":80 {\n\tidempotency_status shared\n}\n"); err == nil || !strings.Contains(err.Error(), "no arguments but a matcher") {
		t.Errorf("got %v", err)
	}
}
