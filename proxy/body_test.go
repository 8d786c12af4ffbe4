package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestUnfinishedBodyClaimsNothing(t *testing.T) {
	bubble(t, Config{MaxRequestBody: 1000, Buffer: 100}, func(t *testing.T, f *fixture) {
		for _, sent := range []int{0, 50, 500} {
			r := f.do(request{reader: io.MultiReader(strings.NewReader(strings.Repeat("x", sent)), brokenReader{})})
			if !errors.Is(r.err, io.ErrUnexpectedEOF) {
				t.Errorf("got %v", r.err)
			}
		}
		f.do(request{body: strings.Repeat("x", 1001)}).want(t, 413, CodeRequestTooLarge)
		f.do(request{reader: io.LimitReader(zeroes{}, 1001)}).want(t, 413, CodeRequestTooLarge)
		if len(f.mem.records) != 0 {
			t.Error("a record was made")
		}
		f.wantExecutions(0)
		f.do(request{body: strings.Repeat("x", 1000)}).wantBody(t, 200, "execution 1", false)
	})
}

// brokenReader is the body of a client that leaves before its end.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { return len(p), nil }

func TestAttemptsGetTheWholeBody(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 99, 100, 101, 5000} {
		f := newFixture(t, Config{Buffer: 100})
		body := strings.Repeat("x", size)
		var got []string
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			b, err := io.ReadAll(r.Body)
			if err != nil || r.ContentLength != int64(size) || r.GetBody != nil {
				t.Errorf("length %d, GetBody %t, error %v", r.ContentLength, r.GetBody != nil, err)
			}
			got = append(got, string(b))
			w.WriteHeader(429)
			return nil
		}
		for range 2 {
			f.do(request{reader: strings.NewReader(body)})
		}
		if len(got) != 2 || got[0] != body || got[1] != body {
			t.Errorf("size %d: %d attempts, bodies differ", size, len(got))
		}
	}
}

// cutReader reports a cut connection by an error that wraps io.EOF, as servers
// and middleware may. Only a bare io.EOF is the end of a body.
type cutReader struct{}

func (cutReader) Read([]byte) (int, error) { return 0, fmt.Errorf("connection cut: %w", io.EOF) }

func TestBodyThatEndsTooSoonClaimsNothing(t *testing.T) {
	const declared = 5000
	for name, end := range map[string]io.Reader{"a wrapped EOF": cutReader{}, "a clean end": strings.NewReader("")} {
		// In memory, at the edge to the temporary file, and in it.
		for _, sent := range []int{0, 99, 100, 101, 4999} {
			t.Run(fmt.Sprintf("%s after %d bytes", name, sent), func(t *testing.T) {
				bubble(t, Config{Buffer: 100}, func(t *testing.T, f *fixture) {
					r := f.do(request{
						reader: io.MultiReader(strings.NewReader(strings.Repeat("x", sent)), end),
						length: declared,
					})
					if !errors.Is(r.err, ErrBodyUnfinished) {
						t.Errorf("got %d %s, error %v", r.Code, r.Body, r.err)
					}
					f.wantExecutions(0)
					if len(f.mem.ops) != 0 {
						t.Errorf("the store was asked: %v", f.mem.ops)
					}
				})
			})
		}
	}
}

// A chunked body has no declared length, so only the error tells its cut.
func TestChunkedBodyThatIsCutClaimsNothing(t *testing.T) {
	bubble(t, Config{Buffer: 100}, func(t *testing.T, f *fixture) {
		for _, sent := range []int{0, 99, 100, 101} {
			r := f.do(request{reader: io.MultiReader(strings.NewReader(strings.Repeat("x", sent)), cutReader{})})
			if !errors.Is(r.err, ErrBodyUnfinished) {
				t.Errorf("%d bytes: got %d %s, error %v", sent, r.Code, r.Body, r.err)
			}
		}
		f.wantExecutions(0)
		if len(f.mem.ops) != 0 {
			t.Errorf("the store was asked: %v", f.mem.ops)
		}
	})
}

// Recording an attempt's end can take as long as the store's outage; a large
// body must not be held for that long.
func TestBodyIsReleasedBeforeTheEndIsRecorded(t *testing.T) {
	for name, buffer := range map[string]int64{"in memory": 1000, "in a file": 5} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Buffer: buffer}, func(t *testing.T, f *fixture) {
				var body *requestBody
				f.serve = func(_ http.ResponseWriter, r *http.Request) error {
					body = r.Body.(*bodyReader).body
					f.mem.fail(func(string) error { return errInjected }, nil)
					return nil
				}
				f.do(request{}).wantBody(t, 200, "", false)
				body.mu.Lock()
				if body.users != 0 || body.file != nil {
					t.Errorf("%d still use the body (file open: %t)", body.users, body.file != nil)
				}
				body.mu.Unlock()
				f.mem.fail(nil, nil)
				time.Sleep(time.Minute)
				f.do(request{}).wantBody(t, 200, "", true)
			})
		})
	}
}

// A plain handler may put another body, or none, in the place of the request's.
func TestBodyThatAHandlerTakesAwayIsReleased(t *testing.T) {
	for name, other := range map[string]io.ReadCloser{"none": nil, "another": http.NoBody} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Buffer: 5}, func(t *testing.T, f *fixture) {
				var body *requestBody
				f.serve = func(_ http.ResponseWriter, r *http.Request) error {
					body = r.Body.(*bodyReader).body
					r.Body = other
					return nil
				}
				f.do(request{}).wantBody(t, 200, "", false)
				body.mu.Lock()
				defer body.mu.Unlock()
				if body.users != 0 || body.file != nil {
					t.Errorf("%d still use the body (file open: %t)", body.users, body.file != nil)
				}
			})
		})
	}
}
