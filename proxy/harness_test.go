package proxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/logged"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// patience is how long something may take that is bound to happen. It is reached
// only when something is broken.
const patience = 30 * time.Second

// fixture is a route on a gateway, in front of an upstream that counts how often
// it was executed. It works inside a synctest bubble: there is no network.
type fixture struct {
	t          testing.TB
	store      keystore.Store
	mem        *memStore
	gateway    *Gateway
	route      *Route
	executions atomic.Int32
	// serve is the upstream. The default answers 200 with the number of the execution.
	serve func(w http.ResponseWriter, r *http.Request) error
	fail  Failure
	check func(w http.ResponseWriter, r *http.Request) (passed bool, err error) // before a replay
	incs  incidents
	log   logged.Recorder
	// providers take the place of the upstream on a route that names them.
	providers map[string]*scripted
}

// incidents counts what the observer is told.
type incidents struct {
	mu       sync.Mutex
	count    map[Incident]int
	verdicts map[string]int
	events   []Event
}

func (i *incidents) Request(v string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.verdicts[v]++
}
func (i *incidents) Waited(time.Duration)                  {}
func (i *incidents) Attempt(string, string, time.Duration) {}
func (i *incidents) Incident(n Incident) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.count[n]++
}

func (i *incidents) Event(e Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.events = append(i.events, e)
}

// told is how often the observer was told of an event.
func (i *incidents) told(name EventName) (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range i.events {
		if e.Name == name {
			n++
		}
	}
	return n
}

func (i *incidents) of(n Incident) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.count[n]
}

func newFixture(t testing.TB, c Config) *fixture {
	mem := newMemStore()
	f := newFixtureOn(t, mem, c)
	f.mem = mem
	return f
}

func newFixtureOn(t testing.TB, store keystore.Store, c Config) *fixture {
	t.Helper()
	f := &fixture{t: t, store: store}
	f.incs.count, f.incs.verdicts = make(map[Incident]int), make(map[string]int)
	f.gateway = NewGateway(store, GatewayOptions{Observer: &f.incs, Logger: f.log.Logger()})
	t.Cleanup(func() {
		f.gateway.Close()
		f.log.CheckAll(t, documented(t))
	})
	var err error
	if f.route, err = NewRoute(f.gateway, c); err != nil {
		t.Fatal(err)
	}
	return f
}

// documented is what may be logged.
func documented(t testing.TB) logged.Vocabulary {
	page.Do(func() { listed = logged.Documented(t, "..") })
	return listed
}

var (
	page   sync.Once
	listed logged.Vocabulary
)

func (f *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	n := f.executions.Add(1)
	if f.serve != nil {
		return f.serve(w, r)
	}
	_, err := fmt.Fprintf(w, "execution %d", n)
	return err
}

func (f *fixture) Inspect(error) Failure { return f.fail }

// result is what a client got.
type result struct {
	*httptest.ResponseRecorder
	err error
}

func (r result) code() string {
	var problem struct{ Code string }
	_ = json.Unmarshal(r.Body.Bytes(), &problem)
	return problem.Code
}

// request describes a request; the zero value is a POST with the key k1 and the
// body {"amount":1} by alice.
type request struct {
	method, url, key, owner, body, contentType string
	header                                     http.Header
	reader                                     io.Reader
	length                                     int64 // declared, of reader; zero: not
	early                                      bool  // before the end of its TLS handshake
	ctx                                        context.Context
}

func (f *fixture) do(q request) result {
	w := httptest.NewRecorder()
	err := f.deliver(w, q)
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		_ = refusal.Write(w)
		err = nil
	}
	return result{w, err}
}

// deliver is do with the client's connection given.
func (f *fixture) deliver(w http.ResponseWriter, q request) error {
	orDefault(&q.method, http.MethodPost)
	orDefault(&q.url, "http://api.example/pay")
	orDefault(&q.key, "k1")
	orDefault(&q.owner, "alice")
	orDefault(&q.body, `{"amount":1}`)
	orDefault(&q.contentType, "application/json")
	if q.ctx == nil {
		q.ctx = f.t.Context()
	}
	if q.reader == nil {
		q.reader = strings.NewReader(q.body)
	}
	r := httptest.NewRequestWithContext(q.ctx, q.method, q.url, q.reader)
	if q.length != 0 {
		r.ContentLength = q.length
	}
	if q.early {
		r.TLS = new(tls.ConnectionState)
	}
	r.Header.Set("Content-Type", q.contentType)
	if q.key != "none" {
		r.Header.Set(f.route.KeyHeader, q.key)
	}
	maps.Copy(r.Header, q.header)
	return f.route.Serve(w, r, Exchange{
		Owner:       func() string { return strings.TrimPrefix(q.owner, "nobody") },
		ReplayCheck: f.check,
		Next:        f.ServeHTTP,
		Provider:    f.provider,
	})
}

// provider is the one of this name; the fixture itself where the test names none.
func (f *fixture) provider(name string) Provider {
	if p := f.providers[name]; p != nil {
		return p
	}
	return f
}

func (f *fixture) wantExecutions(n int32) {
	f.t.Helper()
	if got := f.executions.Load(); got != n {
		f.t.Errorf("%d executions at the upstream, want %d", got, n)
	}
}

func (r result) want(t testing.TB, status int, code string) result {
	t.Helper()
	if r.err != nil || r.Code != status || r.code() != code {
		t.Errorf("got %d %q (error %v): %s; want %d %q", r.Code, r.code(), r.err, r.Body, status, code)
	}
	return r
}

func (r result) wantBody(t testing.TB, status int, body string, replayed bool) result {
	t.Helper()
	if r.err != nil || r.Code != status || r.Body.String() != body || (r.Header().Get(HeaderReplayed) == "true") != replayed {
		t.Errorf("got %d %q replayed=%q (error %v); want %d %q replayed=%t",
			r.Code, r.Body, r.Header().Get(HeaderReplayed), r.err, status, body, replayed)
	}
	return r
}
