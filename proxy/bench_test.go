package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// mapStore is a store that does next to nothing, so that what is measured is what
// happens to a request around it.
type mapStore struct {
	keystore.Store
	mu   sync.Mutex
	jobs map[keystore.Name]*keystore.Job
}

func (s *mapStore) Create(_ context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if present := s.jobs[j.Name]; present != nil {
		return present, false, nil
	}
	s.jobs[j.Name] = j
	return nil, true, nil
}

func (s *mapStore) Swap(_ context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if present := s.jobs[j.Name]; present == nil || present.WriteID != expected {
		return present, false, nil
	}
	s.jobs[j.Name] = j
	return nil, true, nil
}

func (s *mapStore) Now() keystore.Time { return 1_700_000_000_000 }

// benched is a route in front of an upstream that answers with 1 KiB.
type benched struct {
	route *Route
	asked []byte
	body  []byte
}

func newBenched(tb testing.TB) *benched {
	g := NewGateway(&mapStore{jobs: make(map[keystore.Name]*keystore.Job)}, GatewayOptions{})
	tb.Cleanup(g.Close)
	rt, err := NewRoute(g, Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return &benched{
		route: rt, body: bytes.Repeat([]byte("x"), 1<<10),
		asked: []byte(`{"amount":1000,"currency":"eur","customer":"cus_4f1d9a","description":"order 4711"}`),
	}
}

func (b *benched) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	_, _ = io.Copy(io.Discard, r.Body)
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{"1024"}
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(b.body)
	return err
}

func (b *benched) Inspect(error) Failure { return Failure{} }

// sink is a client that takes what it gets.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }

// request makes one request with a key, and returns whether its answer was a replay.
func (b *benched) request(tb testing.TB, key string) (replayed bool) {
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/pay", bytes.NewReader(b.asked))
	r.Header["Content-Type"] = []string{"application/json"}
	r.Header["Idempotency-Key"] = []string{key}
	w := &sink{header: make(http.Header)}
	err := b.route.Serve(w, r, Exchange{
		Owner:    func() string { return "alice" },
		Next:     b.ServeHTTP,
		Provider: func(string) Provider { return b },
	})
	if err != nil || w.status != http.StatusOK {
		tb.Fatalf("status %d, error %v", w.status, err)
	}
	return w.header.Get(HeaderReplayed) == "true"
}

// BenchmarkFresh is a request with a new key, apart from store and upstream.
func BenchmarkFresh(b *testing.B) {
	t := newBenched(b)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if t.request(b, strconv.Itoa(n)) {
			b.Fatal("a replay")
		}
	}
}

// BenchmarkReplay is a request whose answer is there.
func BenchmarkReplay(b *testing.B) {
	t := newBenched(b)
	t.request(b, "k")
	b.ReportAllocs()
	for b.Loop() {
		if !t.request(b, "k") {
			b.Fatal("not a replay")
		}
	}
}

// BenchmarkRequest is what the two above have in common with every request, and is
// none of the gateway's.
func BenchmarkRequest(b *testing.B) {
	t := newBenched(b)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		key := strconv.Itoa(n)
		r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/pay", bytes.NewReader(t.asked))
		r.Header["Content-Type"] = []string{"application/json"}
		r.Header["Idempotency-Key"] = []string{key}
		if err := t.ServeHTTP(&sink{header: make(http.Header)}, r); err != nil {
			b.Fatal(err)
		}
	}
}
