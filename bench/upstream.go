package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const roleUpstream = "upstream"

// keyHeader is the header that carries the key, for all that is measured.
const keyHeader = "Idempotency-Key"

// upstream executes requests: it counts them, by their keys, and answers.
//
//	/answer/<n>   n bytes, which begin with the key
//	/unknown      502, which says nothing of whether it was executed
//	/hold/<n>     as answer, once /release was asked for
type upstream struct {
	executions, repeated atomic.Int64
	shards               [64]shard

	mu   sync.Mutex
	held int
	free chan struct{} // closed by release
}

type shard struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// counted is what an upstream says of its executions.
type counted struct {
	Executions, Repeated, Held int64
}

// serveUpstream runs the upstream until its standard input ends.
func serveUpstream() error {
	u := &upstream{free: make(chan struct{})}
	u.reset()
	return serveHTTP(u)
}

// serveHTTP serves on a free port, which it says on the standard output.
func serveHTTP(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go endWithParent()
	return http.Serve(l, h) //nolint:gosec // the clients are our own
}

// endWithParent ends the process when its standard input does: when whoever has
// started it is gone.
func endWithParent() {
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

func (u *upstream) reset() {
	for i := range u.shards {
		s := &u.shards[i]
		s.mu.Lock()
		s.seen = make(map[string]struct{})
		s.mu.Unlock()
	}
	u.executions.Store(0)
	u.repeated.Store(0)
}

// ServeHTTP implements http.Handler.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what, n, _ := strings.Cut(r.URL.Path[1:], "/")
	switch what {
	case "answer":
		u.answer(w, r, n)
	case "unknown":
		u.count(r.Header.Get(keyHeader))
		w.WriteHeader(http.StatusBadGateway)
	case "hold":
		u.hold(r)
		u.answer(w, r, n)
	case "release":
		u.mu.Lock()
		close(u.free)
		u.free = make(chan struct{})
		u.mu.Unlock()
	case "counted":
		u.mu.Lock()
		c := counted{u.executions.Load(), u.repeated.Load(), int64(u.held)}
		u.mu.Unlock()
		_ = json.NewEncoder(w).Encode(c)
	case "reset":
		u.reset()
	default:
		http.NotFound(w, r)
	}
}

func (u *upstream) hold(r *http.Request) {
	u.mu.Lock()
	u.held++
	free := u.free
	u.mu.Unlock()
	select {
	case <-free:
	case <-r.Context().Done():
	}
	u.mu.Lock()
	u.held--
	u.mu.Unlock()
}

// tail is what answers consist of behind their key. Not one byte repeated, so that
// nobody can compress it away by accident.
var tail = func() []byte {
	b := make([]byte, 0, 1<<20)
	for i := 0; len(b) < cap(b); i++ {
		b = strconv.AppendInt(b, int64(i)*2654435761, 36)
	}
	return b[:1<<20]
}()

func (u *upstream) answer(w http.ResponseWriter, r *http.Request, n string) {
	key := r.Header.Get(keyHeader)
	u.count(key)
	size, err := strconv.Atoi(n)
	if err != nil || size < len(key) || size > len(tail) {
		http.Error(w, "no such size", http.StatusBadRequest)
		return
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{n}
	_, _ = w.Write([]byte(key))
	_, _ = w.Write(tail[len(key):size])
}

func (u *upstream) count(key string) {
	u.executions.Add(1)
	if key == "" {
		return
	}
	s := &u.shards[key[len(key)-1]%64]
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.seen[key]; seen {
		u.repeated.Add(1)
	}
	s.seen[key] = struct{}{}
}
