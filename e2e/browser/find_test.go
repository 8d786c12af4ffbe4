package browser

import (
	"strings"
	"testing"
)

// teamSite has a space whose keys belong to teams, and one whose keys are everybody's.
const teamSite = console + `
	handle /teams* {
		idempotency {
			owner {http.request.header.X-Team}
			space teams
			label {http.request.header.X-Order}
			timeout 60s
		}
		reverse_proxy UPSTREAM
	}
	@api not path /console* /teams*
	idempotency @api {
		owner shared
		label {http.request.header.X-Order}
		timeout 60s
	}
	reverse_proxy @api UPSTREAM
`

// A job is found by its key, if one says whose that is. Neither gets into an address,
// where it could be logged.
func TestFindByKey(t *testing.T) {
	t.Parallel()
	g := start(t, teamSite)
	blue := g.unknown("/teams/charges", "secret-key-1", "X-Team", "team-blue", "X-Order", "blue-1")
	red := g.unknown("/teams/charges", "secret-key-1", "X-Team", "team-red", "X-Order", "red-1")
	all, _ := g.post("/charges", "secret-key-2", "X-Order", "order-17")
	p := visit(t, g, "anna", desktop)
	p.shows("blue-1")

	p.press("button", "Find by key")
	p.wait("document.activeElement === document.querySelector('dialog input[name=key]')")
	p.press("dialog button", "Find") // not without a key, and whose it is
	p.wait("document.querySelector('dialog:modal')")
	p.fill("dialog input[name=key]", "secret-key-1")
	p.fill("dialog input[name=owner]", "team-red")
	p.expect("404") // which the browser itself complains of
	p.press("dialog button", "Find")
	p.wait("document.querySelector('dialog [role=alert]').textContent.includes('no such job')") // in the space main
	p.fillAnew("dialog input[name=space]", "teams")
	p.press("dialog button", "Find")
	p.wait("location.hash.includes(" + quote(red) + ")")
	p.wait("document.querySelector('.job-head .label')?.textContent === 'red-1'")

	p.press("a", "All jobs")
	p.press("button", "Find by key")
	p.fill("dialog input[name=key]", `"secret-key-2"`) // as it is spelt in a structured field
	p.press("label", "Everybody’s")
	p.wait("document.querySelector('dialog input[name=owner]').disabled")
	p.press("dialog button", "Find")
	p.wait("location.hash.includes(" + quote(all) + ")")
	p.wait("document.querySelector('.job-head .label')?.textContent === 'order-17'")

	addresses := eval[[]string](p, "[location.href, ...performance.getEntriesByType('resource').map((e) => e.name)]")
	if len(addresses) < 10 {
		t.Errorf("only %d addresses were seen", len(addresses))
	}
	for _, a := range addresses {
		if strings.Contains(a, "secret-key") || strings.Contains(a, "team-red") {
			t.Errorf("a key or an owner is in the address %s", a)
		}
		if !strings.HasPrefix(a, g.url+"/console/") {
			t.Errorf("the page has asked for %s", a)
		}
	}
	if n := g.executed("/teams/charges"); n != 2 || blue == red {
		t.Errorf("%d executions, jobs %s and %s", n, blue, red)
	}
}
