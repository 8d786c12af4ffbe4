package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

// patterned returns bytes of which no two stretches are alike.
func patterned(size int, salt string) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%s%d;", salt, i)
	}
	return b.Bytes()[:size]
}

// A body is what has come, in whatever parts it does so, and stays so when others use
// the same memory.
func TestGathered(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 511, 512, 513, gatheredAlone - 1, gatheredAlone, gatheredAlone + 1, gatheredAlone + pieceSize, gatheredAlone + pieceSize + 1, 5 * pieceSize} {
		want := patterned(size, "a")
		for how, fill := range map[string]func(g *gathered, body []byte) error{
			"at once": func(g *gathered, body []byte) error {
				_, err := g.Write(body)
				return err
			},
			"in parts": func(g *gathered, body []byte) error {
				for part := 1; len(body) > 0; part = min(3*part, len(body)) {
					if n, err := g.Write(body[:part]); err != nil || n != part {
						return fmt.Errorf("wrote %d bytes: %w", n, err)
					}
					body = body[part:]
				}
				return nil
			},
			"read": func(g *gathered, body []byte) error {
				n, err := g.ReadFrom(iotest.HalfReader(bytes.NewReader(body)))
				if n != int64(len(body)) {
					return fmt.Errorf("read %d bytes: %w", n, err)
				}
				return err
			},
			"read to the end": func(g *gathered, body []byte) error { // with its last bytes a reader may say that they are
				_, err := g.ReadFrom(iotest.DataErrReader(bytes.NewReader(body)))
				return err
			},
		} {
			var g gathered
			if err := fill(&g, want); err != nil || g.size != size {
				t.Fatalf("%d bytes %s: gathered %d, %v", size, how, g.size, err)
			}
			got := g.take()
			if g.size != 0 || len(g.rest) != 0 {
				t.Errorf("%d bytes %s: some are left", size, how)
			}
			var other gathered
			_ = fill(&other, patterned(size, "b"))
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes %s: got others", size, how)
			}
			other.drop()
		}
	}
}

func TestGatheredFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var g gathered
	n, err := g.ReadFrom(io.MultiReader(bytes.NewReader(patterned(100_000, "a")), iotest.ErrReader(broken)))
	if n != 100_000 || !errors.Is(err, broken) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

// An answer of a length that nobody has said is kept, or passed on, as it came; and so
// is a request's body.
func TestBodiesOfUnknownLength(t *testing.T) {
	const limit = 100 << 10
	for _, size := range []int{10 << 10, limit, limit + 1, 300 << 10} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			bubble(t, Config{MaxResponseBody: limit, Buffer: 64 << 10}, func(t *testing.T, f *fixture) {
				answer, asked := string(patterned(size, "answer")), string(patterned(size, "asked"))
				f.serve = func(w http.ResponseWriter, r *http.Request) error {
					if got, err := io.ReadAll(r.Body); string(got) != asked || err != nil {
						t.Errorf("%d bytes: the upstream got %d others, %v", size, len(got), err)
					}
					for left := answer; left != ""; {
						n, err := io.WriteString(w, left[:min(7_000, len(left))])
						if err != nil {
							return err
						}
						left = left[n:]
					}
					return nil
				}
				q := func() request { return request{reader: strings.NewReader(asked)} }
				f.do(q()).wantBody(t, 200, answer, false)
				if size <= limit {
					f.do(q()).wantBody(t, 200, answer, true)
				} else {
					f.do(q()).want(t, 410, CodeResultNotKept)
				}
				f.wantExecutions(1)
			})
		})
	}
}

// BenchmarkReadBody reads a request's body that is not small.
func BenchmarkReadBody(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 200 << 10} {
		body := patterned(size, "a")
		for _, declared := range []int64{int64(size), -1} {
			b.Run(fmt.Sprintf("%dKiB/declared=%t", size>>10, declared > 0), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					got, err := readBody(bytes.NewReader(body), declared, DefaultBuffer, DefaultMaxRequestBody)
					if err != nil || got.size != int64(size) {
						b.Fatal(got.size, err)
					}
					got.release()
				}
			})
		}
	}
}
