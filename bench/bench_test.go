package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

// What the load generator takes for right and for wrong.
func TestAnswersAreChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		keys  keys
		serve http.HandlerFunc
		wrong string // what is said; empty: nothing is
	}{
		{"right", newFresh(), func(w http.ResponseWriter, r *http.Request) { answerWith(w, r, 100) }, ""},
		{"right, in chunks", newFresh(), func(w http.ResponseWriter, r *http.Request) {
			answerWith(w, r, 40)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, strings.Repeat("x", 60))
		}, ""},
		{"status", newFresh(), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "status 502"},
		{"short", newFresh(), func(w http.ResponseWriter, r *http.Request) { answerWith(w, r, 99) }, "99 bytes"},
		{"another job's", newFresh(), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 100))
		}, "another job's answer"},
		{"a replay of what is new", newFresh(), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Idempotent-Replayed", "true")
			answerWith(w, r, 100)
		}, "a replay"},
		{"no replay of what is known", &known{size: 3}, func(w http.ResponseWriter, r *http.Request) { answerWith(w, r, 100) }, "not a replay"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tc.serve)
			defer server.Close()
			const requests = 10
			l := load{
				addr: server.Listener.Addr().String(), path: "/", size: 100, conns: 2,
				keys: tc.keys, replays: true, count: new(atomic.Int64),
			}
			l.count.Store(requests)
			m, err := send(t.Context(), l, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			wrong := int64(0)
			if tc.wrong != "" {
				wrong = requests
			}
			if m.requests != requests || m.wrong != wrong || m.why != tc.wrong {
				t.Errorf("%d requests, %d wrong: %q; want %d, %d, %q", m.requests, m.wrong, m.why, requests, wrong, tc.wrong)
			}
		})
	}
}

func answerWith(w http.ResponseWriter, r *http.Request, size int) {
	k := r.Header.Get(keyHeader)
	_, _ = io.WriteString(w, k+strings.Repeat("x", size-len(k)))
}

// The upstream counts executions by their keys, and repeated ones besides.
func TestExecutionsAreCounted(t *testing.T) {
	t.Parallel()
	u := &upstream{free: make(chan struct{})}
	u.reset()
	server := httptest.NewServer(u)
	defer server.Close()
	keys := newAgain(3)
	l := load{addr: server.Listener.Addr().String(), path: "/answer/2000", size: 2000, conns: 3, keys: keys, count: new(atomic.Int64)}
	l.count.Store(10)
	if m, err := send(t.Context(), l, time.Minute); err != nil || m.wrong > 0 {
		t.Fatalf("%v, %d wrong: %s", err, m.wrong, m.why)
	}
	resp, err := server.Client().Get(server.URL + "/counted")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var c counted
	if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
		t.Fatal(err)
	}
	// Keys are three times the first, the second and the third, and once the fourth.
	if want := (counted{Executions: 10, Repeated: 6}); c != want || keys.distinct() != 4 {
		t.Errorf("counted %+v, want %+v; %d distinct keys, want 4", c, want, keys.distinct())
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var h, all histogram
	for us := 1; us <= 100_000; us++ {
		h.add(time.Duration(us) * time.Microsecond)
	}
	all.merge(&h)
	all.merge(&h)
	for _, tc := range []struct {
		q    float64
		want time.Duration
	}{{0.001, 100 * time.Microsecond}, {0.5, 50 * time.Millisecond}, {0.99, 99 * time.Millisecond}, {1, 100 * time.Millisecond}} {
		got := all.quantile(tc.q)
		if off := float64(got-tc.want) / float64(tc.want); off < -0.04 || off > 0.04 {
			t.Errorf("quantile %v is %v, want about %v", tc.q, got, tc.want)
		}
	}
}

// A stack counts for whoever stands nearest to its end, and for the server only where
// nobody else is in it.
func TestPartOf(t *testing.T) {
	t.Parallel()
	const (
		module  = "github.com/caddy-idempotency/caddy-idempotency/"
		server  = "net/http.(*conn).serve"
		attempt = module + "proxy.(*attempt).run"
		plain   = "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy.(*Handler).reverseProxy"
	)
	for _, tc := range []struct {
		stack []string // its end first
		want  string
	}{
		{[]string{"runtime.gcAssistAlloc", "runtime.mallocgc", attempt}, parts[0].name},
		{[]string{"runtime.mallocgc", module + "keystore.EncodeRecord", attempt}, parts[1].name},
		{[]string{"syscall.write", "github.com/redis/go-redis/v9.(*Client).Process", server}, parts[1].name},
		{[]string{"runtime.mallocgc", plain, attempt}, parts[2].name},
		{[]string{module + "proxy.(*capture).Write", plain, attempt}, parts[3].name},
		{[]string{"syscall.write", "net/http.(*response).finishRequest", server}, parts[4].name},
		{[]string{"runtime.futex", "runtime.schedule", "runtime.mcall"}, parts[5].name},
	} {
		sample := new(profile.Sample)
		for _, name := range tc.stack {
			sample.Location = append(sample.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}})
		}
		if got := partOf(sample); got != tc.want {
			t.Errorf("%v counts for %q, want %q", tc.stack, got, tc.want)
		}
	}
}
