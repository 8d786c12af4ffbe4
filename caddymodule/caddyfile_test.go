package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Each file has a Caddyfile, a line of hyphens, and the JSON that it stands for.
func TestAdapt(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://localhost:6379")
	t.Setenv("STATE_DIR", t.TempDir())
	for i, name := range []string{"IDEMPOTENCY_KEY", "IDEMPOTENCY_OLD_KEY", "IDEMPOTENCY_DIGEST_SECRET", "REDIS_PASSWORD", "SENTINEL_PASSWORD"} {
		t.Setenv(name, strings.Repeat(fmt.Sprintf("%02x", i), 32))
	}
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			config, want, found := strings.Cut(readFile(t, file), "\n----------\n")
			if !found {
				t.Fatal("there is no line of hyphens")
			}
			adapted, err := adapt(config)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, adapted, "", "\t"); err != nil {
				t.Fatal(err)
			}
			if got.String() != strings.TrimSpace(want) {
				t.Errorf("adapted to\n%s\nwant\n%s", got.String(), want)
			}
			if err := validateJSON(adapted); err != nil {
				t.Errorf("not valid: %v", err)
			}
		})
	}
}

// What is wrong is told with the line it is in, the option, and what to do.
func TestMOD10WrongOptionsAreRefusedWithLineAndRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []wrongOptions{
		{"no owner", "wait 5s", "idempotency {", []string{"owner: not given", "`owner shared`", "{http.auth.user.id}"}},
		{"no options", "", "idempotency {", []string{"owner: not given"}},
		{"literal owner", "wait 5s\nowner alice", "owner alice", []string{`owner "alice"`, "`owner shared`"}},
		{"owner with escaped braces", `owner \{alice\}`, "owner", []string{"`owner shared`"}},
		{"owner of the process", "owner {env.USER}", "owner", []string{"same for all callers", "`owner shared`"}},
		{"owner without a gap", "owner {http.vars.tenant}{http.auth.user.id}", "owner", []string{"two callers could be one owner", "between them"}},
		{"owner with a digit as the gap", "owner {http.vars.tenant}0{http.auth.user.id}", "owner", []string{"two callers could be one owner"}},
		{"owner of two words", "owner shared alice", "owner", []string{"owner shared alice", "write `owner {http.auth.user.id}`"}},
		{"empty owner", `owner ""`, "owner", []string{"empty", "`owner shared`"}},
		{"owner without a word", "owner", "owner", []string{"`owner shared`"}},

		{"unknown option", "owner shared\nleese 5s", "leese", []string{"leese: there is no such option", "lease", "max_request_body"}},
		{"unknown store", "owner shared\nstore mongodb localhost", "store", []string{"store mongodb", "`store redis <url>`", "`store bolt [<path>]`"}},
		{"no store", "store\nowner shared", "store", []string{"`store redis <url>`"}},
		{"two stores", "owner shared\nstore bolt\nspace x\nstore redis redis://h", "store redis", []string{"store: given twice", "keep one"}},
		{"redis without a URL", "owner shared\nstore redis", "store redis", []string{"store redis redis://host:6379"}},
		{"redis with two", "owner shared\nstore redis redis://a redis://b", "store redis", []string{"nothing else"}},
		{"redis with another option", "owner shared\nstore redis redis://a {\n\tdb 1\n}", "db 1", []string{"db: there is no such option of store redis", "database"}},
		{"redis with another scheme", "owner shared\nstore redis http://a", "store redis", []string{"redis://", "rediss://"}},
		{"redis with a bad database", "owner shared\nstore redis redis://a/b/c", "store redis", []string{"redis://user:password@host:6379/0"}},
		{"bolt with two", "owner shared\nstore bolt a b", "store bolt", []string{"`store bolt`"}},
		{"bolt with nothing", "owner shared\nstore bolt \"\"", "store bolt", []string{"leave it out"}},
		{"bolt with a block", "owner shared\nstore bolt {\n\tsync off\n}", "sync", []string{"remove the block"}},

		{"zero wait", "owner shared\nwait 0s", "wait", []string{"wait 0s", "at least 1ms", "leave the option out"}},
		{"negative timeout", "owner shared\ntimeout -1s", "timeout", []string{"timeout -1s", "at least 1ms"}},
		{"negative linger", "owner shared\nlinger -1s", "linger", []string{"linger -1s", "at least 1ms"}},
		{"zero lease", "lease 0\nowner shared", "lease", []string{"lease 0", "at least 1ms"}},
		{"negative lease", "lease -1s\nowner shared", "lease", []string{"lease -1s", "at least 1ms"}},
		{"zero stream_idle", "owner shared\nstream_idle 0s", "stream_idle", []string{"stream_idle 0s", "at least 1ms"}},
		{"stream_idle that is no duration", "owner shared\nstream_idle never", "stream_idle", []string{"stream_idle never: not a duration", "30s"}},
		{"zero retention", "owner shared\nretention 0d", "retention", []string{"retention 0d", "at least 1ms"}},
		{"no duration", "owner shared\nwait soon", "wait", []string{"wait soon: not a duration", "30s"}},
		{"a number alone", "owner shared\nwait 5", "wait", []string{"wait 5: not a duration", "30s"}},
		{"two durations", "owner shared\nwait 5s 6s", "wait", []string{"wait 5s 6s", "`wait <duration>`"}},
		{"missing duration", "owner shared\nwait\nspace a", "wait", []string{"`wait <duration>`"}},
		{"wait given twice", "owner shared\nwait 5s\nspace a\nwait 6s", "wait 6s", []string{"wait: given twice", "keep one"}},

		{"short retention", "owner shared\nretention 11m\nspace a", "retention", []string{"retention 11m0s", "timeout + linger (11m0s)", "raise retention or lower linger"}},
		{"long linger", "owner shared\nspace a\nlinger 24h", "linger", []string{"retention 24h0m0s", "raise retention or lower linger"}},
		{"long timeout", "owner shared\nspace a\ntimeout 24h", "timeout", []string{"retention 24h0m0s", "raise retention or lower linger"}},

		{"reserved space", "owner shared\nspace _internal\nwait 1s", "space", []string{`space "_internal"`, "reserved", "choose another"}},
		{"space with a placeholder", "owner shared\nspace {host}", "space", []string{"not replaced", "fixed name"}},
		{"space without a name", "owner shared\nspace", "space", []string{"`space <name>`"}},

		{"key without anything", "owner shared\nkey", "key", []string{"`key [<header>] [required|optional]`"}},
		{"key with another word", "owner shared\nkey X-Key always", "key", []string{"key X-Key always", "required or optional"}},
		{"key in the wrong order", "owner shared\nkey required X-Key", "key", []string{"required or optional"}},
		{"key that is no header", "owner shared\nkey X:Key", "key", []string{`key "X:Key"`}},
		{"key with three words", "owner shared\nkey X-Key required optional", "key", []string{"`key [<header>] [required|optional]`"}},

		{"key format without a word", "owner shared\nkey_format", "key_format", []string{"`key_format any|uuid`"}},
		{"another key format", "owner shared\nkey_format ulid", "key_format", []string{"key_format ulid: must be any or uuid"}},
		{"two key formats", "owner shared\nkey_format any uuid", "key_format", []string{"`key_format any|uuid`"}},

		{"fingerprint without a word", "owner shared\nfingerprint\nspace a", "fingerprint", []string{"`fingerprint raw|json`"}},
		{"another fingerprint", "owner shared\nfingerprint xml", "fingerprint", []string{"fingerprint xml: must be raw", "or json"}},
		{"two fingerprints", "owner shared\nfingerprint raw json", "fingerprint", []string{"`fingerprint raw|json`"}},
		{"fingerprint given twice", "owner shared\nfingerprint raw\nspace a\nfingerprint json {\n}", "fingerprint json", []string{"fingerprint: given twice"}},
		{"fingerprint with another option", "owner shared\nfingerprint json {\nexclude /a\n}", "exclude", []string{"exclude: there is no such option of fingerprint", "ignore_host"}},
		{"no included header", "owner shared\nfingerprint raw {\ninclude_header\n}", "include_header", []string{"`include_header <name...>`"}},
		{"included header of no name", "owner shared\nfingerprint raw {\ninclude_header X-A X:Y\n}", "include_header", []string{"include_header X:Y: not the name"}},
		{"included header given twice", "owner shared\nfingerprint raw {\ninclude_header X-A\nignore_query\ninclude_header x-a\n}", "include_header x-a", []string{"given twice"}},
		{"included host", "owner shared\nfingerprint raw {\ninclude_header host\n}", "include_header", []string{"include_header host: part of every fingerprint already", "remove it"}},
		{"included media type", "owner shared\nfingerprint raw {\ninclude_header Content-Type\n}", "include_header", []string{"part of every fingerprint already"}},
		{"included header of the connection", "owner shared\nfingerprint raw {\ninclude_header Transfer-Encoding\n}", "include_header", []string{"about the connection"}},
		{"included key", "owner shared\nkey X-Request\nfingerprint raw {\nignore_query\ninclude_header X-A x-request\n}\nspace a", "include_header", []string{"include_header X-Request: the key itself", "remove it"}},
		{"included header of ours", "owner shared\nfingerprint raw {\ninclude_header idempotency-attempt\n}", "include_header", []string{"the gateway's own"}},
		{"ignored query with an argument", "owner shared\nfingerprint raw {\nignore_query yes\n}", "ignore_query", []string{"ignore_query yes: takes no arguments"}},
		{"ignored host given twice", "owner shared\nfingerprint raw {\nignore_host\nignore_query\nignore_host\n}", "ignore_host\n}", []string{"ignore_host: given twice"}},
		{"ignored in raw bodies", "owner shared\nfingerprint raw {\nignore /a\n}", "ignore", []string{"ignore /a: nothing can be left out", "`fingerprint json`"}},
		{"nothing ignored", "owner shared\nfingerprint json {\nignore\n}", "ignore", []string{"`ignore <pointer...>`"}},
		{"everything ignored", "owner shared\nfingerprint json {\nignore \"\"\n}", "ignore", []string{"the whole document", "name a member"}},
		{"ignored by a path", "owner shared\nfingerprint json {\nignore /a meta.sent\n}", "ignore", []string{"ignore meta.sent: a JSON pointer begins with a /; write `ignore /meta/sent`"}},
		{"ignored with a wrong escape", "owner shared\nfingerprint json {\nignore /a~2\n}", "ignore", []string{"a ~ is written ~0"}},
		{"ignored with a cut escape", "owner shared\nfingerprint json {\nignore /a~\n}", "ignore", []string{"a ~ is written ~0"}},
		{"ignored given twice", "owner shared\nfingerprint json {\nignore /a /b /a\n}", "ignore", []string{"ignore /a: given twice"}},

		{"no header to send a key in", "owner shared\nsend_key", "send_key", []string{"`send_key <header>`"}},
		{"key sent in no header", "owner shared\nsend_key X:Y", "send_key", []string{"send_key X:Y: not the name"}},
		{"key sent in a header of ours", "owner shared\nsend_key idempotency-job", "send_key", []string{"the gateway's own", "your provider"}},
		{"key sent in the framing", "owner shared\nsend_key Content-Length", "send_key", []string{"would break the request"}},
		{"key sent twice", "owner shared\nsend_key X-A\nspace a\nsend_key X-B", "send_key X-B", []string{"send_key: given twice"}},

		{"no kept header", "owner shared\nkeep_header", "keep_header", []string{"`keep_header <name...>`"}},
		{"kept header of no name", "owner shared\nkeep_header X:Y", "keep_header", []string{"keep_header X:Y: not the name"}},
		{"kept header of ours", "owner shared\nkeep_header idempotent-replayed", "keep_header", []string{"the gateway's own"}},
		{"kept header of the connection", "owner shared\nkeep_header Set-Cookie transfer-encoding", "keep_header", []string{"keep_header transfer-encoding: about the connection"}},
		{"header that is kept anyway", "owner shared\nkeep_header Etag", "keep_header", []string{"keep_header Etag: kept anyway", "Set-Cookie"}},
		{"kept header given twice", "owner shared\nkeep_header Age\nspace a\nkeep_header age", "keep_header age", []string{"given twice"}},

		{"check without a block", "owner shared\nreplay_check", "replay_check", []string{"nothing is checked", "forward_auth"}},
		{"check of nothing", "owner shared\nreplay_check {\n}", "replay_check", []string{"nothing is checked"}},
		{"check with an argument", "owner shared\nreplay_check /a {\nrespond 403\n}", "replay_check", []string{"replay_check /a: write `replay_check {"}},
		{"check given twice", "owner shared\nreplay_check {\nrespond 403\n}\nspace a\nreplay_check {\nabort\n}", "replay_check {\nabort", []string{"replay_check: given twice"}},
		{"check by no directive", "owner shared\nreplay_check {\nforward_out x\n}\nspace a", "}\nspace", []string{"replay_check: unrecognized directive: forward_out"}},

		{"no method", "owner shared\nmethods", "methods", []string{"`methods <method...>`"}},
		{"method given twice", "owner shared\nmethods POST put post", "methods", []string{"methods POST: given twice", "keep one"}},
		{"method that can't be", "owner shared\nmethods CONNECT", "methods", []string{"CONNECT"}},

		{"zero body", "owner shared\nmax_request_body 0", "max_request_body", []string{"max_request_body 0", "at least 1"}},
		{"negative body", "owner shared\nmax_request_body -1", "max_request_body", []string{"not a size", "32MiB"}},
		{"no size", "owner shared\nmax_response_body big", "max_response_body", []string{"not a size", "32MiB"}},
		{"too large a size", "owner shared\nmax_response_body 10EiB", "max_response_body", []string{"not a size"}},
		{"size in two words", "owner shared\nmax_response_body 1 MiB", "max_response_body", []string{"`max_response_body <size>`"}},

		{"zero buffer", "owner shared\nbuffer 0", "buffer", []string{"buffer 0", "at least 1"}},
		{"buffer that is no size", "owner shared\nbuffer all", "buffer", []string{"buffer all: not a size", "32MiB"}},
		{"buffer larger than what is taken", "owner shared\nmax_request_body 1MiB\nbuffer 2MiB", "buffer", []string{"buffer 2097152", "max_request_body (1048576)", "lower buffer or raise max_request_body"}},
		{"buffer too large", "owner shared\nmax_request_body 2PB\nbuffer 2PB", "max_request_body", []string{"max_request_body 2000000000000000"}},
		{"cache of no size", "owner shared\ncache much", "cache", []string{"not a size", "16MiB, or off"}},
		{"cache of nothing", "owner shared\ncache 0", "cache", []string{"or off"}},
		{"cache for no time", "owner shared\ncache 1MiB 0s", "cache", []string{"at least 1ms", "10s"}},
		{"cache off for a time", "owner shared\ncache off 10s", "cache", []string{"not a size"}},
		{"zero waiters", "owner shared\nwaiters 0", "waiters", []string{"0 is not a positive number"}},
		{"negative waiters", "owner shared\nwaiters 5 -1", "waiters", []string{"-1 is not a positive number"}},
		{"fewer waiters in all", "owner shared\nwaiters 50 10", "waiters", []string{"fewer in all", "raise the second number"}},
		{"three waiters", "owner shared\nwaiters 1 2 3", "waiters", []string{"`waiters <per job> [<in all>]`"}},

		{"outcome without a word", "owner shared\noutcome 503", "outcome", []string{"`outcome <status...> final|failed|unknown`"}},
		{"outcome with another word", "owner shared\noutcome 503 maybe", "outcome", []string{"final, failed or unknown"}},
		{"outcome of no status", "owner shared\noutcome 5xx failed", "outcome", []string{"5xx", "200 to 599"}},
		{"outcome of an informational status", "owner shared\noutcome 103 failed", "outcome", []string{"103", "200 to 599"}},
		{"outcome given twice", "owner shared\noutcome 500 503 failed\noutcome 502 503 final", "outcome 502", []string{"503 has an outcome already", "once"}},

		{"other statuses", "owner shared\nstatuses strict", "statuses", []string{"conflict (409", "ietf (422)"}},
		{"two statuses", "owner shared\nstatuses ietf conflict", "statuses", []string{"`statuses conflict|ietf`"}},

		{"label without anything", "owner shared\nlabel", "label", []string{"`label <placeholder>`"}},
		{"label with the key", "owner shared\nlabel {http.request.header.Idempotency-Key}", "label", []string{"label {http.request.header.Idempotency-Key}", "choose another placeholder"}},
		{"label with a key of another name", "owner shared\nkey x-key\nlabel \"a {header.X-Key}\"", "label", []string{"choose another placeholder"}},
		{"label with the owner", "owner {header.X-User}\nlabel {header.X-User}", "label", []string{"whose the key is", "choose another placeholder"}},
		{"status path of another site", "owner shared\nstatus_path https://h/jobs", "status_path", []string{"status_path https://h/jobs", "beginning with a /", "`status_path /jobs`"}},
		{"status path of another host", "owner shared\nstatus_path //h/jobs", "status_path", []string{"`status_path /jobs`"}},
		{"status path with a query", "owner shared\nstatus_path /jobs?id=", "status_path", []string{"`status_path /jobs`"}},
		{"status path with a placeholder", "owner shared\nstatus_path /{host}", "status_path", []string{"`status_path /jobs`"}},

		{"reconcile without a block", "owner shared\nreconcile\nspace a", "reconcile", []string{"says not how to ask", "lookup <method> <url>"}},
		{"reconcile with an argument", "owner shared\nreconcile 5s", "reconcile", []string{"reconcile 5s", "into a block"}},
		{"reconcile without a lookup", "owner shared\nreconcile {\nsucceeded 200\n}", "reconcile {", []string{"lookup <method> <url>"}},
		{"reconcile that settles nothing", "owner shared\nreconcile {\nlookup GET /a\n}", "reconcile {", []string{"no answer would settle anything", "succeeded <status...>"}},
		{"reconcile with another option", "owner shared\nreconcile {\nlookup GET /a\nretries 5\n}", "retries", []string{"retries: there is no such option of reconcile", "replay_from"}},
		{"reconcile given twice", "owner shared\nreconcile {\nlookup GET /a\nsucceeded 200\n}\nspace a\nreconcile {\n}", "reconcile {\n}", []string{"reconcile: given twice"}},
		{"lookup without a method", "owner shared\nreconcile {\nlookup /a\n}", "lookup", []string{"`lookup GET <path or url>`"}},
		{"lookup that does something", "owner shared\nreconcile {\nlookup DELETE /a\n}", "lookup", []string{"lookup DELETE", "GET, HEAD or POST"}},
		{"lookup of no path", "owner shared\nreconcile {\nlookup GET charges\n}", "lookup", []string{"lookup GET charges", "write a path such as"}},
		{"lookup with a request's placeholder", "owner shared\nreconcile {\nlookup GET /a?key={http.request.header.Idempotency-Key}\n}", "lookup", []string{"has no value here", "{http.idempotency.key_sent}"}},
		{"durable to no degree", "owner shared\nrequire_durable always", "require_durable", []string{"require_durable always", "`require_durable warning`"}},
		{"durable to several degrees", "owner shared\nrequire_durable danger warning", "require_durable", []string{"`require_durable [danger|warning]`"}},
		{"lookup where the key says", "owner shared\nreconcile {\nlookup GET http://{http.idempotency.key}/\n}", "lookup", []string{"can't stand for where the upstream is"}},
		{"lookup with a password", "owner shared\nreconcile {\nlookup GET http://a:b@h/\n}", "lookup", []string{"give them as a header"}},
		{"lookup given twice", "owner shared\nreconcile {\nlookup GET /a\nevery 1s\nlookup GET /b\n}", "lookup GET /b", []string{"lookup: given twice"}},
		{"header without a value", "owner shared\nreconcile {\nheader Authorization\n}", "header", []string{"`header <name> <value>`"}},
		{"header of no name", "owner shared\nreconcile {\nheader X:Y z\n}", "header", []string{"header X:Y: not the name"}},
		{"header given twice", "owner shared\nreconcile {\nheader X-A a\nheader x-a b\n}", "header x-a", []string{"header x-a: given twice"}},
		{"header with a request's placeholder", "owner shared\nreconcile {\nheader X-A {http.auth.user.id}\n}", "header", []string{"header X-A: {http.auth.user.id} has no value here"}},
		{"header that would encode the result", "owner shared\nreconcile {\nheader Accept-Encoding gzip\n}", "header", []string{"leave it out"}},
		{"header with the key", "owner shared\nreconcile {\nheader X-A a\nheader idempotency-key x\n}", "header idempotency-key", []string{"header Idempotency-Key", "leave the header out"}},
		{"header with the route's key", "owner shared\nreconcile {\nlookup GET /a\nheader x-request x\nheader X-A a\nsucceeded 200\n}\nkey X-Request", "header x-request", []string{"header X-Request", "leave the header out"}},
		{"header with the job as host", "owner shared\nreconcile {\nheader Host {http.idempotency.key}.example\n}", "header Host", []string{"can't stand for where", "in the URL"}},
		{"for that ends too early", "owner shared\nlinger 10m\nreconcile {\nlookup GET /a\nfor 12m\ncancelled 404 after 2m\n}\nspace a", "for 12m", []string{"for 12m", "raise for"}},
		{"long linger", "owner shared\nlinger 20m\nreconcile {\nlookup GET /a\ncancelled 404 after 2m\n}\nspace a", "reconcile {", []string{"for 15m", "raise for"}},
		{"zero every", "owner shared\nreconcile {\nevery 0s\n}", "every", []string{"every 0s", "at least 1ms"}},
		{"short for", "owner shared\nreconcile {\nlookup GET /a\nevery 1m\nfor 1s\nsucceeded 200\n}\nspace a", "for 1s", []string{"for 1s", "must not be shorter than every (1m0s)"}},
		{"long every", "owner shared\nreconcile {\nlookup GET /a\nevery 1h\nsucceeded 200\n}\nspace a", "reconcile {", []string{"must not be shorter than every (1h0m0s)"}},
		{"succeeded without a status", "owner shared\nreconcile {\nsucceeded after 2m\n}", "succeeded", []string{"succeeded after 2m: names no status"}},
		{"cancelled at once", "owner shared\nreconcile {\ncancelled 404\n}", "cancelled", []string{"cancelled 404", "permits another execution", "`cancelled 404 after 2m`"}},
		{"failed at once", "owner shared\nreconcile {\nfailed 404 410\n}", "failed", []string{"`failed 404 410 after 2m`"}},
		{"after nothing", "owner shared\nreconcile {\ncancelled 404 after 0s\n}", "cancelled", []string{"0s is not a duration", "2m"}},
		{"after no duration", "owner shared\nreconcile {\ncancelled 404 after midnight\n}", "cancelled", []string{"midnight is not a duration", "2m"}},
		{"a status of an answer that is none", "owner shared\nreconcile {\nsucceeded 2xx\n}", "succeeded", []string{"2xx", "200 to 599"}},
		{"a status with two meanings", "owner shared\nreconcile {\nsucceeded 200 201\ncancelled 404 201 after 2m\n}", "cancelled", []string{"201 means succeeded already"}},
		{"no pointer", "owner shared\nreconcile {\nreplay_from data.0\n}", "replay_from", []string{"replay_from data.0", "begins with a /"}},
	} {
		t.Run(c.name, c.refused)
	}
}

