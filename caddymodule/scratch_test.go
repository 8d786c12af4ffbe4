package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

type countHandler struct{ Status string `json:"status"` }

var counted2 = map[string]int{}

func (countHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.countx", New: func() caddy.Module { return new(countHandler) }}
}
func (countHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	counted2[r.Header.Get("Idempotency-Key")]++
	w.Header().Set("X-Accel-Redirect", "/file")
	w.WriteHeader(200)
	io.WriteString(w, "done")
	return nil
}
func init() {
	caddy.RegisterModule(countHandler{})
	httpcaddyfile.RegisterHandlerDirective("countx", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return countHandler{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("countx", httpcaddyfile.Before, "respond")
}

func wrapJSON(t *testing.T, config string, errs string) []byte {
	j, err := adapt(config)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	json.Unmarshal(j, &c)
	srv := c["apps"].(map[string]any)["http"].(map[string]any)["servers"].(map[string]any)["srv0"].(map[string]any)
	var e any
	if err := json.Unmarshal([]byte(errs), &e); err != nil {
		t.Fatal(err)
	}
	srv["routes"] = []any{map[string]any{"handle": []any{map[string]any{"handler": "subroute", "routes": srv["routes"], "errors": map[string]any{"routes": e}}}}}
	out, _ := json.Marshal(c)
	return out
}

func loadJSON(t *testing.T, c []byte) {
	t.Cleanup(func() { stop(t) })
	if err := caddy.Load(c, true); err != nil {
		t.Fatal(err)
	}
}

func TestScratchSubrouteErrors(t *testing.T) {
	u, backup := newUpstream(t), newUpstream(t)
	closed := "127.0.0.1:" + testport.Take(t)
	errs := `[{"handle":[{"handler":"reverse_proxy","upstreams":[{"dial":"` + backup.Listener.Addr().String() + `"}]}]}]`
	loadJSON(t, wrapJSON(t, site(t, `
	idempotency {
		owner shared
		methods DELETE
		replay_check {
			error 402
		}
	}
	handle /gone/* {
		reverse_proxy `+closed+`
	}
	handle {
		reverse_proxy `+u.Listener.Addr().String()+`
	}`), errs))
	for _, c := range [][2]string{{"/die", "die"}, {"/gone/x", "gone"}, {"/pay", "check"}} {
		for range 2 {
			a := askByDelete(t, c[0], c[1])
			fmt.Println(c, a.status, a.body[:min(len(a.body), 60)])
		}
		fmt.Println(c, "upstream", u.executions(c[1]), "backup", backup.executions(c[1]))
	}
}

func TestScratchIntercept(t *testing.T) {
	u, backup := newUpstream(t), newUpstream(t)
	load(t, site(t, `
	route {
	intercept {
		@bad status 5xx 4xx
		handle_response @bad {
			reverse_proxy `+backup.Listener.Addr().String()+`
		}
	}
	idempotency {
		owner shared
		methods DELETE
	}
	reverse_proxy `+u.Listener.Addr().String()+`
	}`))
	for _, c := range [][2]string{{"/die", "die"}} {
		for range 3 {
			a := askByDelete(t, c[0], c[1])
			fmt.Println(c, a.status, a.body[:min(len(a.body), 60)], a.header)
		}
		fmt.Println(c, "upstream", u.executions(c[1]), "backup", backup.executions(c[1]))
	}
}

func TestScratchInterceptInside(t *testing.T) {
	for name, x := range map[string]string{
		"sendfile": "rewrite * {resp.header.X-Accel-Redirect}\nroot * /nonexistent\nfile_server",
		"error":    "error 404",
		"error503":    "error 503",
	} {
	load(t, site(t, `
	idempotency {
		owner shared
	}
	intercept {
		@x header X-Accel-Redirect *
		handle_response @x {
			`+x+`
		}
	}
	countx
	`))
	for range 3 {
		a, err := send(t.Context(), "/pay", name)
		fmt.Println(name, a.status, a.body[:min(len(a.body), 60)], err)
	}
	fmt.Println(name, "executions", counted2[name])
	}
}
var _ = strings.Cut
