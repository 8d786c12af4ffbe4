package proxy

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// files writes files into a directory of their own.
func files(t testing.TB, texts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const chargeSchema = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"required": ["id", "amount"],
	"properties": {
		"id": {"type": "string", "pattern": "^ch_"},
		"amount": {"type": "integer", "minimum": 1, "maximum": 9007199254740993},
		"status": {"enum": ["succeeded", "pending"]},
		"email": {"type": "string", "maxLength": 5},
		"at": {"type": "string", "format": "date-time"},
		"items": {"type": "array", "uniqueItems": true, "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
		"people": {"type": "object", "additionalProperties": {"type": "integer"}},
		"either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
		"strict": {"type": "object", "properties": {"a": true}, "additionalProperties": false}
	}
}`

func chargeContract(t testing.TB, rules ContractRules) *Contract {
	t.Helper()
	rules.Schema = filepath.Join(files(t, map[string]string{"charge.schema.json": chargeSchema}), "charge.schema.json")
	c, err := NewContract(rules)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func jsonAnswer(status int, body string) *keystore.Response {
	return &keystore.Response{
		Status: status, Header: map[string][]string{"Content-Type": {"application/json; charset=utf-8"}},
		Body: []byte(body), Size: int64(len(body)),
	}
}

// What breaks a contract, and what is said of it: the place, what was expected,
// and the kind of what was found, but nothing of what it says.
func TestContractJudgesBodies(t *testing.T) {
	t.Parallel()
	c := chargeContract(t, ContractRules{})
	deep := strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600)
	for name, test := range map[string]struct {
		body string
		want keystore.Violation
	}{
		"honoured":              {`{"id":"ch_1","amount":5,"more":true}`, keystore.Violation{}},
		"all of it":             {`{"id":"ch_1","amount":5.0e2,"status":"pending","at":"2026-11-29T20:00:00Z","either":null,"items":[{"n":1},{"n":2}]}`, keystore.Violation{}},
		"a large number":        {`{"id":"ch_1","amount":9007199254740993}`, keystore.Violation{}},
		"one too large":         {`{"id":"ch_1","amount":9007199254740994}`, keystore.Violation{Path: "/amount", Expected: "at most 9007199254740993", Found: "number"}},
		"a string":              {`{"id":"ch_1","amount":"secret-5"}`, keystore.Violation{Path: "/amount", Expected: "integer", Found: "string of 8 characters"}},
		"a fraction":            {`{"id":"ch_1","amount":1.5}`, keystore.Violation{Path: "/amount", Expected: "integer", Found: "number with a fraction"}},
		"a missing member":      {`{"amount":1}`, keystore.Violation{Expected: `the members "id"`, Found: "an object without them"}},
		"another root":          {`[]`, keystore.Violation{Expected: "object", Found: "array of 0 items"}},
		"null":                  {`null`, keystore.Violation{Expected: "object", Found: "null"}},
		"a pattern":             {`{"id":"secret","amount":1}`, keystore.Violation{Path: "/id", Expected: "pattern ^ch_", Found: "string of 6 characters"}},
		"an enum":               {`{"id":"ch_1","amount":1,"status":"secret"}`, keystore.Violation{Path: "/status", Expected: `one of "succeeded", "pending"`, Found: "another string of 6 characters"}},
		"a format":              {`{"id":"ch_1","amount":1,"at":"yesterday"}`, keystore.Violation{Path: "/at", Expected: "format date-time", Found: "string of 9 characters"}},
		"a length":              {`{"id":"ch_1","amount":1,"email":"secret"}`, keystore.Violation{Path: "/email", Expected: "at most 5 characters", Found: "string of 6 characters"}},
		"an item":               {`{"id":"ch_1","amount":1,"items":[{"n":1},{"n":"secret"}]}`, keystore.Violation{Path: "/items/1/n", Expected: "integer", Found: "string of 6 characters"}},
		"equal items":           {`{"id":"ch_1","amount":1,"items":[{},{"n":1},{"n":1.0}]}`, keystore.Violation{Path: "/items", Expected: "items that are all different", Found: "items 1 and 2 are equal"}},
		"somebody's name":       {`{"id":"ch_1","amount":1,"people":{"secret@example.com":"x"}}`, keystore.Violation{Path: "/people/*", Expected: "integer", Found: "string of 1 character"}},
		"a choice":              {`{"id":"ch_1","amount":1,"either":{"secret":1}}`, keystore.Violation{Path: "/either", Expected: "one of the schema's alternatives (anyOf)", Found: "object of 1 member"}},
		"another member":        {`{"id":"ch_1","amount":1,"strict":{"secret":1}}`, keystore.Violation{Path: "/strict", Expected: "no members but those of the schema", Found: "1 other"}},
		"no body":               {"", keystore.Violation{Expected: "a JSON document", Found: "an empty body"}},
		"white space":           {" \n", keystore.Violation{Expected: "a JSON document", Found: "an empty body"}},
		"text around it":        {`Sure! {"id":"ch_1","amount":1}`, keystore.Violation{Expected: "a JSON document", Found: "something else"}},
		"two documents":         {`{"id":"ch_1","amount":1}{}`, keystore.Violation{Expected: "a JSON document", Found: "something else"}},
		"cut":                   {`{"id":"ch_1","amou`, keystore.Violation{Expected: "a JSON document", Found: "something else"}},
		"a byte order mark":     {"\ufeff" + `{"id":"ch_1","amount":1}`, keystore.Violation{Expected: "a JSON document", Found: "something else"}},
		"no UTF-8":              {"{\"id\":\"ch_\xff\",\"amount\":1}", keystore.Violation{Expected: "a JSON document in UTF-8", Found: "bytes that are no UTF-8"}},
		"a member twice":        {`{"id":"ch_1","amount":1,"amount":2}`, keystore.Violation{Expected: "each member once", Found: "one that comes twice"}},
		"twice, escaped":        {`{"id":"ch_1","amount":1,"items":[{"n":1,"\u006e":2}]}`, keystore.Violation{Path: "/items/0", Expected: "each member once", Found: "one that comes twice"}},
		"twice below a secret":  {`{"secret":{"a":1,"a":1}}`, keystore.Violation{Path: "/*", Expected: "each member once", Found: "one that comes twice"}},
		"nested too deep":       {deep, keystore.Violation{Expected: "at most 512 levels", Found: "more"}},
		"nested beyond reading": {strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), keystore.Violation{Expected: "a JSON document", Found: "something else"}},
		"an endless exponent":   {`{"id":"ch_1","amount":1e999999999}`, keystore.Violation{Path: "/amount", Expected: "a number of at most 1000 characters, with an exponent of at most 3 digits", Found: "a longer one"}},
		"an endless number":     {`{"id":"ch_1","amount":` + strings.Repeat("9", 100_000) + `}`, keystore.Violation{Path: "/amount", Expected: "a number of at most 1000 characters, with an exponent of at most 3 digits", Found: "a longer one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 3 { // the members of an object have no order
				got := c.Judge(jsonAnswer(200, test.body))
				switch {
				case got == nil && test.want != keystore.Violation{}:
					t.Fatal("it is honoured")
				case got != nil && *got != test.want:
					t.Fatalf("got %+v", *got)
				case got != nil && strings.Contains(fmt.Sprint(*got), "secret"):
					t.Fatal("it shows what the body says")
				}
			}
		})
	}
}

