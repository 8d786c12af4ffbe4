package proxy

import (
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const chargeCases = `# Recorded with the test account.

### a card is charged
# @safe
// @repeat 5
POST /v1/charges?order={{key}} HTTP/1.1
Content-Type: application/json
# a comment
Idempotency-Key: {{key}}
Host: api.example

{"amount": 1200, "order": "order-{{key}}"}

HTTP 200 201
Content-Type: application/json
Location =~ ^/v1/charges/ch_
Retry-After absent
Request-Id exists
# another one
/status == "succeeded"
/amount == 1200.0
/id =~ ^ch_[0-9a-z]+$
/order == "order-{{key}}"
/order =~ ^order-{{key}}$
/lines/0/a~1b~0c exists
/error absent
schema charge.schema.json

{
  "source": {"brand": "visa"},
  "lines": [{"n": 1}]
}

### no amount is refused
POST /v1/charges

HTTP/1.1 400 Bad Request

###
GET https://api.example/v1/charges/1
HTTP 2xx
`

func parsed(t testing.TB, text string) []*Case {
	t.Helper()
	dir := files(t, map[string]string{"c.http": text, "charge.schema.json": `{"required": ["id"]}`, "raw.txt": "{{key}} {{other}}", "in/filled.txt": "<{{key}}>"})
	cases, err := ParseCases(filepath.Join(dir, "c.http"))
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

func caseRequest(t testing.TB, c *Case, key string) (*http.Request, string) {
	t.Helper()
	r, err := c.Request(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(body)) != r.ContentLength {
		t.Errorf("%d bytes, announced as %d", len(body), r.ContentLength)
	}
	return r, string(body)
}

func TestCasesAreRead(t *testing.T) {
	t.Parallel()
	cases := parsed(t, chargeCases)
	if len(cases) != 3 {
		t.Fatalf("got %d cases", len(cases))
	}
	c := cases[0]
	if c.Name != "a card is charged" || !c.Safe || c.Repeat != 5 || c.Line != 6 {
		t.Errorf("got %+v", c)
	}
	r, body := caseRequest(t, c, "k-1")
	if r.Method != "POST" || r.URL.String() != "/v1/charges?order=k-1" || r.RequestURI != "/v1/charges?order=k-1" || r.Host != "api.example" {
		t.Errorf("got %s %s at %q", r.Method, r.URL, r.Host)
	}
	if len(r.Header) != 2 || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Idempotency-Key") != "k-1" {
		t.Errorf("got %v", r.Header)
	}
	if body != `{"amount": 1200, "order": "order-k-1"}` {
		t.Errorf("got %s", body)
	}
	if c := cases[1]; c.Name != "no amount is refused" || c.Safe || c.Repeat != 1 {
		t.Errorf("got %+v", c)
	}
	r, body = caseRequest(t, cases[2], "k")
	if cases[2].Name != "GET https://api.example/v1/charges/1" || r.Host != "api.example" || r.URL.String() != "/v1/charges/1" || body != "" {
		t.Errorf("got %q: %s at %s", cases[2].Name, r.URL, r.Host)
	}
	if _, err := c.Request(t.Context(), `"`); err == nil {
		t.Error("a key is taken that would change the document")
	}
}

func TestCasesReadBodiesFromFiles(t *testing.T) {
	t.Parallel()
	cases := parsed(t, "POST /raw\n\n< raw.txt\n\nHTTP 200\n### 2\nPOST /filled\n\n<@ in/filled.txt\n\nHTTP 200\n### 3\nPOST /xml\n\n<a>1</a>\n\nHTTP 200\n")
	for i, want := range []string{"{{key}} {{other}}", "<k>", "<a>1</a>"} {
		if _, body := caseRequest(t, cases[i], "k"); body != want {
			t.Errorf("got %q, want %q", body, want)
		}
	}
}

func TestCasesAreWrittenWithCarriageReturns(t *testing.T) {
	t.Parallel()
	cases := parsed(t, strings.ReplaceAll(chargeCases, "\n", "\r\n"))
	if _, body := caseRequest(t, cases[0], "k-1"); body != `{"amount": 1200, "order": "order-k-1"}` {
		t.Errorf("got %q", body)
	}
}

// A file that does not say clearly what is meant is refused, with the line.
func TestCasesAreReadStrictly(t *testing.T) {
	t.Parallel()
	const post = "POST /a\n\nHTTP 200\n"
	for name, test := range map[string]struct{ text, want string }{
		"empty":                     {"", ":1: it has no case"},
		"only comments":             {"# a\n\n// b\n", ":1: it has no case"},
		"a name only":               {post + "### second\n", `:4: the case "second" has no request`},
		"a name, then another":      {"### first\n### second\nPOST /a\n\nHTTP 200\n", ""},
		"a lost directive":          {post + "###\n# @safe\n", ":5: this belongs to no request"},
		"a directive too early":     {"# @safe\n### a\n" + post, ":1: this belongs to no request"},
		"an unknown directive":      {"# @safely\n" + post, `:1: "@safely" is not known`},
		"a directive with more":     {"# @safe yes\n" + post, `:1: "@safe yes" is not known`},
		"no repetitions":            {"# @repeat 0\n" + post, ":1: @repeat wants a number"},
		"too many repetitions":      {"# @repeat 1001\n" + post, ":1: @repeat wants a number"},
		"repetitions in words":      {"# @repeat often\n" + post, ":1: @repeat wants a number"},
		"no method":                 {"/a\n\nHTTP 200\n", ":1: want a method and a path"},
		"a method in lower case":    {"post /a\n\nHTTP 200\n", ":1: want a method and a path"},
		"a sentence":                {"This is a case\n", ":1: want a method and a path"},
		"a path without a slash":    {"POST a\n\nHTTP 200\n", ":1: want a path"},
		"another scheme":            {"POST ftp://a/b\n\nHTTP 200\n", ":1: want a path"},
		"a password":                {"POST http://u:p@a/b\n\nHTTP 200\n", ":1: want a path"},
		"a fragment":                {"POST /a#b\n\nHTTP 200\n", ":1: want a path"},
		"two slashes":               {"POST //a/b\n\nHTTP 200\n", ":1: want a path"},
		"no field":                  {"POST /a\nContent-Type\n\nHTTP 200\n", ":2: want a header field"},
		"a query on its own line":   {"POST /a\n  ?b=c\n\nHTTP 200\n", ":2: want a header field"},
		"a length":                  {"POST /a\nContent-Length: 3\n\nHTTP 200\n", ":2: Content-Length is set by the gateway"},
		"a job":                     {"POST /a\nIdempotency-Job: 3\n\nHTTP 200\n", ":2: Idempotency-Job is set by the gateway"},
		"a fixed key":               {"POST /a\nidempotency-key: 3\n\nHTTP 200\n", ":2: a fixed key would get the same answer"},
		"a quoted placeholder":      {"POST /a\nIdempotency-Key: \"{{key}}\"\n\nHTTP 200\n", ""},
		"a placeholder in the path": {"POST /{{id}}\n\nHTTP 200\n", ":1: {{id}} is not known"},
		"one in a field":            {"POST /a\nA: {{ key }}\n\nHTTP 200\n", ":2: {{ key }} is not known"},
		"one in the body":           {"POST /a\n\n{\n\"a\": \"{{uuid}}\"}\n\nHTTP 200\n", ":4: {{uuid}} is not known"},
		"one in what is expected":   {post + "/a == \"{{id}}\"\n", ":4: {{id}} is not known"},
		"one in the document":       {post + "{\n\"a\": \"{{id}}\"}\n", ":5: {{id}} is not known"},
		"braces":                    {"POST /a\n\n{\"a\":{\"b\":{}}}\n\nHTTP 200\n", ""},
		"no such body":              {"POST /a\n\n< none.json\n\nHTTP 200\n", ":3: the body:"},
		"nothing expected":          {"POST /a\n\n{}\n", ":1: nothing is expected"},
		"nothing expected of one":   {"POST /a\n### b\nPOST /b\n\nHTTP 200\n", ":1: nothing is expected"},
		"a status in words":         {"POST /a\n\nHTTP 200 OK\n", `:3: "OK" is no status`},
		"a long status":             {"POST /a\n\nHTTP 2000\n", `:3: "2000" is no status`},
		"a class":                   {"POST /a\n\nHTTP 6xx 200\n", `:3: "6xx" is no status`},
		"no operator":               {post + "/a is 3\n", ":4: want a header field"},
		"nothing to compare with":   {post + "/a ==\n", ":4: == and =~ need something"},
		"too much":                  {post + "/a exists not\n", ":4: == and =~ need something"},
		"no JSON":                   {post + "/a == yes\n", ":4: what it is compared with is no JSON"},
		"no regular expression":     {post + "/a =~ (\n", ":4: error parsing regexp"},
		"no pointer":                {post + "/a~2b exists\n", `:4: "/a~2b" is no JSON pointer`},
		"neither":                   {post + "{}a exists\n", ":4: what is expected of the body is no JSON document"},
		"no name":                   {post + "a:b exists\n", `:4: "a:b" is neither`},
		"no schema":                 {post + "schema none.json\n", ":4: schema "},
		"half a document":           {post + "{\"a\":\n", ":4: what is expected of the body is no JSON document"},
		"something after it":        {post + "{\"a\":1}\n/a exists\n", ":4: what is expected of the body is no JSON document"},
		"a member twice":            {post + `{"a":1,"a":2}`, ":4: what is expected of the body is no JSON document"},
		"two cases of one name":     {"### a\n" + post + "### a\n" + post, `:6: the case in line 2 is called "a" too`},
		"two without a name":        {post + "###\n" + post, `:5: the case in line 1 is called "POST /a" too`},
		"no UTF-8":                  {"POST /\xff\n", ":1: it is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(files(t, map[string]string{"c.http": test.text}), "c.http")
			_, err := ParseCases(path)
			switch {
			case test.want == "" && err != nil:
				t.Fatal(err)
			case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), path+test.want)):
				t.Fatalf("got %v, want %s", err, test.want)
			}
		})
	}
}

