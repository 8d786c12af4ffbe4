package proxy

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func fingerprintOf(t testing.TB, method, url, contentType, body string) string {
	t.Helper()
	r := httptest.NewRequest(method, url, nil)
	r.Header.Set("Content-Type", contentType)
	return digestBy(t, FingerprintOptions{}, r, body)
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

// Not all that a request can ask for is a path: what stands in its place is passed
// on just so.
func TestFingerprintOfTargetsWithoutAPath(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, target := range []string{"*", "x:pay", "x:pay2", "y:pay", "x:pay?a=1", "http:pay", "/pay", "/x:pay", "http://a.example"} {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST " + target + " HTTP/1.1\r\nHost: a.example\r\n\r\n")))
		if err != nil {
			t.Fatal(err)
		}
		digest := digestBy(t, FingerprintOptions{}, r, "")
		if other, twice := seen[digest]; twice {
			t.Errorf("%s is the same as %s", target, other)
		}
		seen[digest] = target
	}
}

// Media types that are read differently by whom they are sent to are never one, also
// where a reader that is lenient would drop the difference.
func TestFingerprintTellsMediaTypesApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, media := range []string{
		"a/b", "a/b; x=1", "a/b; x=2", "a/b; x=1; y=2", "A/b; X=A", "a/b; x=a",
		"a/b; x*=iso-8859-1''%E9", "a/b; x*=iso-8859-1''%E8", "a/b; x*=utf-8''%E9", "a/b; x=\"\xe9\"", "a/b; x*0=1; x*2=2", "a/b; x*0=1; x*2=3",
		`a/b; x="a\b"`, `a/b; x="a\\b"`, "a/b; x=1; x=2", "a/b, a/b", "a/b;;x=1", "",
	} {
		digest := fingerprintOf(t, "POST", "http://a.example/", media, "")
		if other, twice := seen[digest]; twice {
			t.Errorf("%q is the same as %q", media, other)
		}
		seen[digest] = media
	}
	for media, other := range map[string]string{
		"A/B": "a/b", "a/b;x=1": "a/b; X=1", `a/b; x="1"`: "a/b; x=1", "a/b; y=2; x=1": "a/b; x=1; y=2", `multipart/form-data; boundary="a b"`: `multipart/form-data;boundary="a b"`,
	} {
		if fingerprintOf(t, "POST", "http://a.example/", media, "") != fingerprintOf(t, "POST", "http://a.example/", other, "") {
			t.Errorf("%q is not the same as %q", media, other)
		}
	}
}

// A media type that is sent twice is neither the one nor the other: who takes the
// first for it, and who the last, nobody knows.
func TestFingerprintOfSeveralMediaTypes(t *testing.T) {
	t.Parallel()
	digest := func(body string, types ...string) string {
		r := httptest.NewRequest("POST", "http://a.example/", nil)
		r.Header["Content-Type"] = types
		return digestBy(t, FingerprintOptions{JSON: true}, r, body)
	}
	seen := map[string][]string{}
	for _, types := range [][]string{nil, {"application/json"}, {"application/json", "application/json"}, {"application/json", "text/plain"}, {"text/plain", "application/json"}} {
		d := digest("{}", types...)
		if other, twice := seen[d]; twice {
			t.Errorf("%q is the same as %q", types, other)
		}
		seen[d] = types
	}
	if digest(`{"a":1}`, "application/json", "text/plain") == digest(`{ "a":1}`, "application/json", "text/plain") {
		t.Error("compared as a document, although it may be read as a text")
	}
}