// Of several ways to break it, the same one is told each time.
func TestContractTellsTheSameWayEachTime(t *testing.T) {
	t.Parallel()
	c := chargeContract(t, ContractRules{})
	body := `{"id":1,"amount":"x","status":2,"email":3,"at":4,"either":5}`
	for range 50 {
		if got := c.Judge(jsonAnswer(200, body)); got == nil || got.Path != "/amount" {
			t.Fatalf("got %+v", got)
		}
	}
}

func TestContractJudgesWhatIsAroundTheBody(t *testing.T) {
	t.Parallel()
	const good = `{"id":"ch_1","amount":5}`
	with := func(change func(*keystore.Response)) *keystore.Response {
		answer := jsonAnswer(201, good)
		change(answer)
		return answer
	}
	header := func(name string, values ...string) *keystore.Response {
		return with(func(r *keystore.Response) { r.Header[name] = values })
	}
	rules := ContractRules{
		Statuses: []int{200, 201, 204}, MaxSize: 100,
		RequireHeaders: []RequiredHeader{{Name: "content-type", Value: "application/json"}},
	}
	for name, test := range map[string]struct {
		answer *keystore.Response
		want   string
	}{
		"honoured":                {jsonAnswer(201, good), ""},
		"another status":          {jsonAnswer(202, good), "status 200 or 201 or 204, status 202"},
		"an honest refusal":       {jsonAnswer(400, `no`), ""},
		"a redirection":           {jsonAnswer(303, ``), ""},
		"a server's error":        {jsonAnswer(500, ``), ""},
		"204 by its number":       {with(func(r *keystore.Response) { r.Status, r.Body, r.Size = 204, nil, 0 }), ""},
		"an empty 201":            {jsonAnswer(201, ""), "a JSON document, an empty body"},
		"a missing header":        {header("Content-Type"), "header content-type, none"},
		"another media type":      {header("Content-Type", "text/secret"), "header content-type: application/json, another value"},
		"a media type in capital": {header("Content-Type", "Application/JSON"), ""},
		"too large":               {with(func(r *keystore.Response) { r.Body = bytes.Repeat([]byte(" "), 101); r.Size = 101 }), "at most 100 bytes, 101"},
		"not kept":                {with(func(r *keystore.Response) { r.Body, r.NotKept, r.Size = nil, true, 90 }), "a body within the response limit, 90 bytes"},
		"coded":                   {header("Content-Encoding", "gzip"), "a body without content coding, one with"},
		"coded by nothing":        {header("Content-Encoding", "identity"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if v := chargeContract(t, rules).Judge(test.answer); v != nil {
				got = v.Expected + ", " + v.Found
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	bodiless := with(func(r *keystore.Response) { r.Status, r.Body, r.Size = 204, nil, 0 })
	if chargeContract(t, ContractRules{}).Judge(bodiless) == nil {
		t.Error("a 204 that nobody allowed honours a schema")
	}
	for _, mediaType := range []string{"text/html", "", "application/jsonp", "a/b/c"} {
		if chargeContract(t, ContractRules{}).Judge(header("Content-Type", mediaType)) == nil {
			t.Errorf("media type %q is taken for JSON", mediaType)
		}
	}
	if v := chargeContract(t, ContractRules{}).Judge(header("Content-Type", "application/problem+json")); v != nil {
		t.Errorf("got %+v", v)
	}
	c, err := NewContract(ContractRules{RequireHeaders: []RequiredHeader{{Name: "Request-Id"}}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Judge(header("Request-Id", "x")) != nil || c.Judge(jsonAnswer(200, "no JSON")) == nil {
		t.Error("a contract of one header judges something else")
	}
}

// A large document is judged in time, however often it breaks the schema.
func TestContractJudgesLargeDocuments(t *testing.T) {
	t.Parallel()
	c := chargeContract(t, ContractRules{})
	items := strings.Repeat(`{"n":"x"},`, 100_000)
	body := `{"id":"ch_1","amount":1,"items":[` + strings.TrimSuffix(items, ",") + `]}`
	if got := c.Judge(jsonAnswer(200, body)); got == nil || !strings.HasPrefix(got.Path, "/items") {
		t.Errorf("got %+v", got)
	}
}

// treeSchema has alternatives that have its own nodes in common.
const treeSchema = `{"$ref": "#/$defs/tree", "$defs": {"tree": {"anyOf": [
	{"type": "object", "properties": {"below": {"$ref": "#/$defs/tree"}, "text": {"type": "string"}}, "required": ["text"]},
	{"type": "object", "properties": {"below": {"$ref": "#/$defs/tree"}, "number": {"type": "number"}}, "required": ["number"]}
]}}}`

func tree(depth int, leaf string) string {
	return strings.Repeat(`{"number":1,"below":`, depth) + leaf + strings.Repeat("}", depth)
}

// However a schema repeats itself, an answer of some hundred bytes is not judged for
// hours, and the next one, on the same or another gateway's processor, is judged as ever.
func TestContractIsJudgedInTime(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"tree.json": `{"$ref": "parts/tree.json"}`, "parts/tree.json": treeSchema,
		"draft-07.json": strings.Replace(treeSchema, "{", `{"$schema": "http://json-schema.org/draft-07/schema#", `, 1),
	})
	for _, name := range []string{"tree.json", "draft-07.json"} {
		c, err := NewContract(ContractRules{Schema: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 4 * runtime.GOMAXPROCS(0) {
			all.Go(func() {
				if v := c.Judge(jsonAnswer(200, tree(5, `{"text":"x"}`))); v != nil {
					t.Errorf("%s: an honest tree: %+v", name, v)
				}
				if v := c.Judge(jsonAnswer(200, tree(5, `{}`))); v == nil || v.Expected != "one of the schema's alternatives (anyOf)" {
					t.Errorf("%s: another tree: %+v", name, v)
				}
			})
		}
		began := time.Now()
		for _, leaf := range []string{`{"text":"x"}`, `{}`} {
			if v := c.Judge(jsonAnswer(200, tree(30, leaf))); v == nil || v.Found != "one that takes too long" {
				t.Errorf("%s: a high tree: %+v", name, v)
			}
		}
		all.Wait()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: it took %v", name, took)
		}
	}
}

// A schema refers to files beside it, and to nothing else: neither the network nor
// a file elsewhere, by whatever way.
func TestContractReadsOnlyTheSchemasDirectory(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"outside.json":        `{"type": "string"}`,
		"in/good.json":        `{"$ref": "parts/money.json#/$defs/amount"}`,
		"in/parts/money.json": `{"$defs": {"amount": {"type": "integer", "$ref": "../min.json"}}}`,
		"in/min.json":         `{"minimum": 3}`,
		"in/remote.json":      `{"$ref": "https://example.com/schema.json"}`,
		"in/id.json":          `{"$id": "https://example.com/x/charge.json", "$ref": "min.json"}`,
		"in/up.json":          `{"$ref": "../outside.json"}`,
		"in/absolute.json":    `{"$ref": "file:///etc/passwd"}`,
		"in/host.json":        `{"$ref": "file://example.com/x.json"}`,
		"in/link.json":        `{"$ref": "linked.json"}`,
		"in/missing.json":     `{"$ref": "nothing.json"}`,
		"in/dialect.json":     `{"$schema": "https://example.com/dialect"}`,
		"in/text.json":        `schema`,
		"in/twice.json":       `{"type": "string", "type": "number"}`,
		"in/typo.json":        `{"type": "strin"}`,
		"in/format.json":      `{"format": 5}`,
		"in/regexp.json":      `{"pattern": "(?<=x)y"}`,
		"in/array.json":       `[]`,
	})
	if err := os.Symlink("../outside.json", filepath.Join(dir, "in", "linked.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "in", "min.json"), filepath.Join(dir, "named.json")); err != nil {
		t.Fatal(err)
	}
	for name, origin := range map[string]string{"elsewhere.json": "https://example.com", "otherhost.json": "file://example.com"} {
		beside := fmt.Sprintf(`{"$ref": %q}`, origin+filepath.ToSlash(filepath.Join(dir, "in", "min.json")))
		if err := os.WriteFile(filepath.Join(dir, "in", name), []byte(beside), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The file that somebody has named may be elsewhere itself.
	if c, err := NewContract(ContractRules{Schema: filepath.Join(dir, "named.json")}); err != nil || c.Judge(jsonAnswer(200, "2")) == nil {
		t.Errorf("a link that was named: %v", err)
	}
	compile := func(name string) (*Contract, error) {
		return NewContract(ContractRules{Schema: filepath.Join(dir, "in", name)})
	}
	c, err := compile("good.json")
	if err != nil {
		t.Fatal(err)
	}
	if c.Judge(jsonAnswer(200, "3")) != nil || c.Judge(jsonAnswer(200, "2")) == nil || c.Judge(jsonAnswer(200, `"3"`)) == nil {
		t.Error("what it refers to does not count")
	}
	for _, name := range []string{
		"remote.json", "id.json", "up.json", "absolute.json", "host.json", "link.json", "missing.json", "dialect.json", "elsewhere.json", "otherhost.json",
		"text.json", "twice.json", "typo.json", "format.json", "regexp.json", "array.json", "there-is-none.json",
	} {
		_, err := compile(name)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
		if foreign := strings.HasSuffix(fmt.Sprint(err), errForeignSchema.Error()); foreign != slices.Contains([]string{"remote.json", "id.json", "up.json", "absolute.json", "host.json", "dialect.json", "elsewhere.json", "otherhost.json"}, name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestContractRefusesRulesThatMeanNothing(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]ContractRules{
		"a refusal":       {Statuses: []int{200, 400}},
		"no status":       {Statuses: []int{99}},
		"a bad name":      {RequireHeaders: []RequiredHeader{{Name: "a b"}}},
		"a bad value":     {RequireHeaders: []RequiredHeader{{Name: "A", Value: "a\nb"}}},
		"a negative size": {MaxSize: -1},
		"no case file":    {Cases: []string{filepath.Join(t.TempDir(), "none.http")}},
	} {
		if _, err := NewContract(rules); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

// The digest changes with whatever can change a verdict, be it in a file far away.
func TestContractDigest(t *testing.T) {
	t.Parallel()
	texts := map[string]string{
		"s.json": `{"$ref": "t.json"}`, "t.json": `{"type": "string"}`, "u.json": `{"type": "null"}`, "body.json": `{}`,
		"a.http": "POST /a\n\n< body.json\n\nHTTP 200\nschema u.json\n", "b.http": "POST /b\n\nHTTP 200\n",
	}
	sum := func(change func(dir string, texts map[string]string, rules *ContractRules)) keystore.Digest {
		changed := map[string]string{}
		maps.Copy(changed, texts)
		rules := ContractRules{Statuses: []int{200}, RequireHeaders: []RequiredHeader{{Name: "A", Value: "b"}}, MaxSize: 10}
		dir := t.TempDir()
		rules.Schema, rules.Cases = filepath.Join(dir, "s.json"), []string{filepath.Join(dir, "a.http"), filepath.Join(dir, "b.http")}
		change(dir, changed, &rules)
		for name, text := range changed {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c, err := NewContract(rules)
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest()
	}
	same := func(string, map[string]string, *ContractRules) {}
	seen := map[keystore.Digest]string{sum(same): "nothing"}
	if _, again := seen[sum(same)]; !again {
		t.Error("the same contract has two digests")
	}
	for name, change := range map[string]func(dir string, texts map[string]string, rules *ContractRules){
		"schema":            func(_ string, f map[string]string, _ *ContractRules) { f["s.json"] += " " },
		"what it refers to": func(_ string, f map[string]string, _ *ContractRules) { f["t.json"] = `{"type": "number"}` },
		"a case":            func(_ string, f map[string]string, _ *ContractRules) { f["b.http"] += "\n" },
		"a case's body":     func(_ string, f map[string]string, _ *ContractRules) { f["body.json"] = `{"a":1}` },
		"a case's schema":   func(_ string, f map[string]string, _ *ContractRules) { f["u.json"] = `{"type": "array"}` },
		"statuses":          func(_ string, _ map[string]string, r *ContractRules) { r.Statuses = []int{201} },
		"a header":          func(_ string, _ map[string]string, r *ContractRules) { r.RequireHeaders[0].Value = "c" },
		"size":              func(_ string, _ map[string]string, r *ContractRules) { r.MaxSize = 11 },
		"outcome":           func(_ string, _ map[string]string, r *ContractRules) { r.ViolationFails = true },
		"fewer cases":       func(_ string, _ map[string]string, r *ContractRules) { r.Cases = r.Cases[:1] },
		"no schema":         func(_ string, _ map[string]string, r *ContractRules) { r.Schema = "" },
	} {
		d := sum(change)
		if other, twice := seen[d]; twice {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[d] = name
	}
}

// Which of its schemas a contract begins with is a part of it, though they are the
// same files.
func TestContractDigestKnowsItsSchema(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"a.json": `{"type": "object", "properties": {"b": {"$ref": "b.json"}}}`,
		"b.json": `{"type": "array", "items": {"$ref": "a.json"}}`,
	})
	sums := map[keystore.Digest]bool{}
	for _, name := range []string{"a.json", "b.json"} {
		c, err := NewContract(ContractRules{Schema: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		sums[c.Digest()] = true
	}
	if len(sums) != 2 {
		t.Error("two contracts have one digest")
	}
}
