package caddymodule

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// askByDelete sends a request that has no body, so that it could be sent on as it is.
func askByDelete(t *testing.T, path, key string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	return once(t, req)
}

// What a named route does counts as what stands in the error route itself, also where
// one invokes another, or itself.
func TestErrorRoutesPassNothingOnByNamedRoutes(t *testing.T) {
	u, backup := newUpstream(t), newUpstream(t)
	config := site(t, protect(u, "owner shared")+`
	handle_errors {
		invoke outer
	}`)
	options, rest, _ := strings.Cut(config, "\n}\n")
	load(t, options+`
}
&(outer) {
	@never header X-Never *
	invoke @never outer
	invoke inner
}
&(inner) {
	reverse_proxy `+backup.Listener.Addr().String()+`
}
`+rest)
	for range 2 {
		if a := askByDelete(t, "/die", "k"); a.status != 504 || a.code() != "outcome-unknown" {
			t.Errorf("unknown: %+v", a)
		}
	}
	if n := backup.executions("k"); n != 0 {
		t.Errorf("%d executions by the error routes", n)
	}
}

// A check that fails has refused a repetition, which is not to be executed.
func TestErrorRoutesPassNothingOnOfFailedChecks(t *testing.T) {
	u, backup := newUpstream(t), newUpstream(t)
	load(t, site(t, protect(u, "owner shared\nreplay_check {\nerror \"closed\" 402\n}")+`
	handle_errors {
		reverse_proxy `+backup.Listener.Addr().String()+`
	}`))
	askByDelete(t, "/pay", "k")
	for range 2 {
		if a := askByDelete(t, "/pay", "k"); a.status != 402 || a.body != "" {
			t.Errorf("the check failed: %+v", a)
		}
	}
	if n := u.executions("k") + backup.executions("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// An error route that passes on what is no refusal keeps no page from those that are.
func TestErrorRoutesForOtherErrorsDontMatter(t *testing.T) {
	u, backup := newUpstream(t), newUpstream(t)
	config := site(t, protect(u, "owner shared")+`
	handle_errors 404 {
		reverse_proxy `+backup.Listener.Addr().String()+`
	}
	handle_errors {
		respond "page {err.status_code} {http.idempotency.code}"
	}`)
	_, port, _ := strings.Cut(address, ":")
	// With a host, all of a site's error routes stand in one that matches it.
	load(t, strings.Replace(config, "\n:"+port+" {", "\nhttp://"+address+" {", 1))
	askByDelete(t, "/pay", "k")
	if a := askByDelete(t, "/other", "k"); a.status != 409 || a.body != "page 409 key-reused" {
		t.Errorf("reused: %+v", a)
	}
}

// Nor does what another site on the same server has in its error routes.
func TestErrorRoutesOfOtherSitesDontMatter(t *testing.T) {
	u, backup := newUpstream(t), newUpstream(t)
	config := site(t, protect(u, "owner shared")+`
	handle_errors {
		respond "page {err.status_code} {http.idempotency.code}"
	}`)
	_, port, _ := strings.Cut(address, ":")
	load(t, strings.Replace(config, "\n:"+port+" {", "\nhttp://"+address+" {", 1)+`
http://o.test:`+port+` {
	bind 127.0.0.1
	handle_errors {
		reverse_proxy `+backup.Listener.Addr().String()+`
	}
}`)
	askByDelete(t, "/pay", "k")
	if a := askByDelete(t, "/other", "k"); a.status != 409 || a.body != "page 409 key-reused" {
		t.Errorf("reused: %+v", a)
	}
}

// loadWithin runs a Caddyfile whose first server's routes are in a subroute with these
// error routes, and behind it what follows. A Caddyfile can't say that.
func loadWithin(t *testing.T, config, errorRoutes, behind string) {
	t.Helper()
	adapted, err := adapt(config)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(adapted, &all); err != nil {
		t.Fatal(err)
	}
	server := all["apps"].(map[string]any)["http"].(map[string]any)["servers"].(map[string]any)["srv0"].(map[string]any)
	routes, err := json.Marshal(server["routes"])
	if err != nil {
		t.Fatal(err)
	}
	server["routes"] = json.RawMessage(`[{"handle":[{"handler":"subroute","routes":` + string(routes) + `,"errors":{"routes":` + errorRoutes + `}}` + behind + `]}]`)
	if adapted, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t) })
	if err := caddy.Load(adapted, true); err != nil {
		t.Fatal(err)
	}
}

// A subroute's own error routes get errors before the site's do. They carry out
// nothing either, and nor does what is behind the subroute where they don't answer.
func TestErrorRoutesOfASubroutePassNothingOn(t *testing.T) {
	u, backup, gone := newUpstream(t), newUpstream(t), "127.0.0.1:"+testport.Take(t)
	pass := `{"handler":"reverse_proxy","upstreams":[{"dial":"` + backup.Listener.Addr().String() + `"}]}`
	sitePage := "\nhandle_errors {\nrespond \"site {err.status_code}\"\n}"
	for name, c := range map[string]struct{ errors, behind, site, page, refusal string }{
		"itself":             {errors: `[{"handle":[` + pass + `]}]`},
		"with a site's page": {errors: `[{"handle":[` + pass + `]}]`, site: sitePage},
		"behind it":          {errors: `[{"handle":[{"handler":"headers"}]}]`, behind: "," + pass},
		"sometimes":          {errors: `[{"match":[{"method":["PUT"]}],"handle":[{"handler":"static_response"}]}]`, behind: "," + pass},
		"by intercept":       {errors: `[{"handle":[{"handler":"intercept","handle_response":[{"routes":[{"handle":[` + pass + `]}]}]},{"handler":"static_response"}]}]`},
		"a page":             {errors: `[{"handle":[{"handler":"static_response","body":"page"}]}]`, page: "page"},
		"a page besides the site's": {
			errors: `[{"handle":[{"handler":"static_response","body":"page"}]}]`, site: sitePage, page: "page", refusal: "page",
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := func(of string) string { return strings.ReplaceAll(name+of, " ", "-") }
			loadWithin(t, site(t, "handle /gone/* {\n"+strings.Replace(protect(u, "owner shared"), u.Listener.Addr().String(), gone, 1)+
				"\n}\nhandle {\n"+protect(u, "owner shared\nreplay_check {\nerror \"closed\" 402\n}")+"\n}"+c.site), c.errors, c.behind)
			askByDelete(t, "/pay", key("check"))
			for range 2 {
				if a := askByDelete(t, "/gone/x", key("gone")); a.body != c.page || a.header.Get("Idempotency-Job") == "" {
					t.Errorf("refused connection: %+v", a)
				}
				if a := askByDelete(t, "/pay", key("check")); a.body != c.page {
					t.Errorf("the check failed: %+v", a)
				}
				a := askByDelete(t, "/die", key("dies"))
				if wrong := a.status != 504 || a.code() != "outcome-unknown"; c.refusal == "" && wrong || c.refusal != "" && a.body != c.refusal {
					t.Errorf("unknown: %+v", a)
				}
			}
			for of, want := range map[string]int{"gone": 0, "check": 1, "dies": 1} {
				if n := u.executions(key(of)) + backup.executions(key(of)); n != want {
					t.Errorf("%s: %d executions", of, n)
				}
			}
		})
	}
}
