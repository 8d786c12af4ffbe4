package proxy

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// The text in a record never changes, or older jobs would be of an unknown recipe.
func TestSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    FingerprintOptions
		want string
	}{
		{FingerprintOptions{}, ""},
		{FingerprintOptions{JSON: true}, "json"},
		{FingerprintOptions{IgnoreHost: true, IgnoreQuery: true}, "ignore_query ignore_host"},
		{FingerprintOptions{IncludeHeader: []string{"x-b", "X-A", "X-B"}}, "include_header=X-A include_header=X-B"},
		{FingerprintOptions{JSON: true, Ignore: []string{"/b c", "/a~1=+é", "/b c", "/"}}, "json ignore=%2F ignore=%2Fa~1%3D%2B%C3%A9 ignore=%2Fb+c"},
		{
			FingerprintOptions{JSON: true, IgnoreQuery: true, IgnoreHost: true, IncludeHeader: []string{"X-A"}, Ignore: []string{"/a"}},
			"json ignore_query ignore_host include_header=X-A ignore=%2Fa",
		},
	} {
		got := c.o.settings()
		if got != c.want {
			t.Errorf("%+v: got %q, want %q", c.o, got, c.want)
		}
		if o, ok := parseSettings(got); !ok || o.settings() != got {
			t.Errorf("%q is read as %+v, %t", got, o, ok)
		}
	}
}

func TestSettingsThatAreNotUnderstood(t *testing.T) {
	t.Parallel()
	for _, settings := range []string{
		"xml", "JSON", "json xml", "json=1", " json", "json ", "json  ignore_query", "json\tignore_query", "json" + " json", "ignore_query json", "ignore_query=",
		"include_header", "include_header=", "include_header=x-a", "include_header=X-B include_header=X-A", "include_header=X-A" + " include_header=X-A",
		"json ignore", "json ignore=", "json ignore=/a", "json ignore=a", "json ignore=%2", "json ignore=%2fa", "json ignore=%2Fa~2", "ignore=%2Fa",
		"json ignore=%2Fb ignore=%2Fa", "json ignore=%2Fa" + " ignore=%2Fa", "json ignore=%2F%FF",
	} {
		if o, ok := parseSettings(settings); ok {
			t.Errorf("%q is taken for %+v", settings, o)
		}
	}
	for _, f := range []keystore.Fingerprint{{}, {Recipe: recipeVersion + 1}, {Recipe: 255}, {Recipe: recipeVersion, Settings: "xml"}} {
		if rc := recipeOf(f, keystore.Digester{}); rc != nil {
			t.Errorf("%+v is taken for %+v", f, rc)
		}
	}
}

// FuzzSettings: a text from a record is understood completely or not at all.
func FuzzSettings(f *testing.F) {
	for _, settings := range []string{"", "json", "json ignore_query ignore_host include_header=X-A ignore=%2Fa~1b", "json ignore=%2F+", "xml", "json ignore=%2Fa~2", "include_header=x"} {
		f.Add(settings)
	}
	f.Fuzz(func(t *testing.T, settings string) {
		rc := recipeOf(keystore.Fingerprint{Recipe: recipeVersion, Settings: settings}, keystore.Digester{})
		if rc != nil && (rc.settings != settings || rc.ignored.isOut() || rc.ignored != nil && !rc.json) {
			t.Errorf("%q is taken for %+v", settings, rc)
		}
	})
}

// recipes are ways to make fingerprints, each with a request that is the same as
// the fixture's only by them.
var recipes = map[string]struct {
	o     FingerprintOptions
	alike request
}{
	"raw":          {},
	"json":         {FingerprintOptions{JSON: true}, request{body: ` { "amount" : 1 } `}},
	"without host": {FingerprintOptions{IgnoreHost: true}, request{url: "http://other.example/pay"}},
	"without query": {
		FingerprintOptions{IgnoreQuery: true},
		request{url: "http://api.example/pay?at=5"},
	},
	"with ignored members and a header": {
		FingerprintOptions{JSON: true, Ignore: []string{"/sent"}, IncludeHeader: []string{"X-Tenant"}},
		request{body: `{"sent":{"at":5},"amount":1}`, header: http.Header{"X-Tenant": {"a"}}},
	},
}

// completed puts a completed job of the fixture's request, or of another body, into
// the store, with a fingerprint made by these options.
func (f *fixture) completed(o FingerprintOptions, body string) *keystore.Job {
	f.t.Helper()
	j := f.jobOf(o, body)
	done := j.Report(keystore.Report{
		Token: j.Attempts[0].Token, Outcome: keystore.OutcomeFinal, At: f.store.Now(),
		Response: &keystore.Response{Status: 200, Body: []byte("stored"), Size: 6, Answered: f.store.Now()},
	}).Next
	f.put(done)
	return done
}

