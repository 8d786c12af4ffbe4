package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// answers is a server in front of a handler, protected by a route.
func answers(t *testing.T, c Config, handler http.HandlerFunc) (ask func(method, key string) (*http.Response, string), f *fixture) {
	t.Helper()
	f = newFixture(t, c)
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.executions.Add(1)
		handler(w, r)
	})
	server := httptest.NewServer(f.route.Middleware(func(*http.Request) string { return "alice" }, next))
	t.Cleanup(server.Close)
	return func(method, key string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL, strings.NewReader("amount=1"))
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodHead {
			r.Body = http.NoBody
		}
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}, f
}

// sameAnswer checks that two answers differ only in what the gateway adds.
func sameAnswer(t *testing.T, what string, a, b *http.Response, bodyA, bodyB string) {
	t.Helper()
	if a.StatusCode != b.StatusCode || bodyA != bodyB || !reflect.DeepEqual(a.Trailer, b.Trailer) {
		t.Errorf("%s: %d %q, trailer %v; then %d %q, trailer %v", what, a.StatusCode, bodyA, a.Trailer, b.StatusCode, bodyB, b.Trailer)
	}
	ha, hb := a.Header.Clone(), b.Header.Clone()
	for _, name := range slices.Concat(ownHeaders, []string{"Date"}) {
		ha.Del(name)
		hb.Del(name)
	}
	if !reflect.DeepEqual(ha, hb) || a.ContentLength != b.ContentLength {
		t.Errorf("%s: %v, length %d; then %v, length %d", what, ha, a.ContentLength, hb, b.ContentLength)
	}
}

