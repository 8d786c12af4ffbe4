package caddymodule

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

func init() { caddy.RegisterModule(inProcess{}) }

// inProcess carries requests out itself, as an application server does that is part of
// Caddy's process, and leaves a file to Caddy to be sent.
type inProcess struct{}

var carriedOut struct {
	sync.Mutex
	times map[string]int
}

func (inProcess) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.idempotency_test_in_process", New: func() caddy.Module { return new(inProcess) }}
}

func (inProcess) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	carriedOut.Lock()
	defer carriedOut.Unlock()
	if carriedOut.times == nil {
		carriedOut.times = make(map[string]int)
	}
	carriedOut.times[r.Header.Get("Idempotency-Key")]++
	w.Header().Set("X-Accel-Redirect", "/receipt.pdf")
	w.WriteHeader(http.StatusCreated)
	return nil
}

// An error that intercept makes of an answer is no proof that nothing has happened,
// although no connection was sought, or none was obtained.
func TestErrorsMadeOfAnswersProveNothing(t *testing.T) {
	gone := "127.0.0.1:" + testport.Take(t)
	for name, handle := range map[string]string{
		"no-such-file": "root " + t.TempDir() + "\nrewrite {resp.header.X-Accel-Redirect}\nmethod GET\nfile_server",
		"not-by-post":  "root " + t.TempDir() + "\nfile_server",
		"error":        "error 503",
		"refused":      "reverse_proxy " + gone,
		"fastcgi":      "reverse_proxy " + gone + " {\ntransport fastcgi\n}",
	} {
		t.Run(name, func(t *testing.T) {
			config, err := adapt(site(t, "idempotency {\nowner shared\n}\nintercept {\n@file header X-Accel-Redirect *\nhandle_response @file {\n"+handle+"\n}\n}\nrespond SELF"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stop(t) })
			config = []byte(strings.Replace(string(config), `{"body":"SELF","handler":"static_response"}`, `{"handler":"idempotency_test_in_process"}`, 1))
			if err := caddy.Load(config, true); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if a := post(t, "/pay", name); a.status != http.StatusGatewayTimeout || a.code() != "outcome-unknown" {
					t.Errorf("got %+v", a)
				}
			}
			carriedOut.Lock()
			defer carriedOut.Unlock()
			if n := carriedOut.times[name]; n != 1 {
				t.Errorf("%d executions", n)
			}
		})
	}
}
