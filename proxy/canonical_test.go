package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func treeOf(pointers ...string) (tree *pointerTree) {
	for _, p := range pointers {
		tree = tree.with(pointerTokens(p))
	}
	return tree
}

func TestCanonicalJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ doc, want string }{
		{`{"b":1,"a":2}`, `{"a":2,"b":1}`},
		{" {\t\"b\" :\n[ 1 ,\r2 ] , \"a\" : { } } ", `{"a":{},"b":[1,2]}`},
		{`{"b":{"z":1,"y":{"d":0,"c":0}},"a":[{"q":1,"p":2}]}`, `{"a":[{"p":2,"q":1}],"b":{"y":{"c":0,"d":0},"z":1}}`},
		{`[]`, `[]`},
		{`[ ]`, `[]`},
		{`{ }`, `{}`},
		{` true`, `true`},
		{`false`, `false`},
		{`null `, `null`},
		{`""`, `""`},
		{`"\u0041\/\"\\\b\f\n\r\t\u001F\u007f"`, "\"A/\\\"\\\\\\u0008\\u000c\\u000a\\u000d\\u0009\\u001f\x7f\""},
		{`"\u00e9\ud83d\uDE00"`, `"é😀"`},
		{`{"\u0061":1}`, `{"a":1}`},
		{`{"":1,"é":2,"z":3}`, `{"":1,"z":3,"é":2}`},
		// Numbers are what was written.
		{`9007199254740993`, `9007199254740993`},
		{`-0`, `-0`},
		{`0`, `0`},
		{`1.0`, `1.0`},
		{`1E5`, `1E5`},
		{`1e+5`, `1e+5`},
		{`1e-05`, `1e-05`},
		{`123456789012345678901234567890.123456789e400`, `123456789012345678901234567890.123456789e400`},
	} {
		got, ok := canonicalJSON([]byte(c.doc), nil)
		if !ok || string(got) != c.want {
			t.Errorf("%s: got %s, %t; want %s", c.doc, got, ok, c.want)
		}
	}
}

// What is no JSON, or what two readers could understand differently, has no
// canonical form.
func TestNoCanonicalJSON(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	long := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	for name, doc := range map[string]string{
		"nothing": "", "white space": " ", "two documents": `{} {}`, "cut object": `{"a":1`, "cut array": `[1`, "cut string": `"a`, "cut escape": `"\`,
		"comma at the end of an object": `{"a":1,}`, "comma at the end of an array": `[1,]`, "comma first": `[,1]`, "comma first in an object": `{,"a":1}`,
		"no comma": `[1 2]`, "no colon": `{"a" 1}`, "no name": `{1:2}`, "no value": `{"a":}`, "wrong end": `[1}`,
		"zero in front": `01`, "plus in front": `+1`, "no digits": `-`, "no digits after the point": `1.`, "no digits before it": `.5`, "no exponent": `1e`,
		"hexadecimal": `0x1`, "not a number": `NaN`, "cut word": `tru`, "longer word": `nullx`, "capitals": `True`,
		"single quotes": `'a'`, "control character": "\"\n\"", "unknown escape": `"\x"`, "short escape": `"\u12"`, "odd escape": `"\u+123"`, "underscore": `"\u1_23"`,
		"a comment": `{} // a`, "a byte order mark": "\ufeff{}", "no-break space": "\u00a0{}",
		"member twice": `{"a":1,"a":1}`, "member twice, escaped": `{"a":1,"\u0061":1}`, "member twice, deep": `[{"b":{"a":1,"c":2,"a":3}}]`,
		"high surrogate": `"\ud83d"`, "low surrogate": `"\ude00"`, "high surrogate and a letter": `"\ud83dx"`, "two high surrogates": `"\ud83d\ud83d"`, "pair the wrong way": `"\ude00\ud83d"`,
		"lone surrogate in a name": `{"\ud83d":1}`, "no UTF-8": "\"\xff\"", "no UTF-8 in a name": "{\"\xff\":1}", "surrogate in UTF-8": "\"\xed\xa0\x80\"",
		"too deep": deep(maxJSONDepth + 1), "too long": long(maxJSONBody + 1),
	} {
		if got, ok := canonicalJSON([]byte(doc), nil); ok {
			t.Errorf("%s: %.40s is taken for %.40s", name, doc, got)
		}
	}
	for name, doc := range map[string]string{"deep": deep(maxJSONDepth), "long": long(maxJSONBody)} {
		if got, ok := canonicalJSON([]byte(doc), nil); !ok || string(got) != doc {
			t.Errorf("%s: within the bounds, and not taken", name)
		}
	}
}

