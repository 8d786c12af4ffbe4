package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Values stand where they were put, whatever is in them.
func TestLookupURLs(t *testing.T) {
	t.Setenv("ORIGIN", "https://api.example:8443/v1/")
	t.Setenv("SEGMENTS", "a b/c%")
	t.Setenv("TOKEN", "a+b/c=&d")
	for _, c := range []struct{ url, key, want string }{
		{"/charges?key={http.idempotency.key_sent}&x=1", `"a&x=2#?+%"`, `/charges?key=%22a%26x%3D2%23%3F%2B%25%22&x=1`},
		{"/charges/{http.idempotency.key}", "a?b#c%2F..", "/charges/a%3Fb%23c%252F.."},
		{"/charges/{http.idempotency.key}/x", "", ""},
		{"/charges/{http.idempotency.key}", "a/b", ""},
		{"/charges/{http.idempotency.key}", `a\b`, ""},
		{"/charges/{http.idempotency.key}", "..", ""},
		{"/charges/{http.idempotency.key}", ".", ""},
		{"/charges/{http.idempotency.key}.json", "..", "/charges/...json"},
		{"/charges/.{http.idempotency.key}", ".", ""},
		{"{env.ORIGIN}/charges/{http.idempotency.job}", "k", "https://api.example:8443/v1/charges/j"},
		{"{env.ORIGIN}?q={http.idempotency.attempt}", "k", "https://api.example:8443/v1?q=1"},
		{"http://h/{env.SEGMENTS}?t={env.TOKEN}", "k", "http://h/a%20b/c%25?t=a%2Bb%2Fc%3D%26d"},
		{"http://h", "k", "http://h"},
	} {
		tmpl, err := newURLTemplate(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		got := ""
		u, err := tmpl.expand(map[string]string{
			"http.idempotency.key_sent": c.key, "http.idempotency.key": c.key, "http.idempotency.job": "j", "http.idempotency.attempt": "1",
		})
		if err == nil {
			got = u.String()
		} else if c.key != "" && c.key != "." && strings.Contains(err.Error(), c.key) {
			t.Errorf("%s: the error shows the key: %v", c.url, err)
		}
		if got != c.want {
			t.Errorf("%s with %s: got %s, %v; want %s", c.url, c.key, got, err, c.want)
		}
	}
}

func TestLookupURLsThatNoValueCouldMend(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"charges":                               "write a path such as",
		"//h/charges":                           "write a path such as",
		"ftp://h/charges":                       "write a path such as",
		"{env.ORIGIN}charges":                   "must begin with a /",
		"{env.ORIGIN}//h/charges":               "must begin with a /",
		"{http.idempotency.key}/charges":        "can't stand for where",
		"http://{http.idempotency.key}/charges": "can't stand for where",
		"/charges?key={http.request.header.K}":  "{http.request.header.K} has no value here",
		"/charges?key={idempotency_key}":        "{http.idempotency.key_sent}",
		"/charges?key={http.idempotency.key":    "{ without its }",
		"/charges?key=http.idempotency.key}":    "} without its {",
		"/charges#x":                            "fragment",
		`/charges\x`:                            "backslash",
	} {
		if _, err := newURLTemplate(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", url, err, want)
		}
	}
}

// Editors and other tools end a file with a line break.
func TestLineBreaksAtTheEndOfFilesAreLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for content, want := range map[string]string{"secret": "secret", "secret\n": "secret", "secret\r\n\r\n": "secret", "a b \n": "a b "} {
		file := filepath.Join(dir, "token")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		tmpl, err := newTemplate("x{file."+file+"}y", asItIs)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.expand(nil); err != nil || got != "x"+want+"y" {
			t.Errorf("%q: got %q, %v", content, got, err)
		}
	}
}
