package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// askAbout asks directly about an attempt with a key.
func askAbout(t *testing.T, url, key string) (*keystore.Response, error) {
	t.Helper()
	l, err := newLookup(&LookupRequest{URL: url}, 100)
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = askAbout(t, "http://"+l.Addr().String()+"/charges?key={http.idempotency.key}", "very-secret")
	if err == nil || strings.Contains(err.Error(), "very-secret") {
		t.Errorf("got %v", err)
	}
}
