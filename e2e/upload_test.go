package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// sink is an upstream that looks at bodies without holding them.
type sink struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string][]received
}

// received is a request whose whole body was read.
type received struct {
	declared, size int64
	sum            [sha256.Size]byte
}

func newSink(t *testing.T) *sink {
	t.Helper()
	s := &sink{seen: make(map[string][]received)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		got := received{declared: r.ContentLength, size: n}
		h.Sum(got.sum[:0])
		s.mu.Lock()
		defer s.mu.Unlock()
		key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
		s.seen[key] = append(s.seen[key], got)
	}))
	t.Cleanup(s.Close)
	return s
}

// site returns a site in front of it.
func (s *sink) site() site {
	return site{handler: "reverse_proxy " + s.Listener.Addr().String()}
}

func (s *sink) of(key string) []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[key]
}

// zeroes never end.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// upload sends a body without holding it. A negative length is not declared.
func (c *client) upload(ctx context.Context, key string, body io.Reader, length int64) (status int, err error) {
	req, err := c.request(ctx, post(key))
	if err != nil {
		return 0, err
	}
	req.Body, req.ContentLength = io.NopCloser(body), length
	resp, err := c.c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// peak is the most memory that the process has ever held, in bytes.
func (g *gateway) peak() int64 {
	g.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		g.t.Fatalf("gateway: its memory: %v", err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	field, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	kib, err := strconv.ParseInt(field, 10, 64)
	if err != nil {
		g.t.Fatalf("gateway: its memory: %v", err)
	}
	return kib << 10
}

// bodyFiles returns how many files with request bodies the process has open, and
// how many have a name.
func (g *gateway) bodyFiles() (open, named int) {
	g.t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", g.cmd.Process.Pid))
	if err != nil || len(fds) == 0 {
		g.t.Fatalf("gateway: its open files: %v", err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, g.tmp()) {
			open++
		}
	}
	return open, g.tmpFiles()
}

func (g *gateway) tmpFiles() int {
	g.t.Helper()
	entries, err := os.ReadDir(g.tmp())
	if err != nil {
		g.t.Fatalf("gateway: its temporary files: %v", err)
	}
	return len(entries)
}

// A large body passes through a file, and not through memory: 1 GiB needs little
// more than nothing. The upstream gets all of it, and no file is left.
func TestLargeUploadNeedsNoMemory(t *testing.T) {
	t.Parallel()
	const size, most = 1 << 30, 32 << 20
	up := newSink(t)
	g := startGateway(t, up.site().with("max_request_body", "2GiB"))
	c := g.client()
	send := func(key string, n, declared int64) {
		status, err := c.upload(t.Context(), key, io.LimitReader(zeroes{}, n), declared)
		if err != nil || status != http.StatusOK {
			t.Fatalf("%s: status %d, %v", key, status, err)
		}
		want := received{declared: n, size: n}
		h := sha256.New()
		_, _ = io.CopyN(h, zeroes{}, n)
		h.Sum(want.sum[:0])
		if got := up.of(key); len(got) != 1 || got[0] != want {
			t.Errorf("%s: the upstream got %+v, want %+v", key, got, want)
		}
		if open, named := g.bodyFiles(); open != 0 || named != 0 {
			t.Errorf("%s: %d files are open, %d have a name", key, open, named)
		}
	}
	send("small", 1<<20, 1<<20)
	before := g.peak()
	send("large", size, size)
	grown := g.peak() - before
	t.Logf("1 GiB: the gateway's memory has grown from %d by %d KiB at its peak", before>>10, grown>>10)
	if grown > most {
		t.Errorf("the gateway's memory has grown by %d MiB for a body of 1 GiB", grown>>20)
	}
	send("in-chunks", 100<<20, -1)
	if grown := g.peak() - before; grown > most {
		t.Errorf("the gateway's memory has grown by %d MiB for a body in chunks", grown>>20)
	}
}

// However a large upload ends in the middle, nothing of it is left behind, and
// nothing has happened: no claim, no execution.
func TestUploadThatIsCutLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	up := newSink(t)
	g := startGateway(t, up.site())
	c := g.client()
	// begin sends the first part of an upload, until it is in a file.
	begin := func(key string) (leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if status, err := c.upload(ctx, key, r, 10<<20); err == nil {
				t.Errorf("%s: answered with status %d", key, status)
			}
		}()
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the body is in a file without a name", func() bool {
			open, named := g.bodyFiles()
			return open == 1 && named == 0
		})
		return func() {
			cancel()
			w.Close()
			<-gone
		}
	}
	begin("aborted")()
	eventually(t, "the file of the client that left is closed", func() bool {
		open, named := g.bodyFiles()
		return open == 0 && named == 0
	})
	leave := begin("killed")
	g.kill()
	leave()
	if n := g.tmpFiles(); n != 0 {
		t.Errorf("%d files are left after the process was killed", n)
	}
	g.restart()
	for _, key := range []string{"aborted", "killed"} {
		if n := len(up.of(key)); n != 0 {
			t.Errorf("%s: executed %d times", key, n)
		}
		if status, err := c.upload(t.Context(), key, io.LimitReader(zeroes{}, 1<<20), 1<<20); err != nil || status != http.StatusOK {
			t.Errorf("%s, sent again: status %d, %v", key, status, err)
		}
		if n := len(up.of(key)); n != 1 {
			t.Errorf("%s, sent again: executed %d times", key, n)
		}
	}
}