// jobOf is the job of the fixture's request with another body, and its first
// attempt starting.
func (f *fixture) jobOf(o FingerprintOptions, body string) *keystore.Job {
	f.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://api.example/pay", nil)
	r.Header.Set("Content-Type", "application/json")
	b, err := readBody(strings.NewReader(body), -1, 1<<10, 1<<10)
	if err != nil {
		f.t.Fatal(err)
	}
	defer b.release()
	j := *f.claimed(keystore.NewToken())
	if j.Fingerprint, err = newRecipe(o, keystore.Digester{}).fingerprint(r, b); err != nil {
		f.t.Fatal(err)
	}
	return &j
}

// put makes a job the store's record.
func (f *fixture) put(j *keystore.Job) {
	f.t.Helper()
	j.WriteID = keystore.NewWriteID()
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	if err := f.mem.put(j); err != nil {
		f.t.Fatal(err)
	}
}

// However a request comes to a job's record, its fingerprint is judged, by the
// recipe of the record: a claim that finds it, a waiter that is woken, a claim
// that is refused by a change meanwhile, and one after the store has been away.
func TestFP06EveryPathComparesWhatWasAsked(t *testing.T) {
	paths := map[string]func(f *fixture, record func()) result{
		"claim lost": func(f *fixture, record func()) result {
			record()
			return f.do(request{})
		},
		"waiter woken": func(f *fixture, record func()) result {
			f.put(f.claimed(keystore.NewToken()))
			waiter := make(chan result)
			go func() { waiter <- f.do(request{}) }()
			synctest.Wait()
			if len(waiter) > 0 {
				f.t.Error("the duplicate does not wait")
			}
			record()
			return <-waiter
		},
		"read again": func(f *fixture, record func()) result {
			running := f.claimed(keystore.NewToken())
			f.put(running.Report(keystore.Report{Token: running.Attempts[0].Token, Outcome: keystore.OutcomeFailed, At: f.store.Now()}).Next)
			f.mem.fail(func(op string) error {
				if op == "swap" {
					record()
				}
				return nil
			}, nil)
			return f.do(request{})
		},
		"after an outage": func(f *fixture, record func()) result {
			record()
			f.mem.fail(func(string) error { return errInjected }, nil)
			f.do(request{}).want(f.t, 503, CodeStoreUnavailable)
			f.mem.fail(nil, nil)
			return f.do(request{})
		},
	}
	for path, take := range paths {
		for recipe, by := range recipes {
			for name, body := range map[string]string{"same": `{"amount":1}`, "different": `{"amount":2}`} {
				t.Run(path+"/"+recipe+"/"+name, func(t *testing.T) {
					bubble(t, Config{}, func(t *testing.T, f *fixture) {
						got := take(f, func() { f.completed(by.o, body) })
						if name == "same" {
							got.wantBody(t, 200, "stored", true)
						} else {
							got.want(t, 409, CodeKeyReused)
						}
						f.wantExecutions(0)
					})
				})
			}
		}
	}
}

// A job is compared as it was when it was made, whatever the route says by now:
// a change of the route's settings refuses no repetition and replays nothing else.
func TestFP10ChangeOfSettingsIsNoOtherRequest(t *testing.T) {
	for before, old := range recipes {
		for now, changed := range recipes {
			if before == now {
				continue
			}
			t.Run(before+" to "+now, func(t *testing.T) {
				bubble(t, Config{Fingerprint: old.o}, func(t *testing.T, f *fixture) {
					f.do(request{header: http.Header{"X-Tenant": {"a"}}}).wantBody(t, 200, "execution 1", false)
					f.route, _ = NewRoute(f.gateway, Config{Fingerprint: changed.o})
					again := old.alike
					again.header = http.Header{"X-Tenant": {"a"}}
					f.do(again).wantBody(t, 200, "execution 1", true)
					// What only the new settings would take for the same.
					if other := changed.alike; now != "raw" && (now != "json" || !old.o.JSON) {
						f.do(other).want(t, 409, CodeKeyReused)
					}
					f.do(request{body: `{"amount":2}`}).want(t, 409, CodeKeyReused)
					f.wantExecutions(1)
				})
			})
		}
	}
}