func TestCanonicalJSONLeavesOutWhatIsPointedTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pointers  []string
		doc, want string
	}{
		{[]string{"/a"}, `{"a":1,"b":2}`, `{"b":2}`},
		{[]string{"/b"}, `{"a":1,"b":2}`, `{"a":1}`},
		{[]string{"/b"}, `{"c":3,"b":{"x":[1]},"a":1}`, `{"a":1,"c":3}`},
		{[]string{"/a", "/c"}, `{"c":3,"b":2,"a":1}`, `{"b":2}`},
		{[]string{"/a"}, `{"a":1}`, `{}`},
		{[]string{"/a"}, `{}`, `{}`},
		{[]string{"/a/b"}, `{"a":{"b":1,"c":2},"b":3}`, `{"a":{"c":2},"b":3}`},
		{[]string{"/a", "/a/b"}, `{"a":{"b":1},"c":2}`, `{"c":2}`},
		{[]string{"/a/b"}, `{"a":{"c":1}}`, `{"a":{"c":1}}`},
		{[]string{"/a/b"}, `{"a":"b"}`, `{"a":"b"}`},
		{[]string{"/a/0"}, `{"a":[1,2,3]}`, `{"a":[2,3]}`},
		{[]string{"/a/1", "/a/2"}, `{"a":[1,2,3,4]}`, `{"a":[1,4]}`},
		{[]string{"/a/1/t"}, `{"a":[{"t":1},{"t":2}]}`, `{"a":[{"t":1},{}]}`},
		{[]string{"/a/3", "/a/-", "/a/01", "/a/+1", "/a/x"}, `{"a":[1,2,3]}`, `{"a":[1,2,3]}`},
		{[]string{"/0"}, `{"0":1,"1":2}`, `{"1":2}`},
		{[]string{"/0"}, `[1]`, `[]`},
		{[]string{"/-"}, `{"-":1}`, `{}`},
		{[]string{"/"}, `{"":1,"a":2}`, `{"a":2}`},
		{[]string{"/a~1b", "/m~0n", "/~01"}, `{"a/b":1,"m~n":2,"~1":3,"/":4}`, `{"/":4}`},
		{[]string{"/é"}, `{"\u00e9":1,"e":2}`, `{"e":2}`},
		{[]string{"/a"}, `5`, `5`},
	} {
		got, ok := canonicalJSON([]byte(c.doc), treeOf(c.pointers...))
		if !ok || string(got) != c.want {
			t.Errorf("%s without %q: got %s, %t; want %s", c.doc, c.pointers, got, ok, c.want)
		}
	}
	// Which of the two was meant nobody knows, also where neither counts.
	if got, ok := canonicalJSON([]byte(`{"a":1,"a":2}`), treeOf("/a")); ok {
		t.Errorf("a member that is left out and there twice: %s", got)
	}
}

// FuzzJSONFingerprint holds the canonical form against encoding/json: the same is
// accepted, but for what readers could understand differently, and two bodies have
// one fingerprint if and only if they are documents that say the same, or the
// same bytes.
func FuzzJSONFingerprint(f *testing.F) {
	for _, doc := range []string{
		`{"b":[1,2.50,{"c":null}],"a":"\u00e9\n"}`, `[true,false,"\ud83d\ude00"]`, `{"a":1,"\u0061":2}`, `{"a":{"b":{}}}`, `"\ud800"`, `-0.0e-1`, `{"a":9007199254740993}`,
	} {
		f.Add(doc, doc)
		f.Add(doc, " "+doc)
		f.Add(doc, `{"a":9007199254740992}`)
	}
	f.Add(`{"a":1,"b":{"d":2,"c":3}}`, `{ "b" : {"c":3, "d":2}, "\u0061":1 }`)
	f.Add(`{"a":1,"b":2}`, `{"b":1,"a":2}`)
	f.Add(`{"a":[1,2]}`, `{"a":[2,1]}`)
	rc := newRecipe(FingerprintOptions{JSON: true}, keystore.Digester{})
	f.Fuzz(func(t *testing.T, one, two string) {
		a, b := checkCanonical(t, one), checkCanonical(t, two)
		same := one == two
		if a != nil && b != nil {
			same = reflect.DeepEqual(decodeJSON(t, one), decodeJSON(t, two))
		}
		if same != bytes.Equal(a, b) && (a != nil || b != nil) {
			t.Fatalf("the same: %t\n%q\n%q\n%q\n%q", same, one, a, two, b)
		}
		if same != (jsonDigest(t, rc, one) == jsonDigest(t, rc, two)) {
			t.Fatalf("the same: %t, but not the fingerprints of\n%q\n%q", same, one, two)
		}
	})
}

