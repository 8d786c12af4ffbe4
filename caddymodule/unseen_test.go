package caddymodule

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

func init() { caddy.RegisterModule(new(asksFirst)) }

// asksFirst asks a service that may be down about each request, and goes on all the
// same, unless it is strict.
type asksFirst struct {
	URL    string `json:"url"`
	Strict bool   `json:"strict"`
}

func (*asksFirst) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.idempotency_test_asks_first", New: func() caddy.Module { return new(asksFirst) }}
}

func (a *asksFirst) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, a.URL, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	switch {
	case err == nil:
		resp.Body.Close()
	case a.Strict:
		return caddyhttp.Error(http.StatusBadGateway, err)
	}
	return next.ServeHTTP(w, r)
}

// That somebody's question found no connection doesn't say that FastCGI, which tells
// nothing of its own, has sent nothing: whether it was asked before or after that.
func TestRefusedQuestionIsNoProofForFastCGI(t *testing.T) {
	for name, c := range map[string]struct {
		site   string
		strict bool
		answer string
	}{
		"before it": {"route {\nrespond ASKS\nreverse_proxy UPSTREAM {\ntransport fastcgi\n}\n}", false, ""},
		"of an answer": {
			"reverse_proxy UPSTREAM {\ntransport fastcgi\nhandle_response {\nrespond ASKS\n}\n}",
			true, "Status: 201 Created\r\nContent-Length: 0\r\n\r\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			upstream, executions := fastCGI(t, c.answer)
			config, err := adapt(site(t, "idempotency {\nowner shared\n}\n"+strings.ReplaceAll(c.site, "UPSTREAM", upstream)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stop(t) })
			config = []byte(strings.Replace(string(config), `{"body":"ASKS","handler":"static_response"}`,
				`{"handler":"idempotency_test_asks_first","url":"http://127.0.0.1:`+testport.Take(t)+`","strict":`+strconv.FormatBool(c.strict)+`}`, 1))
			if err := caddy.Load(config, true); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if a := post(t, "/pay", "k"); a.code() != "outcome-unknown" {
					t.Errorf("got %+v", a)
				}
			}
			if n := executions.Load(); n != 1 {
				t.Errorf("%d executions", n)
			}
		})
	}
}

// fastCGI is a server that gives each request the same answer; none at all if that is
// empty.
func fastCGI(t *testing.T, answer string) (addr string, executions *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	executions = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			endOfBody := []byte{1, 5, 0, 1, 0, 0, 0, 0}
			var all []byte
			for piece := make([]byte, 4<<10); !bytes.HasSuffix(all, endOfBody); {
				n, err := c.Read(piece)
				all = append(all, piece[:n]...)
				if err != nil {
					break
				}
			}
			executions.Add(1)
			if answer != "" {
				record := append([]byte{1, 6, 0, 1, 0, byte(len(answer)), 0, 0}, answer...)
				_, _ = c.Write(append(record, 1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
			}
			c.Close()
		}
	}()
	return l.Addr().String(), executions
}