// A fingerprint by a recipe that this gateway does not understand completely is
// not guessed at: nothing is dispatched, and nothing replayed.
func TestFP10UnknownRecipeBlocks(t *testing.T) {
	for name, change := range map[string]func(*keystore.Fingerprint){
		"next version":     func(f *keystore.Fingerprint) { f.Recipe = recipeVersion + 1 },
		"version 255":      func(f *keystore.Fingerprint) { f.Recipe = 255 },
		"unknown settings": func(f *keystore.Fingerprint) { f.Settings = "json fold_case" },
	} {
		for state, outcome := range map[string]keystore.Outcome{"completed": keystore.OutcomeFinal, "open": keystore.OutcomeFailed, "unknown": keystore.OutcomeUnknown, "running": 0} {
			t.Run(name+"/"+state, func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, f *fixture) {
					j := f.jobOf(FingerprintOptions{}, `{"amount":1}`)
					change(&j.Fingerprint)
					if outcome != 0 {
						j = j.Report(keystore.Report{
							Token: j.Attempts[0].Token, Outcome: outcome, At: f.store.Now(), Response: &keystore.Response{Status: 200, Answered: f.store.Now()},
						}).Next
					}
					f.put(j)
					f.do(request{}).want(t, 503, CodeStoreUnavailable)
					f.do(request{body: "other"}).want(t, 503, CodeStoreUnavailable)
					f.wantExecutions(0)
					if now := f.mem.job(); now.WriteID != j.WriteID {
						t.Error("the record was changed")
					}
				})
			})
		}
	}
	// Not even the number can be read here.
	t.Run("version 999", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, f *fixture) {
			j := f.completed(FingerprintOptions{}, `{"amount":1}`)
			record := f.mem.records[j.Name]
			var fields map[int]any
			if err := cbor.Unmarshal(record[keystore.WaiterOffset+1:], &fields); err != nil {
				t.Fatal(err)
			}
			fields[6].(map[any]any)[uint64(1)] = 999
			changed, err := cbor.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			f.mem.records[j.Name] = append(record[:keystore.WaiterOffset+1:keystore.WaiterOffset+1], changed...)
			f.do(request{}).want(t, 503, CodeStoreUnavailable)
			f.wantExecutions(0)
		})
	})
}

// Records as this version of the recipe wrote them, under several settings.
// Whoever changes the recipe draws another version, and goes on understanding these.
func TestFP10GoldenRecords(t *testing.T) {
	files, err := filepath.Glob("testdata/records/recipe-1-*.hex")
	if err != nil || len(files) != 3 {
		t.Fatalf("golden records: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".hex"), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				digits, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				record, err := hex.DecodeString(strings.Join(strings.Fields(string(digits)), ""))
				if err != nil {
					t.Fatal(err)
				}
				name := keystore.NameOf("main", "alice", "k1")
				j, err := keystore.DecodeRecord(name, record)
				if err != nil {
					t.Fatal(err)
				}
				f.put(j)
				golden := request{
					url: "http://api.example/p%61y?b=1&a=2", contentType: "application/json; charset=utf-8", body: `{"a":[1.0,{"d":"\u00e9","c":2}],"sent":5}`,
					header: http.Header{"X-Tenant": {"a", "b"}},
				}
				f.do(golden).wantBody(t, 200, "golden", true)
				altered := golden
				altered.url = "http://api.example/pay?b=1&a=2"
				f.do(altered).want(t, 409, CodeKeyReused)
				altered = golden
				altered.body = `{"a":[1,{"d":"\u00e9","c":2}],"sent":5}`
				f.do(altered).want(t, 409, CodeKeyReused)
				if strings.Contains(file, "raw") {
					altered = golden
					altered.url = "http://api.example/p%61y?b=1"
					f.do(altered).want(t, 409, CodeKeyReused)
				} else {
					altered = golden
					altered.body = ` {"sent":6, "a":[ 1.0, {"c":2,"d":"é"} ] } `
					f.do(altered).wantBody(t, 200, "golden", true)
				}
				f.wantExecutions(0)
			})
		})
	}
}

// The settings apply to what a route does, and what is refused says what is compared.
func TestFingerprintOfRoute(t *testing.T) {
	c := Config{Fingerprint: FingerprintOptions{JSON: true, IgnoreQuery: true, IncludeHeader: []string{"x-tenant"}, Ignore: []string{"/at"}}}
	bubble(t, c, func(t *testing.T, f *fixture) {
		with := func(tenant, query, body string) request {
			return request{url: "http://api.example/pay" + query, header: http.Header{"X-Tenant": {tenant}}, body: body}
		}
		f.do(with("a", "", `{"a":1,"b":2,"at":1}`)).wantBody(t, 200, "execution 1", false)
		time.Sleep(time.Second)
		f.do(with("a", "?t=1", `{ "b":2, "at":[], "a":1 }`)).wantBody(t, 200, "execution 1", true)
		r := f.do(with("b", "", `{"a":1,"b":2}`)).want(t, 409, CodeKeyReused)
		if !strings.Contains(r.Body.String(), "same method, host, path, media type, body and header X-Tenant.") {
			t.Errorf("the client is told %s", r.Body)
		}
		f.do(with("a", "", `{"a":1,"b":2.0}`)).want(t, 409, CodeKeyReused)
		f.wantExecutions(1)
	})
}
