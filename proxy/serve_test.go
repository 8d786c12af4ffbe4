package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// bubble runs a test in which time passes only while everybody waits.
func bubble(t *testing.T, c Config, test func(t *testing.T, f *fixture)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, c)
		test(t, f)
		f.gateway.Close()
	})
}

func sleepy(d time.Duration, f *fixture) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		time.Sleep(d)
		_, err := fmt.Fprintf(w, "execution %d", f.executions.Load())
		return err
	}
}

func TestFirstReplayConflict(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		first := f.do(request{}).wantBody(t, 200, "execution 1", false)
		time.Sleep(time.Hour)
		again := f.do(request{}).wantBody(t, 200, "execution 1", true)
		if n := f.mem.calls("create"); n != 2 || len(f.mem.ops) != 3 {
			t.Errorf("a fresh request and a replay took %v", f.mem.ops)
		}
		if a, b := first.Header().Get(HeaderJob), again.Header().Get(HeaderJob); a == "" || a != b {
			t.Errorf("job ids %q and %q", a, b)
		}
		if first.Header().Get(HeaderExpires) == "" || first.Header().Get(HeaderExpires) != again.Header().Get(HeaderExpires) {
			t.Errorf("expiry %q, then %q", first.Header().Get(HeaderExpires), again.Header().Get(HeaderExpires))
		}
		f.wantExecutions(1)
		for name, q := range map[string]request{
			"body":       {body: `{"amount":2}`},
			"path":       {url: "http://api.example/refund"},
			"query":      {url: "http://api.example/pay?a=1"},
			"host":       {url: "http://other.example/pay"},
			"method":     {method: http.MethodPut},
			"media type": {contentType: "text/plain"},
		} {
			r := f.do(q)
			if r.want(t, 409, CodeKeyReused); r.Header().Get(HeaderJob) != first.Header().Get(HeaderJob) {
				t.Errorf("other %s: job %q", name, r.Header().Get(HeaderJob))
			}
			if r.Header().Get("Retry-After") != "" {
				t.Errorf("other %s: a reused key invites to retry", name)
			}
		}
		f.wantExecutions(1)
		f.do(request{owner: "bob"}).wantBody(t, 200, "execution 2", false)
		f.wantExecutions(2)
	})
}

// However long the parts of a request are, what is kept of them for operators is not.
// The request is told from others by all of it.
func TestLongRequestsMakeNoLongRecords(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		const tail = 5_000
		long := strings.Repeat("é", tail)
		q := request{method: "P" + strings.Repeat("X", tail), url: "http://" + strings.Repeat("a", tail) + "/" + long, contentType: "a/" + strings.Repeat("b", tail)}
		id := f.do(q).wantBody(t, 200, "execution 1", false).Header().Get(HeaderJob)
		j, err := f.gateway.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, kept := range []string{j.Request.Method, j.Request.Host, j.Request.Path, j.Request.MediaType} {
			if len(kept) > maxShown+len("…") || len(kept) < maxShown || !strings.HasSuffix(kept, "…") || !utf8.ValidString(kept) {
				t.Errorf("%d bytes are kept: %.20q…%q", len(kept), kept, kept[max(0, len(kept)-20):])
			}
		}
		f.do(q).wantBody(t, 200, "execution 1", true)
		q.url += "é"
		f.do(q).want(t, 409, CodeKeyReused)
		f.wantExecutions(1)
	})
}

func TestSpacesAreApart(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.do(request{})
		c := f.route.Config
		c.Space = "other"
		f.route, _ = NewRoute(f.gateway, c)
		f.do(request{}).wantBody(t, 200, "execution 2", false)
	})
}

func TestQuotedAndBareKeyAreOne(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		var sent []string
		f.serve = func(_ http.ResponseWriter, r *http.Request) error {
			sent = r.Header["Idempotency-Key"]
			return nil
		}
		f.do(request{key: `"k 1"`}).want(t, 400, CodeKeyInvalid)
		f.do(request{key: `"k1"`}).wantBody(t, 200, "", false)
		f.do(request{key: `k1`}).wantBody(t, 200, "", true)
		f.wantExecutions(1)
		if len(sent) != 1 || sent[0] != `"k1"` {
			t.Errorf("upstream saw the key %q", sent)
		}
	})
}

