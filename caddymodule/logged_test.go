package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/logged"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

func init() {
	caddy.RegisterModule(logOutput{})
	caddy.RegisterModule(new(stubborn))
}

// caddyLog is what Caddy has logged for this module.
var caddyLog logged.Recorder

// logOutput is where Caddy's log goes in tests.
type logOutput struct{}

func (logOutput) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.idempotency_test", New: func() caddy.Module { return new(logOutput) }}
}

func (logOutput) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { d.Next(); return nil }
func (logOutput) String() string                                  { return "test" }
func (logOutput) WriterKey() string                               { return "test" }
func (logOutput) OpenWriter() (io.WriteCloser, error)             { return logOutput{}, nil }
func (logOutput) Close() error                                    { return nil }

// Write takes one line.
func (logOutput) Write(line []byte) (int, error) {
	var all map[string]any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		panic(fmt.Sprintf("%v: %s", err, line))
	}
	logger, _ := all["logger"].(string)
	if !strings.Contains(logger, "idempotency") || strings.HasPrefix(logger, "http.log.") {
		return len(line), nil // Caddy's own
	}
	l := logged.Line{Text: all["msg"].(string), Fields: make(map[string]string), Logger: logger}
	if err := l.Level.UnmarshalText([]byte(all["level"].(string))); err != nil {
		panic(err)
	}
	for name, value := range all {
		if !slices.Contains([]string{"level", "ts", "logger", "msg"}, name) {
			l.Fields[name] = fmt.Sprint(value)
		}
	}
	caddyLog.Add(l)
	return len(line), nil
}

// stubborn is a store that can't be closed properly.
type stubborn struct{ forgetful }

func (*stubborn) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.idempotency.stores.idempotency_test_stubborn", New: func() caddy.Module { return new(stubborn) }}
}

func (s *stubborn) Open(*slog.Logger) (keystore.Store, error) { return s, nil }
func (*stubborn) Close() error                                { return errors.New("it is stubborn") }

var (
	readPage sync.Once
	listed   logged.Vocabulary
)

// documented is what may be logged.
func documented(t testing.TB) logged.Vocabulary {
	readPage.Do(func() { listed = logged.Documented(t, "..") })
	return listed
}

