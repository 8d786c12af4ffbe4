package proxy

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func fingerprintOf(t testing.TB, method, url, contentType, body string) string {
	t.Helper()
	r := httptest.NewRequest(method, url, nil)
	r.Header.Set("Content-Type", contentType)
	b, err := readBody(strings.NewReader(body), -1, 1<<20, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.release()
	f, err := newRecipe(FingerprintOptions{}, keystore.Digester{}).fingerprint(r, b)
	if err != nil {
		t.Fatal(err)
	}
	return f.Sum.String()
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := fingerprintOf(t, "POST", "http://a.example/pay?x=1", "application/json; charset=utf-8", "{}")
	// The recipe never changes: retries of requests that an older version has
	// recorded have to be recognised.
	if want := "ae9b9bb7404be1556559c94e5f0ea826b480154cb8c7ac139832ee4bc4bdbec4"; base != want {
		t.Errorf("the recipe has changed: %s, want %s", base, want)
	}
	for name, same := range map[string]string{
		"host in capitals":       fingerprintOf(t, "POST", "http://A.EXAMPLE/pay?x=1", "application/json; charset=utf-8", "{}"),
		"spelling of media type": fingerprintOf(t, "POST", "http://a.example/pay?x=1", "Application/JSON;charset=utf-8", "{}"),
	} {
		if same != base {
			t.Errorf("%s makes a difference", name)
		}
	}
	for name, other := range map[string]string{
		"method":     fingerprintOf(t, "PUT", "http://a.example/pay?x=1", "application/json; charset=utf-8", "{}"),
		"host":       fingerprintOf(t, "POST", "http://b.example/pay?x=1", "application/json; charset=utf-8", "{}"),
		"port":       fingerprintOf(t, "POST", "http://a.example:81/pay?x=1", "application/json; charset=utf-8", "{}"),
		"path":       fingerprintOf(t, "POST", "http://a.example/pay2?x=1", "application/json; charset=utf-8", "{}"),
		"encoding":   fingerprintOf(t, "POST", "http://a.example/p%61y?x=1", "application/json; charset=utf-8", "{}"),
		"query":      fingerprintOf(t, "POST", "http://a.example/pay?x=2", "application/json; charset=utf-8", "{}"),
		"media type": fingerprintOf(t, "POST", "http://a.example/pay?x=1", "text/plain", "{}"),
		"charset":    fingerprintOf(t, "POST", "http://a.example/pay?x=1", "application/json; charset=latin1", "{}"),
		"body":       fingerprintOf(t, "POST", "http://a.example/pay?x=1", "application/json; charset=utf-8", "{ }"),
		"no body":    fingerprintOf(t, "POST", "http://a.example/pay?x=1", "application/json; charset=utf-8", ""),
	} {
		if other == base {
			t.Errorf("another %s makes no difference", name)
		}
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add("POST", "/a", "b", "c", "POST", "/ab", "", "c")
	f.Add("POST", "/a", "p=1&p=q&r=", "", "POST", "/a", "p=1&q=r&q=", "")
	f.Add("PO", "/STa", "", "", "POST", "/a", "", "")
	f.Fuzz(func(t *testing.T, m1, p1, q1, b1, m2, p2, q2, b2 string) {
		one, two := partsDigest(t, m1, p1, q1, b1), partsDigest(t, m2, p2, q2, b2)
		if same := m1 == m2 && p1 == p2 && q1 == q2 && b1 == b2; same != (one == two) {
			t.Errorf("same parts: %t, same digest: %t", same, one == two)
		}
	})
}

func partsDigest(t testing.TB, method, path, query, body string) string {
	t.Helper()
	r := httptest.NewRequest("POST", "http://a.example/", nil)
	r.Method, r.URL.RawQuery = method, query
	r.URL.Opaque, r.URL.Path, r.URL.RawPath = "", path, ""
	b, err := readBody(strings.NewReader(body), int64(len(body)), 16, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.release()
	f, err := newRecipe(FingerprintOptions{}, keystore.Digester{}).fingerprint(r, b)
	if err != nil {
		t.Fatal(err)
	}
	return f.Sum.String()
}
