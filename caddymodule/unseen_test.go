package caddymodule

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

func init() { caddy.RegisterModule(new(asksFirst)) }

// asksFirst asks a service that may be down about each request, and goes on all the same.
type asksFirst struct {
	URL string `json:"url"`
}

func (*asksFirst) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.idempotency_test_asks_first", New: func() caddy.Module { return new(asksFirst) }}
}

func (a *asksFirst) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, a.URL, nil)
	if err != nil {
		return err
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
	}
	return next.ServeHTTP(w, r)
}

// That somebody's question found no connection doesn't say that FastCGI, which tells
// nothing of its own, has sent nothing.
func TestRefusedQuestionIsNoProofForFastCGI(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var executions atomic.Int32
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
				if err == io.EOF { //nolint:errorlint // of the connection itself
					break
				}
				all = append(all, piece[:n]...)
			}
			executions.Add(1)
			c.Close()
		}
	}()
	config, err := adapt(site(t, "idempotency {\nowner shared\n}\nroute {\nrespond FIRST\nreverse_proxy "+l.Addr().String()+" {\ntransport fastcgi\n}\n}"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t) })
	config = []byte(strings.Replace(string(config), `{"body":"FIRST","handler":"static_response"}`,
		`{"handler":"idempotency_test_asks_first","url":"http://127.0.0.1:`+testport.Take(t)+`"}`, 1))
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
}