// occurrences are what this package logs, and how it comes about. Each runs in a Caddy
// with a site that protects the upstream, unless it loads another one.
var occurrences = []struct {
	logged.Want
	happen func(t *testing.T, u *upstream)
}{
	{
		logged.Want{Line: "requests are protected", Fields: []string{
			"methods=POST", "key_header=Idempotency-Key", "without_key=are refused", "space=money", "store=bolt", "replay_check=false", "providers=0",
		}},
		func(t *testing.T, u *upstream) {
			load(t, site(t, protect(u, "owner shared\nspace money\nmethods POST\nkey Idempotency-Key required")))
		},
	},
	{
		logged.Want{
			Line:   "servers drop request headers with such a name unless they are told to expect it; no key may ever arrive",
			Fields: []string{"key=My_key"},
		},
		func(t *testing.T, u *upstream) { load(t, site(t, protect(u, "owner shared\nkey My_Key"))) },
	},
	{
		logged.Want{
			Line:   "clients renew such a header between repetitions, which are then refused as other requests; who the caller is belongs into owner",
			Fields: []string{"fingerprint=include_header Cookie"},
		},
		func(t *testing.T, u *upstream) {
			load(t, site(t, protect(u, "owner shared\nfingerprint raw {\ninclude_header Cookie\n}")))
		},
	},
	{
		logged.Want{
			Line:   "clients send another value of such a header with each repetition, or with another version; repetitions are then refused as other requests",
			Fields: []string{"fingerprint=include_header Date"},
		},
		func(t *testing.T, u *upstream) {
			load(t, site(t, protect(u, "owner shared\nfingerprint raw {\ninclude_header Date\n}")))
		},
	},
	{
		logged.Want{
			Line: "answers and keys are encrypted, but what is kept of owners, keys and requests are plain digests, with which guesses can be compared; " +
				"add digest_secret, best before there are any jobs: with it every key is new",
			Fields: []string{"space=main"},
		},
		func(t *testing.T, u *upstream) {
			t.Setenv("ONE", secretOne)
			load(t, site(t, protect(u, "owner shared\nencrypt_with k1 {env.ONE}")))
		},
	},
	{
		logged.Want{
			Line: "a key is unique only for its owner, and the lookup does not name the job: if two owners use the same key, the answer about one's job could settle the other's; " +
				"ask by {http.idempotency.job}, which the upstream gets as Idempotency-Job, or make sure that keys are unique among all owners",
			Fields: []string{"lookup=/charges?key={http.idempotency.key}"},
		},
		func(t *testing.T, u *upstream) {
			load(t, site(t, protect(u, "owner {http.request.header.X-User}\nreconcile {\nlookup GET /charges?key={http.idempotency.key}\nsucceeded 200\n}")))
		},
	},
	{
		logged.Want{Line: "a request was refused", Level: "warn", Fields: []string{"code=too-many-waiters", "job"}},
		func(t *testing.T, u *upstream) {
			load(t, site(t, protect(u, "owner {http.request.header.X-User}\nwaiters 1 1\nwait 1m")))
			answers := make(chan answer, 2)
			for range cap(answers) {
				go func() { answers <- insist(t, "/hold", "very-secret", "X-User", "alice") }()
			}
			<-u.entered
			eventually(t, "one waits", func() bool { return series(t)[`caddy_idempotency_waiters{store="bolt"}`] == 1 })
			if a := post(t, "/hold", "very-secret", "X-User", "alice"); a.code() != proxy.CodeTooManyWaiters {
				t.Errorf("got %+v", a)
			}
			close(u.release)
			<-answers
			<-answers
		},
	},
	{
		logged.Want{Line: "a request was refused", Level: "error", Fields: []string{"code=store-unavailable", "job=", "error~not a directory"}},
		func(t *testing.T, u *upstream) { withoutStore(t, protect(u, "owner shared\nstore bolt {file}")) },
	},
	{
		logged.Want{Line: "the store can't be opened", Fields: []string{"error~not a directory"}},
		func(t *testing.T, u *upstream) { withoutStore(t, protect(u, "owner shared\nstore bolt {file}")) },
	},
	{
		logged.Want{Line: "the state of a job could not be read", Fields: []string{"error"}},
		func(t *testing.T, u *upstream) {
			server := fakeRedis(t)
			load(t, site(t, "handle_path /jobs/* {\nidempotency_status {\nowner shared\nstore redis redis://"+server.Addr()+"\n}\n}\nhandle {\n"+
				protect(u, "owner shared\nstore redis redis://"+server.Addr())+"\n}"))
			id := post(t, "/pay", "very-secret").header.Get("Idempotency-Job")
			server.Close()
			if a := get(t, "GET", "/jobs/"+id, ""); a.status != http.StatusServiceUnavailable {
				t.Errorf("got %+v", a)
			}
		},
	},
	{
		logged.Want{Line: "a call of the admin API was refused", Fields: []string{"code=unauthorized", "method=POST", "remote~127.0.0.1"}},
		func(t *testing.T, u *upstream) {
			config, admin := adminSite(t, "idempotency {\nadmin_token very-secret\n}", protect(u, "owner shared"))
			load(t, config)
			if a := ask(t, admin, "POST", "find", `{"owner":"alice","key":"very-secret"}`, "Authorization", "Bearer secretive"); a.code() != codeUnauthorized {
				t.Errorf("got %+v", a)
			}
		},
	},
	{
		logged.Want{Line: "the store does not answer; requests with a key are refused until it does", Fields: []string{"store=mute_test", "error~unavailable"}},
		func(t *testing.T, _ *upstream) { downAndUp(t) },
	},
	{
		logged.Want{Line: "the store answers again", Fields: []string{"store=mute_test"}},
		func(t *testing.T, _ *upstream) { downAndUp(t) },
	},
	{
		logged.Want{Line: "redis client", Fields: []string{"message"}},
		func(t *testing.T, u *upstream) {
			load(t, strings.Replace(site(t, protect(u, "owner shared")), "format json", "format json\nlevel DEBUG", 1))
			client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "primary", SentinelAddrs: []string{"127.0.0.1:1"}, MaxRetries: -1, DialerRetries: 1})
			defer client.Close()
			if err := client.Ping(t.Context()).Err(); err == nil {
				t.Error("it answers")
			}
		},
	},
	{
		logged.Want{Line: "a store could not be closed properly", Fields: []string{"error=close idempotency_test_stubborn store: it is stubborn"}},
		func(t *testing.T, u *upstream) {
			load(t, site(t, protect(u, "owner shared\nstore idempotency_test_stubborn")))
			stop(t)
		},
	},
	{
		logged.Want{Line: "a store can't be inspected", Fields: []string{"store=odd", "error=down"}},
		func(*testing.T, *upstream) { inspectedOdd().learn(keystore.Inspection{}, errors.New("down")) },
	},
	{
		logged.Want{Line: "a store can be inspected again", Fields: []string{"store=odd"}},
		func(*testing.T, *upstream) {
			i := inspectedOdd()
			i.learn(keystore.Inspection{}, errors.New("down"))
			i.learn(keystore.Inspection{}, nil)
		},
	},
	{
		logged.Want{Line: "the store was inspected: …", Level: "warn", Fields: []string{"store=odd", "code=x", "severity=warning", "server=a:1", "risk=lost", "remedy=set it"}},
		func(*testing.T, *upstream) {
			inspectedOdd().learn(keystore.Inspection{Findings: []keystore.Finding{oddFinding}}, nil)
		},
	},
	{
		logged.Want{Line: "the store was inspected: no longer so: …", Fields: []string{"store=odd", "code=x", "server=a:1"}},
		func(*testing.T, *upstream) {
			i := inspectedOdd()
			i.learn(keystore.Inspection{Findings: []keystore.Finding{oddFinding}}, nil)
			i.learn(keystore.Inspection{}, nil)
		},
	},
	{
		logged.Want{Line: "an event could not be told to its subscribers; what happened stands in the job all the same", Fields: []string{"event=idempotency_resolved", "job=j", "error=nobody is there"}},
		func(*testing.T, *upstream) {
			q := &eventQueue{limit: 1, dropped: func() {}, emit: func(event) error { return errors.New("nobody is there") }}
			q.put(proxy.Event{Name: proxy.EventResolved, Job: &keystore.Job{ID: "j"}})
		},
	},
	{
		logged.Want{Line: "events are dropped, since their subscribers don't keep up; what happened stands in the jobs all the same", Fields: []string{"waiting=0"}},
		func(*testing.T, *upstream) {
			q := &eventQueue{limit: 0, dropped: func() {}}
			q.put(proxy.Event{Name: proxy.EventResolved, Job: &keystore.Job{ID: "j"}})
		},
	},
}

