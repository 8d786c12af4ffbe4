package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// named is a provider of a site, and what its block has before the reverse_proxy.
type named struct {
	name, before string
	up           *upstream // nil: there is none
	proxy        string    // options of the reverse_proxy
}

// between returns a site with several providers. The options are lines of the
// idempotency block.
func between(options string, providers ...named) site {
	var b strings.Builder
	b.WriteString("@app not path /_gateway\nidempotency @app {\nowner {http.request.header.X-Owner}\n" + options + "\n")
	for _, name := range []string{"wait", "linger"} {
		if !strings.Contains("\n"+options, "\n"+name+" ") {
			b.WriteString(name + " " + defaults[name] + "\n")
		}
	}
	for _, p := range providers {
		fmt.Fprintf(&b, "provider %s {\n%s\n", p.name, p.before)
		if p.up != nil {
			fmt.Fprintf(&b, "reverse_proxy %s {\n%s\n}\n", p.up.addr, p.proxy)
		}
		b.WriteString("}\n")
	}
	b.WriteString("}\n")
	return site{raw: b.String()}
}

const unproven = "unproven allow\n"

// wantAttempts checks the attempts of a job: of each its provider and state.
func (g *gateway) wantAttempts(a answer, want ...string) {
	g.t.Helper()
	var got []string
	for _, attempt := range g.look(a.job()).Attempts {
		got = append(got, attempt.Provider+" "+attempt.State)
	}
	if !slices.Equal(got, want) {
		g.t.Errorf("attempts %q, want %q", got, want)
	}
}

// Another provider is tried in the same request when the first one certainly had
// no effect, and never otherwise.
func TestFailoverOnlyAfterACertainFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, options string
		refuses         bool // the primary refuses connections
		primary, backup int  // executions
		status          int
		attempts        []string
	}{
		"connection refused": {
			refuses: true, backup: 1, status: http.StatusOK, attempts: []string{"primary failed", "backup succeeded"},
		},
		"hangs": {
			before: "request_header Up-Hold gate", options: "timeout 500ms", primary: 1,
			status: http.StatusGatewayTimeout, attempts: []string{"primary unknown"},
		},
		"cut": {
			before: "request_header Up-Die truncate", primary: 1,
			status: http.StatusGatewayTimeout, attempts: []string{"primary unknown"},
		},
		"429": {
			before: "request_header Up-Status 429", primary: 1, backup: 1, status: http.StatusOK, attempts: []string{"primary failed", "backup succeeded"},
		},
		"500": {
			before: "request_header Up-Status 500", primary: 1, status: http.StatusInternalServerError, attempts: []string{"primary succeeded"},
		},
		"502": {
			before: "request_header Up-Status 502", primary: 1, status: http.StatusGatewayTimeout, attempts: []string{"primary unknown"},
		},
		"504": {
			before: "request_header Up-Status 504", primary: 1, status: http.StatusGatewayTimeout, attempts: []string{"primary unknown"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, backup := newRefusingUpstream(t), newUpstream(t)
			if !c.refuses {
				primary.open()
			}
			g := startGateway(t, between(unproven+c.options, named{name: "primary", before: c.before, up: primary}, named{name: "backup", up: backup}))
			a := g.client().do(post("k"))
			if a.err != nil || a.status != c.status {
				t.Fatalf("got %d, %v, %s", a.status, a.err, a.body)
			}
			g.wantAttempts(a, c.attempts...)
			again := g.client().do(post("k"))
			if c.status == http.StatusGatewayTimeout {
				wantUnknown(t, a)
				wantUnknown(t, again)
			} else {
				wantReplay(t, a, again)
			}
			primary.want("k", c.primary)
			backup.want("k", c.backup)
		})
	}
}

// A primary all of whose upstreams are marked down by health checks is asked
// nothing, and the fallback answers.
func TestFailoverWhenAllUpstreamsAreDown(t *testing.T) {
	t.Parallel()
	primary, backup := newUpstream(t), newUpstream(t)
	g := startGateway(t, between(unproven,
		named{name: "primary", up: primary, proxy: "health_uri /health\nhealth_interval 100ms\nhealth_status 204"}, named{name: "backup", up: backup}))
	eventually(t, "the primary's upstream is marked down", func() bool {
		_, body, err := get("http://" + g.admin + "/idempotency/providers")
		return err == nil && strings.Contains(body, `"healthy":false`)
	})
	a := g.client().do(post("k"))
	wantExecuted(t, a)
	g.wantAttempts(a, "primary failed", "backup succeeded")
	primary.want("k", 0)
	backup.want("k", 1)
}

// So it is where the requests themselves have shown that its upstream is down, by
// connections that were refused or by answers of a kind; and where the proxy looks for
// another upstream for a while, and finds none.
func TestFailoverWhenRequestsHaveMarkedAllUpstreamsDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		proxy  string
		status string // of the primary; empty: it refuses connections
	}{
		"connections refused": {proxy: "fail_duration 1m\nmax_fails 1"},
		"answers":             {proxy: "fail_duration 1m\nmax_fails 1\nunhealthy_status 429", status: "429"},
		"tried again":         {proxy: "lb_try_duration 300ms\nlb_try_interval 50ms"},
		"tried again, marked": {proxy: "fail_duration 1m\nlb_retries 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, backup := newRefusingUpstream(t), newUpstream(t)
			before := ""
			if c.status != "" {
				primary.open()
				before = "request_header Up-Status " + c.status
			}
			g := startGateway(t, between(unproven, named{name: "primary", before: before, up: primary, proxy: c.proxy}, named{name: "backup", up: backup}))
			for i, key := range []string{"k1", "k2"} {
				a := g.client().do(post(key))
				wantExecuted(t, a)
				g.wantAttempts(a, "primary failed", "backup succeeded")
				backup.want(key, 1)
				if i > 0 {
					primary.want(key, 0)
				}
			}
		})
	}
}

// Each attempt sends the whole body, from the start, however large it is and whoever
// reads it at the same time.
func TestEachAttemptSendsTheWholeBody(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("0123456789abcdef", 500_000)
	for name, c := range map[string]struct{ options, before string }{
		"failover": {"", "request_header Up-Status 429"},
		"race":     {"race after 100ms", "request_header Up-Hold gate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, backup := newUpstream(t), newUpstream(t)
			g := startGateway(t, between(unproven+c.options, named{name: "primary", before: c.before, up: primary}, named{name: "backup", up: backup}))
			wantExecuted(t, g.client().do(post("k").as(func(r *request) { r.body = body })))
			for _, u := range []*upstream{primary, backup} {
				u.want("k", 1)
				if sent := u.of("k")[0].body; sent != body {
					t.Errorf("%d bytes of %d were sent, or others", len(sent), len(body))
				}
			}
		})
	}
}

// What is not protected goes to the primary.
func TestReadsGoToThePrimary(t *testing.T) {
	t.Parallel()
	primary, backup := newUpstream(t), newUpstream(t)
	c := startGateway(t, between(unproven, named{name: "primary", up: primary}, named{name: "backup", up: backup})).client()
	for _, r := range []request{
		post("").as(func(r *request) { r.headers.Set("Up-Case", "plain") }),
		post("").as(func(r *request) { r.method, r.body = http.MethodGet, ""; r.headers.Set("Up-Case", "plain") }),
	} {
		if a := c.do(r); a.status != http.StatusOK || a.job() != "" {
			t.Errorf("got %d %v %s", a.status, a.err, a.body)
		}
	}
	primary.want("plain", 2)
	backup.want("plain", 0)
}
