package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"
)

// seenHint is what a client saw of an informational answer.
type seenHint struct {
	status int
	header http.Header
}

// Informational answers reach the client when they come, and are nothing of the
// answer: neither their status nor their header shows in it or in a replay.
func TestREP16HintsPassAndDoNotStick(t *testing.T) {
	t.Parallel()
	for proto, major := range map[string]int{"HTTP/1.1": 1, "HTTP/2": 2} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Config{})
			release := make(chan struct{})
			protected := f.route.Middleware(func(*http.Request) string { return "alice" },
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					f.executions.Add(1)
					_, _ = io.Copy(io.Discard, r.Body)
					// As reverse_proxy does it, for one hint after the other.
					for status, link := range map[int]string{102: "", 103: "</style.css>; rel=preload"} {
						if link != "" {
							w.Header().Set("Link", link)
						}
						w.Header().Set(HeaderReplayed, "forged")
						w.WriteHeader(status)
						clear(w.Header())
					}
					w.WriteHeader(http.StatusContinue) // the body was read by then
					<-release
					http.Error(w, "gone", http.StatusNotFound)
				}))
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.ProtoMajor != major {
					t.Errorf("spoken to in %s", r.Proto)
				}
				w.Header().Set("X-Outer", "1")
				protected.ServeHTTP(w, r)
			}))
			server.EnableHTTP2 = major == 2
			server.StartTLS()
			t.Cleanup(server.Close)
			c := server.Client()
			do := func(hints chan<- seenHint) *http.Response {
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
						hints <- seenHint{status, http.Header(header)}
						return nil
					},
				})
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("x"))
				if err != nil {
					t.Error(err)
					return nil
				}
				req.Header.Set("Idempotency-Key", "k")
				resp, err := c.Do(req)
				if err != nil {
					t.Error(err)
					return nil
				}
				resp.Body.Close()
				return resp
			}
			hints, answered := make(chan seenHint, 10), make(chan *http.Response, 1)
			go func() { answered <- do(hints) }()
			for range 2 {
				h := <-hints // before the upstream answers
				if h.header.Get("X-Outer") != "" || h.header.Get(HeaderReplayed) != "" {
					t.Errorf("%d with %v", h.status, h.header)
				}
				if (h.status == 103) != (h.header.Get("Link") != "") {
					t.Errorf("%d with the link %q", h.status, h.header.Get("Link"))
				}
			}
			close(release)
			for what, resp := range map[string]*http.Response{"first": <-answered, "replay": do(hints)} {
				if resp == nil {
					continue
				}
				if resp.StatusCode != 404 || resp.Header.Get("Link") != "" || resp.Header.Get("X-Outer") != "1" {
					t.Errorf("%s: %d %v", what, resp.StatusCode, resp.Header)
				}
			}
			if len(hints) != 0 {
				t.Errorf("one hint too many: %+v", <-hints)
			}
			f.wantExecutions(1)
		})
	}
}

// HTTP/1.0 knows no informational answers: to such a client one would be the answer.
func TestREP16NoHintsForHTTP10(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = hinting
		w := &hinted{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/x", strings.NewReader("x"))
		r.ProtoMajor, r.ProtoMinor = 1, 0
		r.Header.Set(f.route.KeyHeader, "k1")
		err := f.route.Serve(w, r, Exchange{Owner: func() string { return "alice" }, Provider: func(string) Provider { return f }})
		if err != nil || len(w.hints) != 0 {
			t.Errorf("hints %v, error %v", w.hints, err)
		}
		result{w.ResponseRecorder, nil}.wantBody(t, 200, "done", false)
	})
}

func hinting(w http.ResponseWriter, _ *http.Request) error {
	for range 100 {
		w.WriteHeader(http.StatusEarlyHints)
	}
	_, err := io.WriteString(w, "done")
	return err
}

// hinted is a client that takes hints only when it is woken.
type hinted struct {
	*httptest.ResponseRecorder
	wake  <-chan struct{}
	hints []int
}

func (h *hinted) WriteHeader(status int) {
	if status < 200 {
		<-h.wake
		h.hints = append(h.hints, status)
		return
	}
	h.ResponseRecorder.WriteHeader(status)
}

// A client that does not take hints, or has gone, keeps nobody from answering.
func TestREP16HintsWaitForNobody(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = hinting
		wake := make(chan struct{})
		slow := &hinted{ResponseRecorder: httptest.NewRecorder(), wake: wake}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = f.deliver(slow, request{})
		}()
		time.Sleep(time.Second)
		f.do(request{}).wantBody(t, 200, "done", true)
		close(wake)
		<-done
		if n := len(slow.hints); n == 0 || n == 100 {
			t.Errorf("%d hints", n)
		}
		result{slow.ResponseRecorder, nil}.wantBody(t, 200, "done", false)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f.do(request{key: "k2", ctx: ctx})
		f.wantExecutions(2)
	})
}

// Where nothing goes to the client before its answer has held, no hint does either: it
// could be of an attempt that breaks its contract.
func TestREP16NoHintsUnderAContract(t *testing.T) {
	bubble(t, Config{Contract: chargeContract(t, ContractRules{})}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Content-Type", "application/json")
			_, err := io.WriteString(w, `{"id":"ch_1","amount":1}`)
			return err
		}
		wake := make(chan struct{})
		close(wake)
		w := &hinted{ResponseRecorder: httptest.NewRecorder(), wake: wake}
		if err := f.deliver(w, request{}); err != nil || len(w.hints) != 0 {
			t.Errorf("hints %v, error %v", w.hints, err)
		}
		result{w.ResponseRecorder, nil}.wantBody(t, 200, `{"id":"ch_1","amount":1}`, false)
	})
}
