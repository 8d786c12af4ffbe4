package browser

import (
	"net/http"
	"strings"
	"testing"
)

// unprotectedSite has a console for everybody who reaches it.
const unprotectedSite = `
	idempotency_console /console* {
		unprotected
	}
	@api not path /console*
	idempotency @api {
		owner shared
		label {http.request.header.X-Order}
		timeout 60s
	}
	reverse_proxy @api UPSTREAM
`

// Where nobody is authenticated, the page says so, and asks who decides each time.
func TestUnprotected(t *testing.T) {
	t.Parallel()
	g := start(t, unprotectedSite)
	id := g.unknown("/charges", "a", "X-Order", "order-17")
	p := visit(t, g, "nobody", desktop)
	p.wait("document.querySelector('#user').textContent === 'unprotected'")
	p.decide("order-17", "It was executed")
	p.press("button", "Resolve as succeeded")
	p.wait("document.querySelector('dialog:modal input[name=actor]').matches(':invalid')") // not without a name
	p.fill("dialog input[name=actor]", "clara")
	p.press("button", "Resolve as succeeded")
	p.shows("as succeeded by clara")
	if j := g.job(id); j.State != "completed" || j.Attempts[0].Resolution.Actor != "clara" {
		t.Errorf("the job is %+v", j)
	}

	p.expect("404") // the browser itself may complain of a look that was under way
	p.press("button", "Forget")
	p.press("label", "executed a second time")
	p.press("dialog button", "Forget")
	p.wait("document.querySelector('dialog:modal input[name=actor]').matches(':invalid')")
	p.fill("dialog input[name=actor]", "clara")
	p.press("dialog button", "Forget")
	p.shows("This job is forgotten, and its key is new")
	if status, answer := g.call("nobody", http.MethodGet, "jobs/"+id, nil); status != http.StatusNotFound {
		t.Errorf("the job is still there: %d %s", status, answer)
	}
	eventually(t, "who has forgotten it is logged", func() bool {
		log := g.tail()
		return strings.Contains(log, "a job was forgotten") && strings.Contains(log, `"actor":"clara"`)
	})
}
