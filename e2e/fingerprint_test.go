package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// FP-01: the query is part of what a key stands for. A request that was only to
// be checked never answers for the one that is to be done.
func TestFP01DryRunIsAnotherRequest(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up)).client()
	dry := post("dry").as(func(r *request) { r.path = "/pay?validate_only=true" })
	a := c.do(dry)
	wantExecuted(t, a)
	wantRefusal(t, c.do(post("dry")), http.StatusConflict, "key-reused")
	wantReplay(t, a, c.do(dry))
	up.want("dry", 1)
}

// FP-03: method and path are part of what a key stands for: no answer of one
// operation is given for another.
func TestFP03KeyStandsForOneOperation(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up)).client()
	create := post("operation").as(func(r *request) { r.path = "/projects" })
	a := c.do(create)
	wantExecuted(t, a)
	for _, path := range []string{"/applications", "/projects/", "/Projects", "/project%73", "/projects/1", "/"} {
		wantRefusal(t, c.do(create.as(func(r *request) { r.path = path })), http.StatusConflict, "key-reused")
	}
	wantRefusal(t, c.do(create.as(func(r *request) { r.method = http.MethodPut })), http.StatusConflict, "key-reused")
	wantReplay(t, a, c.do(create))
	up.want("operation", 1)
}

// FP-07: nothing is kept beside the store that would spare the comparison. Other
// input is refused on each gateway and each time, and the same is replayed.
func TestFP07EveryRepetitionIsCompared(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	one := startGateway(t, to(up).on(redis.store())).client()
	two := startGateway(t, to(up).on(redis.store())).client()
	a := one.do(post("compared"))
	wantExecuted(t, a)
	other := post("compared").as(func(r *request) { r.body = `{"amount":9}` })
	for range 3 {
		wantRefusal(t, two.do(other), http.StatusConflict, "key-reused")
	}
	wantReplay(t, a, two.do(post("compared")))
	for range 3 {
		wantRefusal(t, two.do(other), http.StatusConflict, "key-reused")
		wantRefusal(t, one.do(other), http.StatusConflict, "key-reused")
	}
	up.want("compared", 1)
}

// FP-12: what counts is what the client has sent. A prefix that is stripped, or a
// path that is rewritten, before the handler makes no two operations one.
func TestFP12OriginalPathCounts(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	s := to(up)
	for path, raw := range map[string]string{
		"/v1/pay /v2/pay":         "handle_path /v1/* {\n" + s.block() + "}\nhandle_path /v2/* {\n" + s.block() + "}\n",
		"/old/pay /new/pay":       "uri strip_prefix /old\nuri strip_prefix /new\n" + s.block(),
		"/a/pay /pay":             "rewrite /a/pay /pay\n" + s.block(),
		"/b/pay?x=1 /b/pay?x=2":   "uri query -x\n" + s.block(),
		"/c/pay?x=1 /c/pay?x=1&y": "rewrite * {path}?\n" + s.block(),
	} {
		c := startGateway(t, site{raw: raw}).client()
		one, two, _ := strings.Cut(path, " ")
		key := "key of " + one
		first := post(strings.ReplaceAll(key, " ", "-")).as(func(r *request) { r.path = one })
		second := first.as(func(r *request) { r.path = two })
		a := c.do(first)
		wantExecuted(t, a)
		wantRefusal(t, c.do(second), http.StatusConflict, "key-reused")
		wantReplay(t, a, c.do(first))
		up.want(first.key, 1)
		if line := up.of(first.key)[0].line; !strings.HasSuffix(strings.TrimSuffix(line, " HTTP/1.1"), "/pay") {
			t.Errorf("%s: the path was not rewritten: %s", one, line)
		}
	}
}

// FP-13: no digest is made of a part of a body. Past the limit a body is refused
// before anything is claimed; up to it the last byte counts, also in a file.
func TestFP13LastByteCounts(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	for name, c := range map[string]*client{
		"raw":  startGateway(t, to(up).with("max_request_body", "1MiB")).client(),
		"json": startGateway(t, to(up).with("max_request_body", "1MiB").with("fingerprint", "json")).client(),
	} {
		sized := func(n int, last string) request {
			return post("body-" + name).as(func(r *request) { r.body = `"` + strings.Repeat("x", n-3) + last + `"` })
		}
		for _, last := range []string{"A", "B"} {
			wantRefusal(t, c.do(sized(1<<20+1, last)), http.StatusRequestEntityTooLarge, "request-too-large")
		}
		up.want("body-"+name, 0)
		a := c.do(sized(1<<20, "A"))
		wantExecuted(t, a)
		wantRefusal(t, c.do(sized(1<<20, "B")), http.StatusConflict, "key-reused")
		wantReplay(t, a, c.do(sized(1<<20, "A")))
		up.want("body-"+name, 1)
	}
}