func charged(change func(r *keystore.Response, body *string)) *keystore.Response {
	body := `{"id":"ch_1","status":"succeeded","amount":1200,"order":"order-k","lines":[{"n":1,"a/b~c":null}],"source":{"brand":"visa","last4":"4242"},"more":{}}`
	r := &keystore.Response{Status: 201, Header: map[string][]string{
		"Content-Type": {"application/json; charset=utf-8"}, "Location": {"/v1/charges/ch_1"}, "Request-Id": {"r"},
	}}
	change(r, &body)
	r.Body, r.Size = []byte(body), int64(len(body))
	return r
}

func TestCasesJudgeAnswers(t *testing.T) {
	t.Parallel()
	c := parsed(t, chargeCases)[0]
	replace := func(from, to string) *keystore.Response {
		return charged(func(_ *keystore.Response, body *string) { *body = strings.Replace(*body, from, to, 1) })
	}
	for name, test := range map[string]struct {
		answer *keystore.Response
		want   []CaseFailure
	}{
		"all is as expected": {replace("", ""), nil},
		"another status": {charged(func(r *keystore.Response, _ *string) { r.Status = 202 }), []CaseFailure{
			{14, "status", "200 or 201", "202"},
		}},
		"other fields": {charged(func(r *keystore.Response, _ *string) {
			r.Header = map[string][]string{"Content-Type": {"text/html"}, "Retry-After": {"1", "2"}}
		}), []CaseFailure{
			{15, "Content-Type", "application/json", "text/html"},
			{16, "Location", "=~ ^/v1/charges/ch_", "none"},
			{17, "Retry-After", "none", "1, 2"},
			{18, "Request-Id", "a value", "none"},
		}},
		"the wrong meaning": {replace("succeeded", "declined"), []CaseFailure{{20, "/status", `"succeeded"`, `"declined"`}}},
		"another amount":    {replace("1200", `"1200"`), []CaseFailure{{21, "/amount", `1200.0`, `"1200"`}}},
		"another key's":     {replace("order-k", "order-x"), []CaseFailure{{23, "/order", `"order-k"`, `"order-x"`}, {24, "/order", "=~ ^order-k$", `"order-x"`}}},
		"no id": {replace(`"id":"ch_1",`, ""), []CaseFailure{
			{22, "/id", "=~ ^ch_[0-9a-z]+$", "nothing"}, {27, "schema", `the members "id"`, `{"amount":1200,"lines":[{"a/b~c":null,"n":1}],"more":{},"order":"order-k","source":{"brand":"visa","last4":"4242"},"status":"succeeded"}`},
		}},
		"an id that is no text": {replace(`"ch_1"`, "true"), []CaseFailure{{22, "/id", "=~ ^ch_[0-9a-z]+$", "true"}}},
		"an error":              {replace(`"more"`, `"error"`), []CaseFailure{{26, "/error", "nothing", "{}"}}},
		"another item":          {replace(`{"n":1,`, `{"n":2,`), []CaseFailure{{29, "body /lines/0/n", "1", "2"}}},
		"one item more":         {replace(`[{`, `[0,{`), []CaseFailure{{25, "/lines/0/a~1b~0c", "something", "nothing"}, {29, "body /lines", "an array of 1 item", `[0,{"a/b~c":null,"n":1}]`}}},
		"a missing member":      {replace(`"brand"`, `"bland"`), []CaseFailure{{29, "body /source/brand", `"visa"`, "nothing"}}},
		"another kind":          {replace(`{"brand":"visa","last4":"4242"}`, `"visa"`), []CaseFailure{{29, "body /source", "an object", `"visa"`}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.Judge(test.answer, "k")
			if len(got) != len(test.want) {
				t.Fatalf("got %+v", got)
			}
			for i := range got {
				if got[i] != test.want[i] {
					t.Errorf("got %+v, want %+v", got[i], test.want[i])
				}
			}
		})
	}
	around := c.Judge(charged(func(_ *keystore.Response, body *string) { *body = "Sure! " + *body }), "k")
	if len(around) != 1 || around[0].What != "body" || !strings.HasPrefix(around[0].Found, `Sure! {"`) {
		t.Errorf("text around the document: got %+v", around)
	}
	long := c.Judge(charged(func(_ *keystore.Response, body *string) { *body = `{"status":"` + strings.Repeat("ü", 10_000) + `"}` }), "k")
	for _, f := range long {
		if len(f.Found) > 500 || len(f.Expected) > 500 {
			t.Errorf("%d bytes are shown of %s", len(f.Found), f.What)
		}
	}
	classes := parsed(t, "GET /a\n\nHTTP 2xx 404\n")[0]
	for status, ok := range map[int]bool{200: true, 299: true, 300: false, 404: true, 400: false} {
		if got := len(classes.Judge(&keystore.Response{Status: status}, "k")) == 0; got != ok {
			t.Errorf("status %d: %v", status, got)
		}
	}
}

// Whatever a case file holds, reading it gives cases or an error that says where,
// and what was read can be sent and judged.
func FuzzCases(f *testing.F) {
	f.Add([]byte(chargeCases), []byte(`{"id":"ch_1"}`))
	f.Add([]byte("POST /\n\n<@ x\nHTTP/2 2xx\nA: b\n/ == {}\n[1]"), []byte("[1]"))
	f.Add([]byte("A /{{key}}\nA:{{key}}\nHTTP 200\nschema x\n/a =~ {{key}}"), []byte("{"))
	f.Fuzz(func(t *testing.T, text, body []byte) {
		cases, err := parseCases("c.http", text, caseFiles{
			read:   func(string) ([]byte, error) { return []byte("{{key}}"), nil },
			schema: func(string) (*schema, error) { return nil, errors.New("none") },
		})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "c.http:") || cases != nil {
				t.Fatalf("got %v, %v", cases, err)
			}
			return
		}
		for _, c := range cases {
			if _, err := c.Request(t.Context(), "key-1"); err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			c.Judge(&keystore.Response{Status: 200, Body: body, Header: map[string][]string{"A": {string(body)}}}, "key-1")
		}
	})
}
