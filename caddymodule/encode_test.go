package caddymodule

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// askWith sends the request with the key k by a client that understands the encoding,
// or none, and gets the answer as it came.
func askWith(t *testing.T, encoding string) (res *http.Response, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/pay", strings.NewReader("amount=10"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}, Timeout: patience}
	if res, err = client.Do(req); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	return res, body
}

// decoded takes the encoding off a body that its header names.
func decoded(t *testing.T, res *http.Response, body []byte) string {
	t.Helper()
	switch got := res.Header.Get("Content-Encoding"); got {
	case "":
		return string(body)
	case "gzip":
		r, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatalf("said to be gzip: %v", err)
		}
		all, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("said to be gzip: %v", err)
		}
		return string(all)
	default:
		t.Fatalf("encoded as %q", got)
		return ""
	}
}

// A client gets an answer that it can read, whatever the first one could read,
// wherever the site compresses.
func TestREP05EveryClientCanReadItsReplay(t *testing.T) {
	want := strings.Repeat("z", 5000)
	for name, block := range map[string]string{
		"compressed around": "encode gzip\nidempotency {\nowner shared\n}\nreverse_proxy %s",
		"compressed within": "route {\nidempotency {\nowner shared\n}\nencode gzip\nreverse_proxy %s\n}",
		"not compressed":    "idempotency {\nowner shared\n}\nreverse_proxy %s",
	} {
		for _, first := range []string{"gzip", "", "identity"} {
			t.Run(name+", first "+first, func(t *testing.T) {
				var executions atomic.Int32
				up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					executions.Add(1)
					w.Header().Set("Content-Type", "text/plain")
					w.Header().Add("Vary", "Origin")
					_, _ = io.WriteString(w, want)
				}))
				t.Cleanup(up.Close)
				load(t, site(t, fmt.Sprintf(block, up.Listener.Addr())))
				for i, encoding := range []string{first, "gzip", "", "gzip, br", "identity"} {
					res, body := askWith(t, encoding)
					if got := decoded(t, res, body); got != want {
						t.Errorf("answer %d to %q: %d bytes", i+1, encoding, len(got))
					}
					if encoded := res.Header.Get("Content-Encoding") != ""; encoded && !strings.Contains(encoding, "gzip") {
						t.Errorf("answer %d to %q is encoded", i+1, encoding)
					} else if name == "compressed around" && strings.Contains(encoding, "gzip") && !encoded {
						t.Errorf("answer %d to %q is not encoded", i+1, encoding)
					}
					vary := strings.Join(res.Header.Values("Vary"), ",")
					if !strings.Contains(vary, "Origin") || strings.Count(vary, "Accept-Encoding") > 1 {
						t.Errorf("answer %d to %q varies by %q", i+1, encoding, vary)
					}
					if (res.Header.Get("Idempotent-Replayed") != "") != (i > 0) {
						t.Errorf("answer %d to %q: %v", i+1, encoding, res.Header)
					}
				}
				if n := executions.Load(); n != 1 {
					t.Errorf("%d executions", n)
				}
			})
		}
	}
}

// What an answer's header says of its encoding is true of its bytes, also where
// the upstream sends it encoded to everybody.
func TestREP06EncodingAndBytesAgree(t *testing.T) {
	want := strings.Repeat("z", 5000)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = io.WriteString(w, want)
	_ = w.Close()
	for name, encode := range map[string]string{"alone": "", "with encode around": "encode gzip"} {
		t.Run(name, func(t *testing.T) {
			var executions atomic.Int32
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				executions.Add(1)
				w.Header().Set("Content-Type", "text/plain")
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(packed.Bytes())
			}))
			t.Cleanup(up.Close)
			load(t, site(t, encode+"\nidempotency {\nowner shared\n}\nreverse_proxy "+up.Listener.Addr().String()))
			for i, encoding := range []string{"gzip", "", "gzip"} {
				res, body := askWith(t, encoding)
				if got := decoded(t, res, body); got != want {
					t.Errorf("answer %d: %d bytes", i+1, len(got))
				}
				if n := res.ContentLength; n >= 0 && n != int64(len(body)) {
					t.Errorf("answer %d: %d bytes of %d", i+1, len(body), n)
				}
			}
			if n := executions.Load(); n != 1 {
				t.Errorf("%d executions", n)
			}
		})
	}
}
