package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// askAbout asks directly about an attempt with a key.
func askAbout(t *testing.T, url, key string) (*keystore.Response, error) {
	t.Helper()
	l, err := newLookup(&LookupRequest{URL: url}, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	return l.ask(context.Background(), &keystore.Job{ID: "j", KeySent: key}, &keystore.Attempt{Number: 1})
}

func TestDirectLookupTakesOnlyWholeAnswersOfItsOwnURL(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/cookie":
			w.Header().Set("Set-Cookie", "a=b")
			if r.Header.Get("Cookie") != "" {
				w.WriteHeader(http.StatusTeapot)
			}
		case "/large":
			fmt.Fprint(w, strings.Repeat("x", 101))
		case "/cut":
			w.Header().Set("Content-Length", "10")
			fmt.Fprint(w, "12345")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			fmt.Fprint(w, strings.Repeat("x", 100))
		}
	}))
	t.Cleanup(s.Close)
	if a, err := askAbout(t, s.URL+"/ok", "k"); err != nil || a.Status != 200 || len(a.Body) != 100 || a.Size != 100 {
		t.Errorf("ok: %+v, %v", a, err)
	}
	if a, err := askAbout(t, s.URL+"/redirect", "k"); err != nil || a.Status != 302 {
		t.Errorf("redirect: %+v, %v", a, err)
	}
	for range 2 {
		if a, err := askAbout(t, s.URL+"/cookie", "k"); err != nil || a.Status != 200 {
			t.Errorf("cookie: %+v, %v", a, err)
		}
	}
	for path, want := range map[string]error{"/large": proxy.ErrLookupLarge, "/cut": proxy.ErrLookupCut} {
		if a, err := askAbout(t, s.URL+path, "k"); a != nil || !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v", path, a, err)
		}
	}
}

func TestErrorsOfLookupsDoNotShowTheKey(t *testing.T) {
	t.Parallel()
	_, err := askAbout(t, "http://127.0.0.1:"+testport.Take(t)+"/charges?key={http.idempotency.key}", "very-secret")
	if err == nil || strings.Contains(err.Error(), "very-secret") {
		t.Errorf("got %v", err)
	}
}

// A handler that several sites invoke is followed by something else on each.
func TestLookupGoesTheWayOfTheHostOfItsJob(t *testing.T) {
	t.Parallel()
	l, err := newLookup(&LookupRequest{URL: "/charges", Header: map[string]string{"Host": "bank.example"}}, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	site := func(host string) {
		l.learn(host, httptest.NewRequest(http.MethodPost, "/", nil), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			_, err := fmt.Fprint(w, r.Host, " ", host)
			return err
		}))
	}
	askOf := func(host string) (string, error) {
		a, err := l.ask(context.Background(), &keystore.Job{ID: "j", KeySent: "k", Request: keystore.RequestInfo{Host: host}}, &keystore.Attempt{Number: 1})
		if err != nil {
			return "", err
		}
		return string(a.Body), nil
	}
	site("a.example")
	site("B.example:8080")
	for host, want := range map[string]string{"a.example": "bank.example a.example", "b.example:8080": "bank.example B.example:8080"} {
		if got, err := askOf(host); err != nil || got != want {
			t.Errorf("%s: got %q, %v", host, got, err)
		}
	}
	for _, host := range []string{"c.example", "b.example", ""} {
		if got, err := askOf(host); !errors.Is(err, proxy.ErrNotAskable) {
			t.Errorf("%s: got %q, %v", host, got, err)
		}
	}
	for n := range 2 * maxWays {
		site(fmt.Sprintf("%d.example", n))
	}
	last := fmt.Sprintf("%d.example", 2*maxWays-1)
	if got, err := askOf(last); err != nil || got != "bank.example "+last || len(l.ways) != maxWays {
		t.Errorf("of %d: got %q, %v", len(l.ways), got, err)
	}
}

func TestLookupsWhoseHeadersAreRefused(t *testing.T) {
	t.Setenv("TWO_LINES", "a\nb")
	for name, c := range map[string]struct{ header, value, want string }{
		"the key":             {"idempotency-key", "{http.idempotency.key}", "leave the header out"},
		"the other key":       {"X-Idempotency-Key", "x", "leave the header out"},
		"the route's key":     {"x-request", "x", "leave the header out"},
		"the job's host":      {"host", "{http.idempotency.key}.example", "can't stand for where the upstream is"},
		"a value of no field": {"X-A", "{env.TWO_LINES}", "is there a line break"},
	} {
		l, err := newLookup(&LookupRequest{URL: "/a", Header: map[string]string{c.header: c.value}}, "X-Request", 100)
		if err == nil {
			err = l.check()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "a\nb") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// All placeholders of lookups that the page lists are filled in.
func TestEveryPlaceholderOfALookupIsSeen(t *testing.T) {
	t.Parallel()
	var asked url.Values
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = r.URL.Query() }))
	t.Cleanup(s.Close)
	want := url.Values{"job": {"j"}, "key": {"k,1"}, "key_sent": {`"k,1"`}, "attempt": {"1"}}
	ask := s.URL + "/?"
	for _, row := range tableOf(t, pages.Of(t, "..", "docs/reference.md").Section(t, "## Placeholders"), "placeholder") {
		name := names(row[0])[0]
		ask += "&" + strings.TrimSuffix(strings.TrimPrefix(name, "{"+placeholderPrefix), "}") + "=" + name
	}
	if _, err := askAbout(t, ask, `"k,1"`); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(asked, want) {
		t.Errorf("asked was %v, want %v", asked, want)
	}
}