// With fingerprint json, JSON bodies are compared as documents. No number is
// rounded by that: what a parser would take for the same is not.
func TestFingerprintJSON(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("fingerprint", "json")).client()
		document := func(body string) request {
			return post("document").as(func(r *request) { r.body = body })
		}
		const sent = `{"a":9007199254740993,"b":[{"c":"é","d":null}]}`
		a := c.do(document(sent))
		wantExecuted(t, a)
		for _, other := range []string{
			`{"a":9007199254740992,"b":[{"c":"é","d":null}]}`, `{"a":9007199254740993.0,"b":[{"c":"é","d":null}]}`, `{"a":9007199254740993,"b":[{"c":"é"}]}`,
			`{"a":9007199254740993,"a":9007199254740993,"b":[{"c":"é","d":null}]}`, `{"a":9007199254740993,"b":[{"c":"é","d":null}]`,
		} {
			wantRefusal(t, c.do(document(other)), http.StatusConflict, "key-reused")
		}
		wantRefusal(t, c.do(document(sent).as(func(r *request) { r.contentType = "text/plain" })), http.StatusConflict, "key-reused")
		for _, same := range []string{sent, `{"b":[{"d":null,"c":"\u00e9"}],"a":9007199254740993}`, "\n{ \"b\" : [ { \"c\" : \"é\", \"d\" : null } ], \"a\" : 9007199254740993 }\n"} {
			wantReplay(t, a, c.do(document(same)))
		}
		up.want("document", 1)
		if got := up.of("document")[0].body; got != sent {
			t.Errorf("the upstream got %s", got)
		}
	})
}

// Each option takes its part of a request out of what a key stands for, or into it.
func TestFingerprintOptions(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "",
		to(up).with("fingerprint", "json {\ninclude_header X-Tenant x-region\nignore_query\nignore /sent_at\nignore /items/0/nonce\n}"),
		to(up).with("fingerprint", "raw {\nignore_host\n}"))
	c := g.clientOf(0)
	base := post("options").tell("X-Tenant", "a").as(func(r *request) { r.body = `{"items":[{"nonce":1,"n":1}],"sent_at":1}` })
	a := c.do(base)
	wantExecuted(t, a)
	for name, same := range map[string]request{
		"query":        base.as(func(r *request) { r.path = "/pay?at=2" }),
		"members":      base.as(func(r *request) { r.body = `{"sent_at":"later","items":[{"n":1,"nonce":[2]}]}` }),
		"no member":    base.as(func(r *request) { r.body = `{"items":[{"n":1}]}` }),
		"other header": base.tell("X-Trace", "b"),
	} {
		if again := c.do(same); !again.replayed() {
			t.Errorf("another %s: want a replay, got %d %s", name, again.status, again.body)
		}
	}
	for name, other := range map[string]request{
		"header":            base.as(func(r *request) { r.headers.Set("X-Tenant", "b") }),
		"header twice":      base.tell("X-Tenant", "a"),
		"header besides":    base.tell("X-Region", ""),
		"header left out":   base.as(func(r *request) { r.headers.Del("X-Tenant") }),
		"host":              base.as(func(r *request) { r.host = "other.example" }),
		"element":           base.as(func(r *request) { r.body = `{"items":[{"n":1},{"nonce":1}]}` }),
		"member deeper":     base.as(func(r *request) { r.body = `{"items":[{"n":1,"sent_at":1}]}` }),
		"member left twice": base.as(func(r *request) { r.body = `{"items":[{"n":1}],"sent_at":1,"sent_at":2}` }),
	} {
		if a := c.do(other); a.code() != "key-reused" {
			t.Errorf("another %s: want a refusal, got %d %s", name, a.status, a.body)
		}
	}
	up.want("options", 1)

	c = g.clientOf(1)
	a = c.do(post("host"))
	wantExecuted(t, a)
	wantReplay(t, a, c.do(post("host").as(func(r *request) { r.host = "other.example" })))
	wantRefusal(t, c.do(post("host").as(func(r *request) { r.body = `{ "amount":1}` })), http.StatusConflict, "key-reused")
	up.want("host", 1)
}

// FP-10: jobs are compared as they were when they were made. A change of the
// configuration neither refuses their repetitions nor answers other requests.
func TestFP10ReloadWithOtherOptionsKeepsJobs(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	before := startGateway(t, to(up).on(redis.store())).client()
	now := startGateway(t, to(up).on(redis.store()).with("fingerprint", "json {\nignore_query\ninclude_header Up-Case\n}")).client()
	spaced := func(r *request) { r.body = `{ "amount": 1 }` }
	for key, order := range map[string][2]*client{"upgraded": {before, now}, "downgraded": {now, before}} {
		a := order[0].do(post(key))
		wantExecuted(t, a)
		for _, c := range order {
			wantReplay(t, a, c.do(post(key)))
			wantRefusal(t, c.do(post(key).as(func(r *request) { r.body = `{"amount":2}` })), http.StatusConflict, "key-reused")
			if other := c.do(post(key).as(spaced)); (key == "upgraded") != (other.code() == "key-reused") || (key == "downgraded") != other.replayed() {
				t.Errorf("%s: other white space: got %d %s", key, other.status, other.body)
			}
		}
		up.want(key, 1)
	}
}