// withoutStore sends a request through a site whose store can't be opened.
func withoutStore(t *testing.T, block string) {
	t.Helper()
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := adapt(site(t, strings.Replace(block, "{file}", file+"/jobs.db", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if a := serveProvisioned(t, config)("very-secret"); a.code() != proxy.CodeStoreUnavailable {
		t.Errorf("got %+v", a)
	}
}

// downAndUp has a store that does not answer and then does.
func downAndUp(t *testing.T) {
	t.Helper()
	m := measured(unopened{errors.New("down")}, "mute_test", slog.New(currentLog{}))
	if _, err := m.Get(t.Context(), keystore.Name{}); err == nil {
		t.Error("it answers")
	}
	m.note("get", m.get, time.Now(), nil)
}

func inspectedOdd() *inspection { return inspected(storeKey{"test.odd", ""}, unopened{}) }

var oddFinding = keystore.Finding{Code: "x", Severity: keystore.Warning, Server: "a:1", Found: "it forgets", Risk: "lost", Remedy: "set it"}

// Every line is logged as it is documented, by a logger that is, and nothing else is, and
// nothing tells a key, an owner, a token or a body.
func TestEverythingThatIsLoggedIsSeen(t *testing.T) {
	var lines, fields []string
	for _, o := range occurrences {
		lines = append(lines, o.Line)
		t.Run(o.Line, func(t *testing.T) {
			u := newUpstream(t)
			load(t, site(t, protect(u, "owner shared")))
			eventually(t, "the store was inspected, of which it has told by then", func() (is bool) {
				sharedStores.Range(func(_, value any) bool {
					known, _ := value.(*sharedStore).inspection.known()
					is = !known.At.IsZero()
					return is
				})
				return is
			})
			caddyLog.Reset()
			o.happen(t, u)
			begin := strings.TrimSuffix(o.Line, logged.Open)
			eventually(t, "it is logged", func() bool {
				return slices.ContainsFunc(caddyLog.Lines(), func(l logged.Line) bool { return strings.HasPrefix(l.Text, begin) })
			})
			fields = append(fields, caddyLog.Check(t, documented(t), o.Want, "very-secret", "alice", "amount=10", "secretive")...)
		})
	}
	logged.Complete(t, ".", lines, fields)
}
