package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// mapStore is a store that does next to nothing, so that what is measured is what
// happens to a request around it.
type mapStore struct {
	keystore.Store
	forgets bool // what is completed, so that the heap does not grow with each request
	mu      sync.Mutex
	jobs    map[keystore.Name]*keystore.Job
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
	if s.jobs[j.Name] = j; s.forgets {
		delete(s.jobs, j.Name)
	}
	return nil, true, nil
}

func (s *mapStore) List(context.Context, string, int) ([]*keystore.Job, string, error) {
	return nil, "", nil
}

func (s *mapStore) Now() keystore.Time { return 1_700_000_000_000 }

// benched is a route in front of an upstream that answers with 1 KiB.
type benched struct {
	route *Route
	asked []byte
	body  []byte
	depth int // how many handlers there are before the upstream
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
	return deep(b.depth, func() error { return b.answer(w, r) })
}

func (b *benched) answer(w http.ResponseWriter, r *http.Request) error {
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
	t.route.gateway.store.(*mapStore).forgets = true
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if t.request(b, strconv.Itoa(n)) {
			b.Fatal("a replay")
		}
	}
}

// BenchmarkReplay is a request whose answer is in the store, BenchmarkReplayFromMemory
// one whose answer is still known from the last time.
func BenchmarkReplay(b *testing.B) { benchmarkReplay(b, newBenched(b)) }

func BenchmarkReplayFromMemory(b *testing.B) {
	t := newBenched(b)
	t.route.known = newCache(1<<20, time.Hour)
	benchmarkReplay(b, t)
}

func benchmarkReplay(b *testing.B, t *benched) {
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
		t.bare(b, strconv.Itoa(n))
	}
}

// bare makes one request of the upstream itself.
func (b *benched) bare(tb testing.TB, key string) {
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/pay", bytes.NewReader(b.asked))
	r.Header["Content-Type"] = []string{"application/json"}
	r.Header["Idempotency-Key"] = []string{key}
	if err := b.ServeHTTP(&sink{header: make(http.Header)}, r); err != nil {
		tb.Fatal(err)
	}
}

// The gateway's own allocations for a request, apart from store and upstream. They
// don't vary with the machine; more of them than this have to be worth it.
func TestAllocations(t *testing.T) {
	const (
		mostFresh  = 92
		mostReplay = 21
	)
	b := newBenched(t)
	n := 0
	unprotected := testing.AllocsPerRun(200, func() {
		n++
		b.bare(t, strconv.Itoa(n))
	})
	fresh := testing.AllocsPerRun(200, func() {
		n++
		if b.request(t, strconv.Itoa(n)) {
			t.Error("a replay")
		}
	}) - unprotected
	b.request(t, "again")
	replay := testing.AllocsPerRun(200, func() {
		if !b.request(t, "again") {
			t.Error("not a replay")
		}
	}) - unprotected
	t.Logf("%.0f allocations for a fresh request, %.0f for a replay", fresh, replay)
	if fresh > mostFresh || replay > mostReplay {
		t.Errorf("%.0f allocations for a fresh request, at most %d are allowed; %.0f for a replay, at most %d", fresh, mostFresh, replay, mostReplay)
	}
}

// BenchmarkStack is a fresh request whose attempt goes through many handlers, in
// goroutines that are used again, and in new ones.
func BenchmarkStack(b *testing.B) {
	over := make(chan struct{})
	close(over)
	for name, ended := range map[string]<-chan struct{}{"used again": nil, "new": over} {
		b.Run(name, func(b *testing.B) {
			t := newBenched(b)
			t.depth = 24
			if ended != nil {
				t.route.gateway.workers.ended = ended
			}
			for n := 0; b.Loop(); n++ {
				t.request(b, strconv.Itoa(n))
			}
		})
	}
}

// deep takes about a kilobyte of stack for each level.
func deep(level int, f func() error) error {
	var room [1 << 10]byte
	if level > 0 {
		room[level%len(room)] = byte(level)
		err := deep(level-1, f)
		runtime.KeepAlive(&room)
		return err
	}
	return f()
}

// BenchmarkComposed is what it costs to notice that somebody puts hooks over the
// attempt's.
func BenchmarkComposed(b *testing.B) {
	t := &trace{tooLate: func() bool { return false }}
	ctx := t.with(b.Context())
	hooks := new(httptrace.ClientTrace)
	b.ReportAllocs()
	for b.Loop() {
		httptrace.WithClientTrace(ctx, hooks)
		*hooks = httptrace.ClientTrace{}
	}
	if t.untold.Load() == 0 {
		b.Fatal("not noticed")
	}
}

// BenchmarkCollect is one cycle of the collector beside 5,000 jobs in memory that nobody
// asks for, as they are kept and as they would be otherwise.
func BenchmarkCollect(b *testing.B) {
	for name, unpacked := range map[string]bool{"records": false, "jobs": true} {
		b.Run(name, func(b *testing.B) {
			t := newBenched(b)
			for n := range 5000 {
				t.request(b, strconv.Itoa(n))
			}
			store := t.route.gateway.store.(*mapStore)
			known := newCache(1<<30, time.Hour)
			for name, job := range store.jobs {
				known.put(job, 0, time.Now())
				if unpacked {
					known.get(name, 0, 0)
				}
			}
			clear(store.jobs)
			for b.Loop() {
				runtime.GC()
			}
			runtime.KeepAlive(known)
		})
	}
}
