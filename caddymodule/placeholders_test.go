package caddymodule

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// accessLine is a line of an access log.
type accessLine struct {
	Status  int
	Request struct {
		URI     string
		Headers http.Header
	}
	Idempotency *struct {
		Verdict, Record, Job, State, Provider string
		Attempt                               int
		Wait                                  *float64 `json:"wait_ms"`
		Store                                 *float64 `json:"store_ms"`
	}
}

// accessLog returns the lines of an access log, once there are so many, and its text.
func accessLog(t *testing.T, file string, count int) (lines []accessLine, text string) {
	t.Helper()
	eventually(t, "the requests are logged", func() bool {
		data, err := os.ReadFile(file)
		text = string(data)
		return err == nil && strings.Count(text, "\n") >= count
	})
	for line := range strings.Lines(text) {
		var l accessLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines = append(lines, l)
	}
	return lines, text
}

// observed is a site that tells everything that there are placeholders for: in
// headers that are set before the first byte of the answer, on its error pages, and
// to the upstream.
func observed(t *testing.T, u *upstream, options string) (config, log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "access.log")
	var all strings.Builder
	for _, name := range placeholderNames {
		fmt.Fprintf(&all, "%s={http.idempotency.%s} ", name, name)
	}
	text := strings.TrimSpace(all.String())
	block := "log {\noutput file " + log + "\n}\n" +
		"header >X-Told \"" + text + "\"\n" +
		"handle_errors 4xx 5xx {\nrespond \"" + text + "\" {err.status_code}\n}\n" +
		"idempotency {\nowner {http.request.header.X-User}\n" + options + "\n}\n" +
		"reverse_proxy " + u.Listener.Addr().String() + " {\nheader_up X-Seen-Attempt \"{http.idempotency.job} {http.idempotency.attempt} {http.idempotency.provider}\"\n}"
	return site(t, block), log
}

// placeholderNames are all that there are.
var placeholderNames = []string{
	"verdict", "code", "advice", "title", "detail", "job", "state", "attempts", "attempt", "provider", "record", "owner", "wait_ms", "store_ms",
}

// toldOf returns what the placeholders were in a text.
func toldOf(text string) map[string]string {
	told := make(map[string]string)
	for i, name := range placeholderNames {
		_, rest, _ := strings.Cut(text, name+"=")
		if i+1 < len(placeholderNames) {
			rest, _, _ = strings.Cut(rest, " "+placeholderNames[i+1]+"=")
		}
		told[name] = rest
	}
	return told
}

func TestPlaceholdersAndAccessLog(t *testing.T) {
	u := newUpstream(t)
	config, log := observed(t, u, "timeout 5s")
	load(t, config)
	header := []string{"X-User", "alice@example.com"}
	first := post(t, "/pay", "very-secret", header...)
	id := first.header.Get("Idempotency-Job")
	record, _, _ := strings.Cut(id, ".")
	got := toldOf(first.header.Get("X-Told"))
	for name, want := range map[string]string{
		"verdict": "executed", "code": "", "job": id, "state": "completed", "attempts": "1", "attempt": "1", "provider": "", "record": record, "wait_ms": "0",
	} {
		if got[name] != want {
			t.Errorf("executed: %s is %q, want %q", name, got[name], want)
		}
	}
	if len(got["owner"]) != 64 || got["store_ms"] == "0" || got["store_ms"] == "" {
		t.Errorf("executed: owner is %q, store_ms %q", got["owner"], got["store_ms"])
	}
	if seen := first.header.Get("X-Seen-Attempt"); seen != id+" 1" {
		t.Errorf("the upstream saw %q", seen)
	}
	replay := post(t, "/pay", "very-secret", header...)
	if got := toldOf(replay.header.Get("X-Told")); got["verdict"] != "replayed" || got["job"] != id || got["attempt"] != "1" {
		t.Errorf("replayed: %v", got)
	}
	reused := post(t, "/refund", "very-secret", header...)
	got = toldOf(reused.body)
	for name, want := range map[string]string{
		"verdict": "key_reused", "code": "key-reused", "advice": "new-key", "title": "The idempotency key was used for another request",
		"job": id, "state": "completed", "attempts": "1", "attempt": "1", "record": record,
	} {
		if got[name] != want || got["detail"] == "" {
			t.Errorf("refused: %s is %q, want %q", name, got[name], want)
		}
	}
	unprotected := post(t, "/pay", "", header...)
	if got := toldOf(unprotected.header.Get("X-Told")); got["verdict"] != "bypassed" || got["job"] != "" {
		t.Errorf("unprotected: %v", got)
	}
	nobody := post(t, "/pay", "very-secret")
	if got := toldOf(nobody.body); got["verdict"] != "owner_missing" || got["record"] != "" || got["owner"] != "" {
		t.Errorf("without an owner: %v", got)
	}
	dead := post(t, "/die", "other-secret", header...)
	if got := toldOf(dead.body); got["verdict"] != "outcome_unknown" || got["state"] != "unknown" || got["attempt"] != "1" {
		t.Errorf("unknown: %v", got)
	}

	lines, text := accessLog(t, log, 6)
	for i, want := range []string{"executed", "replayed", "key_reused", "", "owner_missing", "outcome_unknown"} {
		f := lines[i].Idempotency
		switch {
		case want == "":
			if f != nil {
				t.Errorf("an unprotected request has %+v", f)
			}
			continue
		case f == nil || f.Verdict != want || f.Wait == nil || f.Store == nil:
			t.Errorf("line %d: %+v, want %s", i, f, want)
			continue
		}
		if i < 3 && (f.Job != id || f.Attempt != 1 || f.State != "completed" || f.Record != record) {
			t.Errorf("line %d: %+v", i, f)
		}
	}
	if *lines[0].Idempotency.Store <= 0 {
		t.Error("no time was spent in the store")
	}
	// Caddy logs the headers of requests; nothing else has them.
	for i := range lines {
		if lines[i].Request.Headers.Get("Idempotency-Key") != "" {
			text = strings.Replace(text, lines[i].Request.Headers.Get("Idempotency-Key"), "", 1)
			text = strings.Replace(text, "alice@example.com", "", 1)
		}
	}
	if strings.Contains(text, "very-secret") || strings.Contains(text, "alice@") {
		t.Errorf("the log tells a key or an owner:\n%s", text)
	}
}