func TestDoubleClick(t *testing.T) {
	for name, deaf := range map[string]bool{"with hints": false, "without hints": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.mem.deaf = deaf
				f.serve = sleepy(time.Second, f)
				var all sync.WaitGroup
				for range 50 {
					all.Go(func() {
						r := f.do(request{})
						if r.Code != 200 || r.Body.String() != "execution 1" {
							t.Errorf("got %d %s", r.Code, r.Body)
						}
					})
				}
				all.Wait()
				f.wantExecutions(1)
			})
		})
	}
}

func TestCAD06ClientLeaves(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			select {
			case <-time.After(3 * time.Second):
				_, err := io.WriteString(w, "done")
				return err
			case <-r.Context().Done(): // what a reverse proxy does when its client has gone
				w.WriteHeader(499)
				return nil
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.do(request{ctx: ctx})
		time.Sleep(3 * time.Second)
		f.do(request{}).wantBody(t, 200, "done", true)
		f.wantExecutions(1)
	})
}

func TestBypass(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.do(request{key: "none"}).wantBody(t, 200, "execution 1", false)
		f.do(request{key: "none"}).wantBody(t, 200, "execution 2", false)
		f.do(request{method: http.MethodGet}).wantBody(t, 200, "execution 3", false)
		f.do(request{method: http.MethodOptions}).wantBody(t, 200, "execution 4", false)
		if len(f.mem.records) != 0 {
			t.Error("an unprotected request left a record")
		}
		f.route.KeyRequired = true
		f.do(request{key: "none"}).want(t, 400, CodeKeyMissing)
		f.do(request{method: http.MethodOptions, key: "none"}).wantBody(t, 200, "execution 5", false)
		f.do(request{owner: "nobody"}).want(t, 400, CodeOwnerMissing)
		f.do(request{header: http.Header{"Upgrade": {"websocket"}}}).want(t, 400, CodeKeyInvalid)
		f.do(request{header: http.Header{"Idempotency-Key": {"a", "b"}}}).want(t, 400, CodeKeyInvalid)
		f.do(request{header: http.Header{"Idempotency-Key": {""}}}).want(t, 400, CodeKeyInvalid)
		f.wantExecutions(5)
	})
}

// A method that is named is protected however it is spelled: a request with a key
// must not pass because its client, or the configuration, has it in lower case.
func TestNamedMethodsAreProtectedInEverySpelling(t *testing.T) {
	bubble(t, Config{Methods: []string{"POST", "patch"}}, func(t *testing.T, f *fixture) {
		for i, method := range []string{"POST", "post", "PATCH", "patch"} {
			body := fmt.Sprint("execution ", i+1)
			f.do(request{method: method, key: method}).wantBody(t, 200, body, false)
			f.do(request{method: method, key: method}).wantBody(t, 200, body, true)
		}
		f.do(request{method: "PUT"}).wantBody(t, 200, "execution 5", false)
		f.do(request{method: "PUT"}).wantBody(t, 200, "execution 6", false)
		f.wantExecutions(6)
	})
}

// Two or more identical 4xx and 5xx answers are told apart by the replay's marker.
func TestOUT06ReplayedFailureIsMarked(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			http.Error(w, "broken", http.StatusInternalServerError)
			return nil
		}
		first := f.do(request{})
		if first.Code != 500 || first.Header().Get(HeaderReplayed) != "" || first.Header().Get(HeaderAnsweredAt) != "" {
			t.Errorf("first: %d %v", first.Code, first.Header())
		}
		time.Sleep(time.Minute)
		again := f.do(request{})
		if again.Code != 500 || again.Header().Get(HeaderReplayed) != "true" {
			t.Errorf("again: %d %v", again.Code, again.Header())
		}
		at, err := http.ParseTime(again.Header().Get(HeaderAnsweredAt))
		if err != nil || time.Since(at) < 59*time.Second || time.Since(at) > 61*time.Second {
			t.Errorf("answered at %q", again.Header().Get(HeaderAnsweredAt))
		}
		f.wantExecutions(1)
	})
}