func TestMOD10ArgumentsOfTheDirectiveAreRefused(t *testing.T) {
	t.Parallel()
	_, err := adaptAsIs(":80 {\n\tidempotency max_request_body 1MB\n}\n")
	if err == nil || !strings.Contains(err.Error(), "takes no arguments but a matcher") || !strings.Contains(err.Error(), "Caddyfile:2") {
		t.Errorf("got %v", err)
	}
}

// A configuration in JSON has no lines, but is refused for the same reasons.
func TestMOD10WrongJSONIsRefusedWithRemedy(t *testing.T) {
	for name, c := range map[string]struct{ handler, want string }{
		"no owner":         {`{}`, "`owner shared`"},
		"literal owner":    {`{"owner": "alice"}`, "`owner shared`"},
		"negative wait":    {`{"owner": "shared", "wait": "-1s"}`, "wait -1s"},
		"negative buffer":  {`{"owner": "shared", "buffer": -1}`, "buffer -1"},
		"negative idle":    {`{"owner": "shared", "stream_idle": "-1s"}`, "stream_idle -1s"},
		"large buffer":     {`{"owner": "shared", "max_request_body": 10, "buffer": 11}`, "lower buffer or raise max_request_body"},
		"negative body":    {`{"owner": "shared", "max_request_body": -1}`, "max_request_body -1"},
		"reserved space":   {`{"owner": "shared", "space": "_x"}`, "choose another"},
		"short retention":  {`{"owner": "shared", "retention": "1m"}`, "raise retention or lower linger"},
		"unknown outcome":  {`{"owner": "shared", "outcomes": {"503": "maybe"}}`, "must be final, failed or unknown"},
		"unknown status":   {`{"owner": "shared", "outcomes": {"99": "final"}}`, "outcome 99"},
		"lower-case":       {`{"owner": "shared", "methods": ["post"]}`, "write POST"},
		"unknown option":   {`{"owner": "shared", "leese": "5s"}`, "leese"},
		"unknown store":    {`{"owner": "shared", "store": {"module": "mongodb"}}`, "mongodb"},
		"redis without":    {`{"owner": "shared", "store": {"module": "redis"}}`, "store redis"},
		"store by no name": {`{"owner": "shared", "store": {"path": "x"}}`, "module"},
		"owner as a label": {`{"owner": "{http.vars.u}", "label": "of {http.vars.u}"}`, "choose another placeholder"},
		"status path":      {`{"owner": "shared", "status_path": "jobs"}`, "`status_path /jobs`"},
		"durable":          {`{"owner": "shared", "require_durable": "note"}`, "require_durable note: must be danger or warning"},
		"key format":       {`{"owner": "shared", "key_format": "ulid"}`, "must be any or uuid"},
		"fingerprint":      {`{"owner": "shared", "fingerprint": {"body": "xml"}}`, "must be raw or json"},
		"ignored in raw":   {`{"owner": "shared", "fingerprint": {"ignore": ["/a"]}}`, "write `fingerprint json`"},
		"all ignored":      {`{"owner": "shared", "fingerprint": {"body": "json", "ignore": [""]}}`, "the whole document"},
		"included key":     {`{"owner": "shared", "fingerprint": {"include_header": ["idempotency-key"]}}`, "the key itself"},
		"key sent":         {`{"owner": "shared", "send_key": "Host"}`, "would break the request"},
		"kept header":      {`{"owner": "shared", "keep_headers": ["Etag"]}`, "kept anyway"},
		"empty check":      {`{"owner": "shared", "replay_check": []}`, "replay_check: has no routes"},
		"no lookup":        {`{"owner": "shared", "reconcile": {"answers": [{"as": "succeeded", "statuses": [200]}]}}`, "lookup <method> <url>"},
		"no answers":       {`{"owner": "shared", "reconcile": {"lookup": {"url": "/a"}}}`, "no answer would settle anything"},
		"answer of no use": {`{"owner": "shared", "reconcile": {"lookup": {"url": "/a"}, "answers": [{"as": "cancelled", "statuses": []}]}}`, "names no status"},
		"answer unknown":   {`{"owner": "shared", "reconcile": {"lookup": {"url": "/a"}, "answers": [{"as": "unknown", "statuses": [200]}]}}`, "succeeded, failed or cancelled"},
		"cancelled":        {`{"owner": "shared", "reconcile": {"lookup": {"url": "/a"}, "answers": [{"as": "cancelled", "statuses": [404]}]}}`, "cancelled 404 after 2m"},
		"lookup":           {`{"owner": "shared", "reconcile": {"lookup": {"method": "PUT", "url": "/a"}, "answers": [{"as": "succeeded", "statuses": [200]}]}}`, "GET, HEAD or POST"},
		"headers":          {`{"owner": "shared", "reconcile": {"lookup": {"url": "/a", "header": {"A": "x", "a": "y"}}, "answers": [{"as": "succeeded", "statuses": [200]}]}}`, "given twice"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := strings.Replace(c.handler, "{", `{"handler": "idempotency", `, 1)
			handler = strings.Replace(handler, ", }", "}", 1)
			err := validateJSON(fmt.Appendf(nil, `{"admin": {"disabled": true}, "apps": {"http": {"servers": {"s": {"routes": [{"handle": [%s]}]}}}}}`, handler))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestMOD06DirectiveHasAPlaceOfItsOwn(t *testing.T) {
	t.Parallel()
	adapted, err := adapt(":9080 {\n" +
		"\treverse_proxy :9081\n" +
		"\tidempotency {\n\t\towner {http.auth.user.id}\n\t}\n" +
		"\thandle /x {\n\t\trespond x\n\t}\n" +
		"\ttemplates\n" +
		"\tintercept {\n\t\treplace_status 200\n\t}\n" +
		"\tencode gzip\n" +
		"\trequest_header -X-A\n" +
		"\tbasic_auth {\n\t\ta $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n\t}\n" +
		"}\n")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, part := range strings.Split(string(adapted), `"handler":"`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		order = append(order, name)
	}
	got := strings.Join(order, " ")
	if got != "authentication headers encode idempotency intercept templates subroute static_response reverse_proxy" {
		t.Errorf("the handlers are in the order %s", got)
	}
}

// What a header of a lookup was given may be a secret.
func TestErrorsDoNotShowTheValuesOfHeaders(t *testing.T) {
	t.Parallel()
	for _, header := range []string{
		"Authorization Bearer very-secret", "Accept-Encoding very-secret", "X:Y very-secret", "X-A very-secret{", "X-A very-secret{http.vars.x}",
		"X-A a\nheader X-A very-secret",
	} {
		_, err := adaptAsIs(":80 {\n\tidempotency {\nowner shared\nreconcile {\nheader " + header + "\n}\n\t}\n}\n")
		if err == nil || strings.Contains(err.Error(), "very-secret") {
			t.Errorf("%s: %v", header, err)
		}
	}
}
