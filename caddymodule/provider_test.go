package caddymodule

import (
	"net/http"
	"testing"
)

// providers is a block with a primary, a backup, and what follows it.
func providers(primary, backup, options string) string {
	return `
	route {
		idempotency {
			owner shared
			unproven allow
			provider primary {
				` + primary + `
			}
			provider backup {
				` + backup + `
			}
			` + options + `
		}
		respond "the rest" 299
	}`
}

func proxyTo(u *upstream) string { return "reverse_proxy " + u.Listener.Addr().String() }

// nowhere refuses connections.
const nowhere = "reverse_proxy 127.0.0.1:1"

func TestProvidersTakeTheRequestOver(t *testing.T) {
	a, b := newUpstream(t), newUpstream(t)
	load(t, site(t, providers(proxyTo(a), proxyTo(b), "")))
	first := post(t, "/pay", "k")
	if first.status != 200 || a.executions("k") != 1 || b.executions("k") != 0 {
		t.Errorf("got %+v; %d and %d executions", first, a.executions("k"), b.executions("k"))
	}
	if again := post(t, "/pay", "k"); again.body != first.body || a.executions("k") != 1 {
		t.Errorf("got %+v; %d executions", again, a.executions("k"))
	}
}

func TestFailoverInTheSameRequest(t *testing.T) {
	for name, primary := range map[string]string{
		"refuses connections": nowhere,
		"says no":             `respond "later" 429`,
		"answers nothing":     `header X-Lost yes`,
		"fails":               `error "closed" 503`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newUpstream(t)
			load(t, site(t, providers(primary, "rewrite /b{uri}\n"+proxyTo(b), "")))
			got := post(t, "/pay", "k")
			if got.status != 200 || got.body != "k /b/pay execution 1" || b.executions("k") != 1 || got.header.Get("X-Lost") != "" {
				t.Errorf("got %+v; %d executions", got, b.executions("k"))
			}
			if again := post(t, "/pay", "k"); again.body != got.body || again.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("got %+v", again)
			}
		})
	}
}

// With failover off it is the client's repetition that reaches the next one.
func TestFailoverOff(t *testing.T) {
	b := newUpstream(t)
	load(t, site(t, providers(`respond "later" 429`, proxyTo(b), "failover off")))
	if got := post(t, "/pay", "k"); got.status != 429 || got.body != "later" || b.executions("k") != 0 {
		t.Errorf("got %+v; %d executions", got, b.executions("k"))
	}
	if again := post(t, "/pay", "k"); again.status != 200 || b.executions("k") != 1 {
		t.Errorf("got %+v; %d executions", again, b.executions("k"))
	}
}

// Where nothing is left, the client gets the last real answer.
func TestFailoverToNobody(t *testing.T) {
	load(t, site(t, providers(`respond "later" 429`, nowhere, "")))
	if got := post(t, "/pay", "k"); got.status != 429 || got.body != "later" {
		t.Errorf("got %+v", got)
	}
}

// What is not protected goes to the primary too, and on to the rest if that
// leaves it.
func TestUnprotectedRequestsGoToThePrimary(t *testing.T) {
	a, b := newUpstream(t), newUpstream(t)
	load(t, site(t, providers("request_header X-Seen-By primary\nreverse_proxy /pay* "+a.Listener.Addr().String(), proxyTo(b), "")))
	if got := post(t, "/pay", ""); got.status != 200 || got.header.Get("X-Seen-By") != "primary" || a.executions("") != 1 {
		t.Errorf("got %+v; %d executions", got, a.executions(""))
	}
	if got := post(t, "/other", ""); got.status != 299 || got.body != "the rest" {
		t.Errorf("got %+v", got)
	}
	res, err := http.Get("http://" + address + "/pay")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if a.executions("") != 2 || b.executions("") != 0 {
		t.Errorf("%d and %d executions", a.executions(""), b.executions(""))
	}
}

// Each attempt has a context of its own: nothing that one provider's handlers set
// is there for another one's.
func TestProvidersAreIsolated(t *testing.T) {
	b := newUpstream(t)
	load(t, site(t, providers(
		"vars who primary\nrequest_header X-Seen-Only yes\nrewrite /a{uri}\nheader X-Left yes\n"+nowhere,
		"request_header X-Seen-Who \"[{vars.who}]\"\n"+proxyTo(b), "")))
	got := post(t, "/pay", "k")
	if got.body != "k /pay execution 1" || got.header.Get("X-Seen-Who") != "[]" || got.header.Get("X-Seen-Only") != "" || got.header.Get("X-Left") != "" {
		t.Errorf("got %+v", got)
	}
}