// An answer through the gateway, and its replay, are what the handler answers
// without it.
func TestREP01AnswersAreFaithful(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"created": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/o/1")
			w.Header().Set("Etag", `"e"`)
			w.Header().Set("Content-Type", "application/vnd.x+json")
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"id":1}`)
		},
		"nothing":       func(http.ResponseWriter, *http.Request) {},
		"empty":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
		"no content":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"reset content": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusResetContent) },
		"not modified": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", `"e"`)
			w.WriteHeader(http.StatusNotModified)
		},
		"redirection": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusMultipleChoices)
		},
		"announced length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, "abcd")
		},
		"empty body, announced": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") },
		"guessed type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			fmt.Fprint(w, "<html>")
		},
		"empty value": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Empty", "") },
		"trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Late")
			w.Header().Add("Trailer", "X-Sum")
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, "abcd")
			w.Header().Set("X-Sum", "42")
			w.Header().Add("X-Late", "1")
			w.Header().Add("X-Late", "2")
		},
		"trailers that are not announced": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Sum", "of the head")
			_ = http.NewResponseController(w).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
			w.Header().Set(http.TrailerPrefix+"X-Late", "1")
		},
		"trailers with a field's name": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Trailer", "X-Never")
			w.Header().Add("Trailer", "X-Sum")
			w.Header().Set("X-Sum", "of the head")
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, "abcd")
			_ = http.NewResponseController(w).Flush()
			w.Header().Set("X-Sum", "42")
		},
		"vary": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Vary", "Origin")
			w.Header().Add("Vary", "Accept")
		},
		"an error": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Warning", "199 - x")
			http.Error(w, "broken", http.StatusInternalServerError)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, method := range []string{http.MethodPost, http.MethodHead} {
				ask, f := answers(t, Config{Methods: []string{method}}, handler)
				plain, plainBody := ask(method, "")
				first, firstBody := ask(method, "k")
				again, againBody := ask(method, "k")
				if strings.HasPrefix(name, "trailers") && method == http.MethodPost && plain.Trailer.Get("X-Sum") != "42" {
					t.Errorf("trailer %v", plain.Trailer)
				}
				if name == "guessed type" {
					delete(plain.Header, "Content-Type")
				}
				sameAnswer(t, method+" first", plain, first, plainBody, firstBody)
				sameAnswer(t, method+" replay", first, again, firstBody, againBody)
				if again.Header.Get(HeaderReplayed) != "true" {
					t.Errorf("%s: no replay: %v", method, again.Header)
				}
				f.wantExecutions(2)
			}
		})
	}
}

// A header that comes more than once comes as often and in the same order.
func TestREP02RepeatedHeaders(t *testing.T) {
	t.Parallel()
	want := http.Header{
		"Link": {"</1>; rel=a", "</2>; rel=b", "</1>; rel=a"}, "Vary": {"Origin", "Accept"}, "Warning": {"199 - b", "199 - a"},
		"X-Many": {"2", "", "1"},
	}
	ask, f := answers(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range want {
			for _, value := range values {
				w.Header().Add(name, value)
			}
		}
	})
	for i := range 2 {
		res, _ := ask(http.MethodPost, "k")
		for name, values := range want {
			if !slices.Equal(res.Header[name], values) {
				t.Errorf("answer %d: %s is %q, want %q", i+1, name, res.Header[name], values)
			}
		}
	}
	f.wantExecutions(1)
}

// What concerns one connection, and what the connection's own header names, is
// neither stored nor passed on.
func TestREP04HopByHopHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		for name, value := range map[string]string{
			"Connection": "x-hop, Keep-Alive", "X-Hop": "1", "Keep-Alive": "timeout=5", "Transfer-Encoding": "chunked",
			"Upgrade": "h2c", "Te": "trailers", "Proxy-Connection": "keep-alive", "X-Kept": "1", "Content-Length": "4",
		} {
			w.Header().Set(name, value)
		}
		_, err := fmt.Fprint(w, "abcd")
		return err
	}
	for range 2 {
		h := f.do(request{}).Header()
		for _, name := range []string{"Connection", "X-Hop", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Te", "Proxy-Connection"} {
			if h.Get(name) != "" {
				t.Errorf("%s: %s reached the client", name, h.Get(name))
			}
		}
		if h.Get("X-Kept") != "1" || h.Get("Content-Length") != "4" {
			t.Errorf("got %v", h)
		}
	}
	f.wantExecutions(1)
}

// What the gateway itself says can't be said by an upstream, in a trailer either.
func TestSEC09MarkersOfAnUpstreamAreDropped(t *testing.T) {
	t.Parallel()
	ask, f := answers(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range ownHeaders {
			w.Header().Set(http.TrailerPrefix+name, "forged")
			if name != HeaderRefused { // it makes the answer a refusal
				w.Header().Set(name, "forged")
			}
		}
		w.Header().Set("Trailer", HeaderReplayed+", "+HeaderRefused)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"Connection", "x")
		fmt.Fprint(w, "abcd")
	})
	for i := range 2 {
		res, _ := ask(http.MethodPost, "k")
		for _, name := range ownHeaders {
			if res.Header.Get(name) == "forged" || res.Trailer.Get(name) != "" {
				t.Errorf("answer %d: %v, trailer %v", i+1, res.Header, res.Trailer)
			}
		}
		if len(res.Trailer) != 1 || res.Trailer.Get("X-Sum") != "42" {
			t.Errorf("answer %d: trailer %v", i+1, res.Trailer)
		}
	}
	f.wantExecutions(1)
}

// What belongs to one delivery or one session is given to whom it was meant for,
// and has no place in a replay, unless the route keeps it.
func TestSEC07SessionsAreNotReplayed(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string][]string{"by default": nil, "one kept": {"set-cookie"}, "all kept": notStored} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Config{KeepHeaders: keep, Outcomes: map[int]keystore.Outcome{401: keystore.OutcomeFinal}})
			f.serve = func(w http.ResponseWriter, _ *http.Request) error {
				for _, name := range notStored {
					w.Header().Add(name, "a")
					w.Header().Add(name, "b")
					w.Header().Add(http.TrailerPrefix+name, "c")
				}
				w.Header().Set("Location", "/o/1")
				w.WriteHeader(http.StatusUnauthorized)
				return nil
			}
			for i := range 2 {
				h := f.do(request{}).Header()
				for _, name := range notStored {
					want := i == 0 || slices.ContainsFunc(keep, func(k string) bool { return strings.EqualFold(k, name) })
					if got := slices.Equal(h[name], []string{"a", "b"}); got != want || (len(h[http.TrailerPrefix+name]) > 0) != want {
						t.Errorf("answer %d has %s: %q, trailer %q", i+1, name, h[name], h[http.TrailerPrefix+name])
					}
				}
				if h.Get("Location") != "/o/1" {
					t.Errorf("answer %d: %v", i+1, h)
				}
			}
			f.wantExecutions(1)
		})
	}
}

// A date is the one that was asked for, whichever was written in its place before.
func TestHTTPDate(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 12, 31, 23, 59, 30, 999_999_999, time.FixedZone("", 3600))
	for range 2 {
		for second := range 3 * len(dates) {
			at := start.Add(time.Duration(second) * time.Second)
			for range 2 {
				if got, want := httpDate(at), at.UTC().Format(http.TimeFormat); got != want {
					t.Fatalf("got %s, want %s", got, want)
				}
			}
		}
	}
	if got := httpDate(time.Unix(-1, 0)); got != "Wed, 31 Dec 1969 23:59:59 GMT" {
		t.Errorf("before the epoch: %s", got)
	}
}

// BenchmarkHTTPDate is a date that was written lately, and one that was not.
func BenchmarkHTTPDate(b *testing.B) {
	now := time.Now()
	b.Run("again", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			httpDate(now)
		}
	})
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for at := now; b.Loop(); at = at.Add(time.Second) {
			httpDate(at)
		}
	})
}
