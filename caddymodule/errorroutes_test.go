package caddymodule

import (
	"net/http"
	"strings"
	"testing"
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