// Every protocol has its own way to break off a body. Where its length was not
// announced, only that tells a part from the whole.
func TestUploadThatIsCutInEveryProtocol(t *testing.T) {
	t.Parallel()
	up := newSink(t)
	g, clients := everyProtocol(t, up.site())
	var keys []string
	for p, c := range clients {
		for _, size := range []int{1, 10_000, 1 << 20} {
			for _, declared := range []int64{-1, 10 << 20} {
				key := fmt.Sprintf("%s-%d-of-%d", p, size, declared)
				keys = append(keys, key)
				ctx, cancel := context.WithCancel(t.Context())
				r, w := io.Pipe()
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					if status, err := c.upload(ctx, key, r, declared); err == nil {
						t.Errorf("%s: answered with status %d", key, status)
					}
				}()
				if _, err := w.Write(make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the body is read", func() bool {
					open, _ := g.bodyFiles()
					return open > 0 || size < 1<<20 && g.stacks("proxy.readBody+") > 0
				})
				cancel()
				w.CloseWithError(io.ErrUnexpectedEOF)
				<-gone
				eventually(t, "the body is let go", func() bool {
					open, named := g.bodyFiles()
					return open == 0 && named == 0 && g.stacks("proxy.readBody+") == 0
				})
			}
		}
	}
	for _, key := range keys {
		if n := len(up.of(key)); n != 0 {
			t.Errorf("%s: executed %d times", key, n)
		}
		if status, err := clients[h1].upload(t.Context(), key, strings.NewReader("another"), -1); err != nil || status != http.StatusOK {
			t.Errorf("%s, sent again with another body: status %d, %v", key, status, err)
		}
	}
}

// A body that has no place to stay in is refused before anything has happened: no
// claim, no execution. Those that need no file are taken.
func TestUploadThatHasNoPlaceIsRefused(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up))
	c := g.client()
	large := func(of string) request {
		return post("large").as(func(r *request) { r.body = strings.Repeat(of, 1<<20) })
	}
	if err := os.Remove(g.tmp()); err != nil {
		t.Fatal(err)
	}
	refused := c.do(large("a"))
	wantRefusal(t, refused, http.StatusServiceUnavailable, "store-unavailable")
	retryAfter(t, refused)
	if !strings.Contains(refused.body, "no room for the request's body") || !strings.Contains(g.log(), "buffer request body: ") {
		t.Errorf("want it said what is the matter, got %s", refused.body)
	}
	up.want("large", 0)
	wantExecuted(t, c.do(post("small")))
	if err := os.Mkdir(g.tmp(), 0o700); err != nil {
		t.Fatal(err)
	}
	wantExecuted(t, c.do(large("b"))) // another request, so nothing stands for the first one
	up.want("large", 1)
}
