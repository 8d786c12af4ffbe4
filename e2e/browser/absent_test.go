package browser

import "testing"

// While the gateway does not answer, the page says so and keeps what it has, also what
// somebody has written; it goes on by itself when there are answers again.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	g := start(t, plainSite)
	id := g.unknown("/charges", "a", "X-Order", "order-17")
	p := visit(t, g, "anna", desktop)
	p.shows("order-17")

	answers := func(fetch string) { eval[any](p, "void (globalThis.fetch = "+fetch+")") }
	eval[any](p, "void (globalThis.asBefore = fetch)")
	answers("() => Promise.reject(new TypeError('no connection'))")
	p.wait("document.querySelector('#alert').checkVisibility()")
	p.wait("document.querySelector('#alert').textContent === 'The gateway can’t be reached.'")
	p.wait("document.querySelector('#live').textContent === 'No answer'")
	p.shows("order-17")
	// On a connection that is gone without a word there is not even an error.
	eval[any](p, "void (globalThis.after = AbortSignal.timeout, AbortSignal.timeout = (ms) => after.call(AbortSignal, Math.min(ms, 100)))")
	answers("(_, { signal }) => new Promise((_, no) => signal?.addEventListener('abort', () => no(signal.reason)))")
	p.wait("document.querySelector('#alert').textContent === 'The gateway does not answer.'")
	eval[any](p, "void (AbortSignal.timeout = after)")
	answers("async () => new Response('', { status: 401 })")
	p.shows("You are not signed in any more. Load the page again.")
	p.shows("order-17")
	// Who has signed in by then, in another tab, may be somebody else.
	p.person("ben")
	answers("asBefore")
	p.wait("document.querySelector('#live').textContent === 'Live' && !document.querySelector('#alert').checkVisibility()")
	p.wait("document.querySelector('#user').textContent === 'ben'")

	p.decide("order-17", "It is to count for nothing")
	p.press("label", "certainly ended its work")
	answers("() => Promise.reject(new TypeError('no connection'))")
	p.press("button", "Resolve as cancelled")
	p.wait("document.querySelector('dialog [role=alert]').textContent === 'The gateway can’t be reached.'")
	if j := g.job(id); j.State != "unknown" {
		t.Errorf("the job is %+v", j)
	}
	answers("asBefore")
	p.press("button", "Resolve as cancelled")
	p.wait("!document.querySelector('dialog')")
	p.wait("document.querySelector('.job-head .badge').textContent === 'open'")
	if j := g.job(id); j.State != "open" || j.Attempts[0].Resolution.Evidence != "journal of 3 May" || j.Attempts[0].Resolution.Actor != "ben" {
		t.Errorf("the job is %+v", j)
	}
}
