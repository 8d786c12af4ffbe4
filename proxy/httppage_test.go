package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// The page on the HTTP contract has every code that a refusal can have, with the
// status and the advice that it has, and no other; and every header.
func TestHTTPPage(t *testing.T) {
	page := read(t, filepath.Join("..", "docs", "http.md"))
	said := make(map[string][]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (.*) \\|$").FindAllStringSubmatch(page, -1) {
		if cells := strings.Split(row[2], " | "); len(cells) == 4 {
			said[row[1]] = cells
		}
	}
	var codes []string
	for _, constant := range regexp.MustCompile(`(?m)^\tCode\w+ += "(.*)"$`).FindAllStringSubmatch(read(t, "refusal.go"), -1) {
		codes = append(codes, constant[1])
	}
	if len(codes) < 10 {
		t.Fatalf("the source has %d codes: it was not understood", len(codes))
	}
	for code := range said {
		if !slices.Contains(codes, code) {
			t.Errorf("the page has the code %s, which there is not", code)
		}
	}
	for _, code := range codes {
		if said[code] == nil {
			t.Errorf("the page does not have the code %s", code)
		}
	}
	ietf := Config{Statuses: StatusesIETF}
	if n := ietf.refuseReused().Status; !strings.Contains(said[CodeKeyReused][0], fmt.Sprintf("`statuses ietf` %d", n)) {
		t.Errorf("the page does not say that a reused key is refused with %d", n)
	}
	judged := []string{CodeNoSuchJob, CodeMethodNotAllowed} // of others
	for _, r := range everyRefusal() {
		cells := said[r.Code]
		judged = append(judged, r.Code)
		if cells == nil {
			continue
		}
		if !strings.Contains(cells[0], fmt.Sprint(r.Status)) || cells[1] != "`"+string(r.Advice)+"`" {
			t.Errorf("%s: the page says status %s and advice %s, it is %d and %s", r.Code, cells[0], cells[1], r.Status, r.Advice)
		}
		if none := cells[2] == "–"; none && r.RetryAfter > 0 || cells[2] == "yes" && r.RetryAfter == 0 {
			t.Errorf("%s: the page says %q of Retry-After, it is %s", r.Code, cells[2], r.RetryAfter)
		}
	}
	for _, code := range codes {
		if !slices.Contains(judged, code) {
			t.Errorf("what the page says of %s is not looked at", code)
		}
	}
	for _, name := range ownHeaders {
		if !strings.Contains(page, "`"+name) {
			t.Errorf("the page does not have the header %s", name)
		}
	}
}

// The problem that the page shows is one that the gateway gives.
func TestHTTPPageShowsARealProblem(t *testing.T) {
	page := read(t, filepath.Join("..", "docs", "http.md"))
	_, rest, _ := strings.Cut(page, "```json\n")
	shown, _, _ := strings.Cut(rest, "```")
	var job struct{ Job string }
	if err := json.Unmarshal([]byte(shown), &job); err != nil {
		t.Fatal(err)
	}
	refusal := new(Config).refuseUnknown()
	refusal.Job, refusal.State, refusal.Attempts = job.Job, "unknown", 1
	w := httptest.NewRecorder()
	if err := refusal.Write(w); err != nil {
		t.Fatal(err)
	}
	if w.Body.String() != shown {
		t.Errorf("the page shows\n%s\nit is\n%s", shown, w.Body.String())
	}
}

// everyRefusal returns a refusal of each code that this package refuses with.
func everyRefusal() []*Refusal {
	job := &keystore.Job{Result: &keystore.Response{Status: http.StatusOK, NotKept: true}}
	c := new(Config)
	all := []*Refusal{
		refuseEarly(DefaultKeyHeader), refuseStore(nil), refuseReplay(), refuseLoop(), c.refuseReused(), c.refuseUnknown(), refuseInFlight(nil, keystore.Time(0)),
		refuseNotExecuted(nil), refuseNotKept(job.Result), refuseLost(nil), refuseWaiters(),
	}
	for _, code := range []string{CodeKeyMissing, CodeKeyInvalid, CodeOwnerMissing, CodeRequestTooLarge} {
		all = append(all, refuseRequest(code, ""))
	}
	return all
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
