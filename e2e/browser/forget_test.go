package browser

import (
	"net/http"
	"testing"
)

// lingeringSite has a route that goes on listening for late answers for long.
const lingeringSite = console + `
	@api not path /console*
	idempotency @api {
		owner shared
		label {http.request.header.X-Order}
		timeout 1s
		linger 1h
	}
	reverse_proxy @api UPSTREAM
`

// A completed job can be forgotten by whoever confirms what that permits: its key is
// new then.
func TestForget(t *testing.T) {
	t.Parallel()
	g := start(t, plainSite)
	first, _ := g.post("/charges", "a", "X-Order", "order-17")
	p := visit(t, g, "anna", desktop)
	p.expect("404") // the browser itself may complain of a look that was under way
	p.fill(".find input", first)
	p.press("button", "Open")
	p.press("button", "Forget")
	p.shows("executed a second time")
	p.press("dialog button", "Forget")
	p.wait("document.querySelector('dialog:modal')") // not without confirming it
	p.press("dialog button", "Cancel")
	p.wait("!document.querySelector('dialog')")
	if j := g.job(first); j.State != "completed" {
		t.Fatalf("the job is %+v", j)
	}

	p.press("button", "Forget")
	p.press("label", "executed a second time")
	p.press("dialog button", "Forget")
	p.shows("This job is forgotten, and its key is new")
	p.wait("document.querySelector('#said').textContent === 'The job is forgotten. Its key is new.'")
	p.wait("document.querySelector('.job-head .badge').textContent === 'forgotten'")
	p.wait("![...document.querySelectorAll('button')].some((e) => e.textContent.includes('Forget'))")
	if status, answer := g.call("ben", http.MethodGet, "jobs/"+first, nil); status != http.StatusNotFound {
		t.Errorf("the job is still there: %d %s", status, answer)
	}
	second, status := g.post("/charges", "a", "X-Order", "order-17")
	if status != http.StatusCreated || second == first {
		t.Errorf("a repetition got %d of job %s", status, second)
	}
	if n := g.executed("/charges"); n != 2 {
		t.Errorf("%d executions", n)
	}

	// Somebody else was faster.
	p.press("a", "All jobs")
	p.fill(".find input", second)
	p.press("button", "Open")
	p.press("button", "Forget")
	p.press("label", "executed a second time")
	if status, answer := g.call("ben", http.MethodPost, "jobs/"+second+"/forget", map[string]any{}); status != http.StatusOK {
		t.Fatalf("forget: %d %s", status, answer)
	}
	p.press("dialog button", "Forget")
	p.wait("document.querySelector('dialog [role=alert]').textContent.includes('no such job')")
	p.press("dialog button", "Cancel")
	p.shows("This job has expired, or was forgotten")
	p.wait("![...document.querySelectorAll('button')].some((e) => e.textContent.includes('Forget'))")
}

// A job is not forgotten while an answer may come of which nobody would know any more
// what it belongs to.
func TestForgetIsRefused(t *testing.T) {
	t.Parallel()
	g := start(t, lingeringSite)
	id, status := g.post("/charges", "a", "X-Order", "order-17", "X-Up", "hold")
	if status != http.StatusGatewayTimeout {
		t.Fatalf("POST: %d", status)
	}
	status, answer := g.call("ben", http.MethodPost, "jobs/"+id+"/resolve", map[string]any{
		"attempt": 1, "as": "succeeded", "evidence": "charge ch_17", "response": map[string]any{"status": 201, "body": "ch_17"},
	})
	if status != http.StatusOK {
		t.Fatalf("resolve: %d %s", status, answer)
	}
	p := visit(t, g, "anna", desktop)
	p.fill(".find input", id)
	p.press("button", "Open")
	p.press("button", "Forget")
	p.press("label", "executed a second time")
	p.expect("409") // which the browser itself complains of
	p.press("dialog button", "Forget")
	p.shows("Nothing was done")
	p.wait("document.querySelector('dialog [role=alert]').textContent.includes('may still report')")
	p.wait("document.activeElement.textContent === 'Show the job as it is'")
	p.press("dialog button", "Show the job as it is")
	p.wait("!document.querySelector('dialog')")
	p.wait("document.querySelector('.job-head .badge').textContent === 'completed'")
	if _, status := g.post("/charges", "a", "X-Order", "order-17", "X-Up", "hold"); status != http.StatusCreated || g.executed("/charges") != 1 {
		t.Errorf("a repetition got %d, after %d executions", status, g.executed("/charges"))
	}
}