// digestBy makes the fingerprint of a request by a recipe.
func digestBy(t testing.TB, o FingerprintOptions, r *http.Request, body string) string {
	t.Helper()
	b, err := readBody(strings.NewReader(body), int64(len(body)), 16, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer b.release()
	f, err := newRecipe(o, keystore.Digester{}).fingerprint(r, b)
	if err != nil {
		t.Fatal(err)
	}
	return f.Sum.String()
}

// All lines of a header count, in their order; absent is not empty.
func TestFingerprintIncludesHeaders(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for name, h := range map[string]http.Header{
		"absent": {}, "empty": {"X-A": {""}}, "empty twice": {"X-A": {"", ""}}, "one": {"X-A": {"a"}}, "two": {"X-A": {"a", "b"}}, "other order": {"X-A": {"b", "a"}},
		"joined": {"X-A": {"a, b"}}, "of the other name": {"X-B": {"a"}}, "one of each": {"X-A": {"a"}, "X-B": {"b"}}, "the other way": {"X-A": {"b"}, "X-B": {"a"}},
		"both in the other": {"X-B": {"a", "b"}}, "framed like the next": {"X-A": {"a\x00\x00\x00\x00\x00\x00\x00\x01b"}},
	} {
		r := httptest.NewRequest("POST", "http://a.example/", nil)
		r.Header = h
		digest := digestBy(t, FingerprintOptions{IncludeHeader: []string{"x-b", "x-a"}}, r, "body")
		if other, twice := seen[digest]; twice {
			t.Errorf("%s is the same as %s", name, other)
		}
		seen[digest] = name
		r.Header.Set("X-C", "c")
		if digestBy(t, FingerprintOptions{IncludeHeader: []string{"X-A", "x-B"}}, r, "body") != digest {
			t.Errorf("%s: a header that is not included, or the order of their names, makes a difference", name)
		}
	}
}

func TestFingerprintIgnoresQueryOrHost(t *testing.T) {
	t.Parallel()
	digest := func(o FingerprintOptions, url string) string {
		return digestBy(t, o, httptest.NewRequest("POST", url, nil), "body")
	}
	query, host := FingerprintOptions{IgnoreQuery: true}, FingerprintOptions{IgnoreHost: true}
	const url = "http://a.example/pay?x=1"
	if digest(query, url) != digest(query, "http://a.example/pay") || digest(query, url) == digest(query, "http://b.example/pay?x=1") || digest(query, url) == digest(query, "http://a.example/pa?x=1") {
		t.Error("not just the query is ignored")
	}
	if digest(host, url) != digest(host, "http://b.example:81/pay?x=1") || digest(host, url) == digest(host, "http://a.example/pay?x=2") || digest(host, url) == digest(host, "http://a.example/pa?x=1") {
		t.Error("not just the host is ignored")
	}
}

// A JSON body is compared as a document only if its media type says that it is
// one, and never taken for bytes that happen to be the same as its canonical form.
func TestFingerprintOfJSON(t *testing.T) {
	t.Parallel()
	digest := func(contentType, body string) string {
		r := httptest.NewRequest("POST", "http://a.example/", nil)
		r.Header.Set("Content-Type", contentType)
		return digestBy(t, FingerprintOptions{JSON: true}, r, body)
	}
	for contentType, want := range map[string]bool{
		"application/json": true, "Application/JSON; charset=utf-8": true, "application/merge-patch+json": true, "application/vnd.api+json;v=1": true,
		"text/plain": false, "": false, "application/jsonl": false, "application/json-seq": false, "application/x-json": false, "json": false, "application/json, text/plain": false,
	} {
		if got := digest(contentType, `{"a":1,"b":2}`) == digest(contentType, `{ "b":2, "a":1 }`); got != want {
			t.Errorf("%q: compared as a document: %t, want %t", contentType, got, want)
		}
	}
	const js = "application/json"
	for name, bodies := range map[string][2]string{
		"numbers that are one float":       {`{"a":9007199254740993}`, `{"a":9007199254740992}`},
		"numbers in other spellings":       {`{"a":1}`, `{"a":1.0}`},
		"a number and a string":            {`{"a":1}`, `{"a":"1"}`},
		"null and absent":                  {`{"a":null}`, `{}`},
		"the order of elements":            {`[1,2]`, `[2,1]`},
		"a member twice and once":          {`{"a":1,"a":1}`, `{"a":1}`},
		"a member twice, other spelling":   {`{"a":1,"a":2}`, `{"a":1, "a":2}`},
		"no JSON, other white space":       {`{"a":1`, `{ "a":1`},
		"empty and null":                   {``, `null`},
		"within the bound and beyond":      {`{"a":"` + strings.Repeat("x", maxJSONBody-8) + `"}`, `{"a":"` + strings.Repeat("x", maxJSONBody-8) + `"} `},
		"beyond the bound, other spelling": {strings.Repeat(" ", maxJSONBody) + `1`, strings.Repeat("\n", maxJSONBody) + `1`},
	} {
		if digest(js, bodies[0]) == digest(js, bodies[1]) {
			t.Errorf("%s: %.40q and %.40q are one", name, bodies[0], bodies[1])
		}
	}
	for name, bodies := range map[string][2]string{
		"members":         {`{"a":1,"b":{"c":[{"e":1,"d":2}]}}`, `{"b":{"c":[{"d":2,"e":1}]},"a":1}`},
		"white space":     {`{"a":[1,2]}`, "\n{ \"a\" : [ 1 ,\t2 ] }\r\n"},
		"escapes":         {`{"\u0061":"\/\u00e9"}`, `{"a":"/é"}`},
		"past the memory": {`{"a":"` + strings.Repeat("x", 300<<10) + `"}`, `{"a" : "` + strings.Repeat("x", 300<<10) + `"}`},
		"up to the bound": {`{"a":"` + strings.Repeat("x", maxJSONBody-9) + `"}`, ` {"a":"` + strings.Repeat("x", maxJSONBody-9) + `"}`},
	} {
		if digest(js, bodies[0]) != digest(js, bodies[1]) {
			t.Errorf("%s: %.40q and %.40q are two", name, bodies[0], bodies[1])
		}
	}
}

// The memory threshold for bodies says nothing about what is the same request.
func TestFingerprintDoesNotDependOnBuffer(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("POST", "http://a.example/", nil)
	r.Header.Set("Content-Type", "application/json")
	for _, o := range []FingerprintOptions{{}, {JSON: true}} {
		digests := map[keystore.Fingerprint]bool{}
		for _, buffer := range []int64{1, 10, 1 << 20} {
			b, err := readBody(strings.NewReader(`{"b":"`+strings.Repeat("x", 1000)+`","a":1}`), -1, buffer, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			f, err := newRecipe(o, keystore.Digester{}).fingerprint(r, b)
			if err != nil {
				t.Fatal(err)
			}
			b.release()
			digests[f] = true
		}
		if len(digests) != 1 {
			t.Errorf("%+v: %d fingerprints of one request", o, len(digests))
		}
	}
}

// parts are what a fingerprint is made of, in the order in which a naive digest
// would string them together.
type parts struct{ method, host, path, query, media, header, body string }

// Different requests never have one fingerprint, however their parts are chosen
// to be the same when they are strung together.
func TestFP04DifferentPartsAreDifferentRequests(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]parts{
		{{method: "POST", path: "/a", query: "b", body: "c"}, {method: "POST", path: "/ab", body: "c"}},
		{{method: "POST", path: "/a", query: "p=1&p=q&r="}, {method: "POST", path: "/a", query: "p=1&q=r&q="}},
		{{method: "POST", path: "/a?b"}, {method: "POST", path: "/a", query: "b"}},
		{{method: "PO", path: "ST/a"}, {method: "POST", path: "/a"}},
		{{method: "POST", host: "a.example", path: "/a"}, {method: "POST", host: "a.exampl", path: "e/a"}},
		{{method: "POST", query: "a", media: "b"}, {method: "POST", query: "ab"}},
		{{method: "POST", media: "a", header: "b"}, {method: "POST", media: "ab"}},
		{{method: "POST", header: "a", body: "b"}, {method: "POST", header: "ab"}},
		{{method: "POST", header: "a", body: "b"}, {method: "POST", body: "ab"}},
	} {
		if one, two := partsDigest(t, pair[0]), partsDigest(t, pair[1]); one == two {
			t.Errorf("%+v and %+v are one", pair[0], pair[1])
		}
	}
	// All ways to cut a text into the parts.
	const text = "aXbYcZ"
	seen := map[string]parts{}
	var cut func(rest string, chosen []string)
	cut = func(rest string, chosen []string) {
		if len(chosen) == 6 {
			p := parts{chosen[0], chosen[1], chosen[2], chosen[3], chosen[4], chosen[5], rest}
			digest := partsDigest(t, p)
			if other, twice := seen[digest]; twice {
				t.Errorf("%+v and %+v are one", p, other)
			}
			seen[digest] = p
			return
		}
		for i := range len(rest) + 1 {
			cut(rest[i:], append(slices.Clip(chosen), rest[:i]))
		}
	}
	cut(text, nil)
	if len(seen) != 924 { // 12 choose 6
		t.Errorf("%d ways were tried", len(seen))
	}
}

// FuzzFingerprint: different tuples have different digests, and the same the same.
func FuzzFingerprint(f *testing.F) {
	f.Add("POST", "/a", "b", "c", "", "POST", "/ab", "", "c", "")
	f.Add("POST", "/a", "p=1&p=q&r=", "", "", "POST", "/a", "p=1&q=r&q=", "", "")
	f.Add("POST", "/a?b", "", "", "", "POST", "/a", "b", "", "")
	f.Add("PO", "/STa", "", "", "", "POST", "/a", "", "", "")
	f.Add("POST", "/a", "", "b", "a", "POST", "/a", "", "", "ab")
	f.Add("POST", "/a", "q", "b", "h", "POST", "/a", "q", "b", "h")
	f.Fuzz(func(t *testing.T, m1, p1, q1, b1, h1, m2, p2, q2, b2, h2 string) {
		one := parts{method: m1, path: p1, query: q1, header: h1, body: b1}
		two := parts{method: m2, path: p2, query: q2, header: h2, body: b2}
		if same := partsDigest(t, one) == partsDigest(t, two); same != (one == two) {
			t.Errorf("same parts: %t, same digest: %t", one == two, same)
		}
	})
}

func partsDigest(t testing.TB, p parts) string {
	t.Helper()
	r := httptest.NewRequest("POST", "http://a.example/", nil)
	r.Method, r.Host, r.URL.RawQuery = p.method, strings.ToLower(p.host), p.query
	r.URL.Opaque, r.URL.Path, r.URL.RawPath = "", p.path, ""
	r.Header.Set("X-H", p.header)
	r.Header.Set("Content-Type", p.media)
	return digestBy(t, FingerprintOptions{IncludeHeader: []string{"X-H"}}, r, p.body)
}