// Who waits says so, for how long, and whose answer it was.
func TestPlaceholdersOfWhoWaits(t *testing.T) {
	u := newUpstream(t)
	config, log := observed(t, u, "wait 1m")
	load(t, config)
	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- insist(t, "/hold", "k", "X-User", "a") }()
	}
	<-u.entered
	eventually(t, "one waits", func() bool { return series(t)[`caddy_idempotency_waiters{store="bolt"}`] == 1 })
	close(u.release)
	verdicts := make(map[string]map[string]string)
	for range 2 {
		got := toldOf((<-answers).header.Get("X-Told"))
		verdicts[got["verdict"]] = got
	}
	if waited := verdicts["waited"]; waited["attempt"] != "1" || waited["wait_ms"] == "0" || waited["wait_ms"] == "" {
		t.Errorf("got %v", verdicts)
	}
	lines, _ := accessLog(t, log, 2)
	for _, l := range lines {
		if l.Idempotency.Verdict == "waited" && *l.Idempotency.Wait <= 0 {
			t.Errorf("got %+v", l.Idempotency)
		}
	}
}

// Every placeholder has something to say of some request, and so has every field of the
// access log; neither tells a key or an owner, and there are no other fields.
func TestEveryPlaceholderAndFieldOfTheAccessLogIsSeen(t *testing.T) {
	u := newUpstream(t)
	config, log := observed(t, u, "wait 1m\nunproven allow\nprovider primary {\nrespond later 429\n}\nprovider backup {\nreverse_proxy "+u.Listener.Addr().String()+
		" {\nheader_up X-Seen-Attempt \"{http.idempotency.job} {http.idempotency.attempt} {http.idempotency.provider}\"\n}\n}")
	load(t, config)
	header := []string{"X-User", "alice@example.com"}
	answers := make(chan answer, 2)
	for range cap(answers) {
		go func() { answers <- insist(t, "/hold", "very-secret", header...) }()
	}
	<-u.entered
	eventually(t, "one waits", func() bool { return series(t)[`caddy_idempotency_waiters{store="bolt"}`] == 1 })
	close(u.release)
	var told []map[string]string
	for range cap(answers) {
		a := <-answers
		told = append(told, toldOf(a.header.Get("X-Told")))
		if seen, want := a.header.Get("X-Seen-Attempt"), a.header.Get("Idempotency-Job")+" 2 backup"; seen != want {
			t.Errorf("the attempt was told %q, want %q", seen, want)
		}
	}
	told = append(told, toldOf(post(t, "/refund", "very-secret", header...).body))
	for _, name := range placeholderNames {
		if !slices.ContainsFunc(told, func(m map[string]string) bool { return m[name] != "" && m[name] != "0" }) {
			t.Errorf("nothing is told by %s", name)
		}
	}
	for _, m := range told {
		if m["attempts"] != "2" || m["attempt"] != "2" || m["provider"] != "backup" || m["state"] != "completed" {
			t.Errorf("told is %v", m)
		}
	}

	lines, text := accessLog(t, log, 3)
	fields := make(map[string]bool)
	for line := range strings.Lines(text) {
		var l struct{ Idempotency map[string]any }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		for name, value := range l.Idempotency {
			fields[name] = fields[name] || value != "" && value != 0.0
		}
	}
	var listed []string
	for _, row := range tableOf(t, pages.Of(t, "..", observabilityPage).Section(t, "## Access log"), "field") {
		listed = append(listed, names(row[0])...)
	}
	wantSame(t, "fields of the access log", listed, slices.Collect(maps.Keys(fields)))
	for name, seen := range fields {
		if !seen {
			t.Errorf("the field %s of the access log never says anything", name)
		}
	}
	for i := range lines {
		lines[i].Request.Headers = nil // Caddy's own
		if all := fmt.Sprintf("%+v %+v %v", lines[i], lines[i].Idempotency, told); strings.Contains(all, "very-secret") || strings.Contains(all, "alice") {
			t.Errorf("told is a key or an owner: %s", all)
		}
	}
}