func jsonDigest(t *testing.T, rc *recipe, body string) keystore.Digest {
	t.Helper()
	r := httptest.NewRequest("POST", "http://a.example/", nil)
	r.Header.Set("Content-Type", "application/problem+json")
	b, err := readBody(strings.NewReader(body), int64(len(body)), 1<<10, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer b.release()
	f, err := rc.fingerprint(r, b)
	if err != nil {
		t.Fatal(err)
	}
	return f.Sum
}

// checkCanonical checks what is known of a document without another one, and
// returns its canonical form, or nil.
func checkCanonical(t *testing.T, doc string) []byte {
	t.Helper()
	got, ok := canonicalJSON([]byte(doc), nil)
	if want := plainJSON(doc); ok != want {
		t.Fatalf("%q: taken: %t, want %t", doc, ok, want)
	}
	if !ok {
		return nil
	}
	if !reflect.DeepEqual(decodeJSON(t, doc), decodeJSON(t, string(got))) {
		t.Fatalf("%q and its form %q say different things", doc, got)
	}
	if again, ok := canonicalJSON(got, nil); !ok || !bytes.Equal(again, got) {
		t.Fatalf("the form of %q is %q, whose form is %q, %t", doc, got, again, ok)
	}
	// Another spelling of it.
	respelled := spell(rand.New(rand.NewPCG(uint64(len(doc)), 0)), decodeJSON(t, doc))
	if again, ok := canonicalJSON([]byte(respelled), nil); (ok || len(respelled) <= maxJSONBody) && !bytes.Equal(again, got) {
		t.Fatalf("the form of %q is %q, and that of %q is %q, %t", doc, got, respelled, again, ok)
	}
	return got
}

func decodeJSON(t *testing.T, doc string) (v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", doc, err)
	}
	return v
}

// plainJSON says by other means whether a document has a canonical form.
func plainJSON(doc string) bool {
	if !json.Valid([]byte(doc)) || !utf8.ValidString(doc) || len(doc) > maxJSONBody || hasLoneSurrogate(doc) {
		return false
	}
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	type level struct {
		names map[string]bool // nil in an array
		name  bool            // whether a name comes next
	}
	var levels []level
	for {
		token, err := d.Token()
		if err == io.EOF {
			return true
		}
		if err != nil {
			return false
		}
		var top *level
		if len(levels) > 0 {
			top = &levels[len(levels)-1]
		}
		switch delim, _ := token.(json.Delim); {
		case delim == '}' || delim == ']':
			levels = levels[:len(levels)-1]
			continue
		case top != nil && top.names != nil && top.name:
			name := token.(string)
			if top.names[name] {
				return false
			}
			top.names[name], top.name = true, false
			continue
		case top != nil && top.names != nil:
			top.name = true
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}, name: true})
		case json.Delim('['):
			levels = append(levels, level{})
		}
		if len(levels) > maxJSONDepth {
			return false
		}
	}
}

// hasLoneSurrogate looks for what encoding/json replaces: in a valid document,
// whose replacement characters were not written as such.
func hasLoneSurrogate(doc string) bool {
	const mark = "\x00" // can't stand in a valid document
	doc = strings.ReplaceAll(doc, `\\`, mark)
	for i := 0; ; {
		at := strings.Index(doc[i:], `\u`)
		if at < 0 {
			return false
		}
		i += at
		if !strings.EqualFold(doc[i+2:i+3], "d") || doc[i+3] < '8' {
			i += 6
			continue
		}
		if low := doc[i+3]; low >= 'c' || low >= 'C' && low <= 'F' {
			return true
		}
		if len(doc) < i+12 || doc[i+6:i+8] != `\u` || !strings.EqualFold(doc[i+8:i+9], "d") || !strings.ContainsAny(doc[i+9:i+10], "cdefCDEF") {
			return true
		}
		i += 12
	}
}