func TestErrorOfAnAttemptWithoutEffectPasses(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		refused := errors.New("connection refused")
		f.serve = func(http.ResponseWriter, *http.Request) error { return refused }
		f.fail = Failure{Status: 502, DialFailed: true}
		if r := f.do(request{}); !errors.Is(r.err, refused) || r.Header().Get(HeaderJob) == "" {
			t.Errorf("got %v, %v", r.err, r.Header())
		}
		f.serve = nil
		r := f.do(request{}).wantBody(t, 200, "execution 2", false)
		j := f.mem.job()
		if len(j.Attempts) != 2 || j.Attempts[0].State != keystore.AttemptFailed || j.ID != r.Header().Get(HeaderJob) {
			t.Errorf("attempts %+v", j.Attempts)
		}
	})
}

func TestOUT05UnknownIsNotFailed(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(http.ResponseWriter, *http.Request) error { return errors.New("127.0.0.1:9081: EOF") }
		f.fail = Failure{Status: 502}
		for range 2 {
			r := f.do(request{}).want(t, 504, CodeOutcomeUnknown)
			if strings.Contains(r.Body.String(), "9081") || !strings.Contains(r.Body.String(), string(AdviceWaitForResolution)) {
				t.Errorf("problem: %s", r.Body)
			}
			if r.Header().Get(HeaderJob) == "" || r.Header().Get("Retry-After") != "" {
				t.Errorf("headers: %v", r.Header())
			}
		}
		f.wantExecutions(1)
	})
}

func TestPanicIsUnknownAndDoesNotEndTheProcess(t *testing.T) {
	for name, value := range map[string]any{"abort": http.ErrAbortHandler, "other": "boom"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.serve = func(w http.ResponseWriter, _ *http.Request) error {
					w.Header().Set("Content-Length", "100")
					_, _ = io.WriteString(w, "partial")
					panic(value)
				}
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantExecutions(1)
			})
		})
	}
}

func TestShortAnswerIsUnknown(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Length", "100")
			_, err := io.WriteString(w, "partial")
			return err
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
	})
}

// Java's HttpClient and curl --http2 offer h2c with every request over plain TCP.
// That offer is to this hop, which may ignore it (RFC 9113, section 3.1).
func TestOfferOfH2CPassesAndIsNotSentOn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		for _, spelling := range []string{"h2c", "H2C"} {
			var seen http.Header
			f.serve = func(_ http.ResponseWriter, r *http.Request) error {
				seen = r.Header
				return nil
			}
			f.do(request{key: spelling, header: http.Header{
				"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {spelling}, "Http2-Settings": {"AAEAAEAAAAIAAAAA"},
			}}).wantBody(t, 200, "", false)
			if seen.Get("Upgrade") != "" || seen.Get("Http2-Settings") != "" {
				t.Errorf("upstream saw %v", seen)
			}
		}
		f.do(request{header: http.Header{"Upgrade": {"h2c, websocket"}}}).want(t, 400, CodeKeyInvalid)
		f.wantExecutions(2)
	})
}

// A handler finds the key under its usual name, with a body or without one.
func TestHandlerFindsTheKey(t *testing.T) {
	for name, body := range map[string]io.Reader{"without a body": http.NoBody, "with one": strings.NewReader("x")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.serve = func(_ http.ResponseWriter, r *http.Request) error {
					if got := r.Header.Get("Idempotency-Key"); got != `"k1"` {
						t.Errorf("the handler finds the key %q in %v", got, r.Header)
					}
					return nil
				}
				f.do(request{key: `"k1"`, reader: body}).wantBody(t, 200, "", false)
				f.wantExecutions(1)
			})
		})
	}
}

// What handlers around this one have put into lists is added to, on a replay too:
// without its Vary a cache would give one origin's answer to another.
func TestOuterHeadersAreKept(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Add("Vary", "Accept")
			w.Header().Set("Server", "inner")
			return nil
		}
		for range 2 {
			w := httptest.NewRecorder()
			w.Header().Add("Vary", "Origin")
			w.Header().Set("Server", "outer")
			if err := f.deliver(w, request{}); err != nil {
				t.Fatal(err)
			}
			if got := w.Header()["Vary"]; !slices.Equal(got, []string{"Origin", "Accept"}) {
				t.Errorf("Vary: %q", got)
			}
			if got := w.Header()["Server"]; !slices.Equal(got, []string{"inner"}) {
				t.Errorf("Server: %q", got)
			}
		}
		f.wantExecutions(1)
	})
}
