package browser

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// whom the sites let in: two people, with the password "secret".
const console = `
	@console path /console*
	basic_auth @console {
		anna $2a$04$TAMbZye6KH7AUtK6A39xyOqalEedEXBZ971xAuk.sD3ViisFCi7IG
		ben $2a$04$TAMbZye6KH7AUtK6A39xyOqalEedEXBZ971xAuk.sD3ViisFCi7IG
	}
	idempotency_console @console {
		user {http.auth.user.id}
	}
`

// plainSite has the console, and one upstream.
const plainSite = console + `
	@api not path /console*
	idempotency @api {
		owner shared
		label {http.request.header.X-Order}
		timeout 60s
	}
	reverse_proxy @api UPSTREAM
`

// racingSite has besides two providers, of which the second starts beside the first.
const racingSite = console + `
	handle /charges* {
		idempotency {
			owner shared
			space payments
			label {http.request.header.X-Order}
			timeout 60s
			provider bank {
				reverse_proxy UPSTREAM
			}
			provider backup {
				request_header X-Up later
				reverse_proxy UPSTREAM
			}
			race after 300ms
			unproven allow
		}
	}
	@api not path /console* /charges*
	idempotency @api {
		owner shared
		label {http.request.header.X-Order}
		timeout 60s
	}
	reverse_proxy @api UPSTREAM
`

// What is unresolved is listed, the oldest first, and what comes later appears by
// itself. One of them can be opened, also with its id alone.
func TestListAndOpen(t *testing.T) {
	t.Parallel()
	g := start(t, plainSite)
	g.unknown("/charges", "a", "X-Order", "order-17")
	p := visit(t, g, "anna", desktop)
	p.shows("order-17")
	p.shows("the whole request was sent, no answer began")
	if user := eval[string](p, "document.querySelector('#user').textContent"); user != "anna" {
		t.Errorf("the console is used by %q", user)
	}
	second := g.unknown("/charges", "b", "X-Order", "order-18")
	g.post("/charges", "c", "X-Order", "order-19")
	p.shows("order-18")
	// Not in the order in which the store finds them, which is that of their leases.
	if order := eval[string](p, "[...document.querySelectorAll('.jobs .label')].map((e) => e.textContent).join()"); order != "order-17,order-18" {
		t.Errorf("listed are %s", order)
	}
	p.wait("document.querySelector('.tile .number').textContent === '2'")
	p.wait("document.title.startsWith('(2)')")
	// The rates have been seen when two counts have been taken.
	p.wait("document.querySelector('.rates').getAttribute('aria-label').includes('executed')")
	p.wait("[...document.querySelectorAll('.verdict')].some((e) => e.textContent.includes('executed') && e.textContent.includes('1 in all'))")

	p.press("a", "POST /charges")
	p.wait("document.querySelector('h1')?.textContent.includes('POST /charges')")
	p.shows("order-17")
	p.press("a", "All jobs")
	p.shows("order-18")
	p.fill(".find input", second)
	p.press("button", "Open")
	p.wait("location.hash.includes(" + quote(second) + ")")
	p.wait("document.querySelector('.job-head .label')?.textContent === 'order-18'")
	p.do("go back", chromedp.NavigateBack())
	p.expect("404") // which the browser itself complains of
	p.fill(".find input", strings.Repeat("0", 64)+".00000000")
	p.press("button", "Open")
	p.shows("There is no such job")
	p.do("choose", chromedp.Evaluate[chromedp.Void]("(() => { const s = document.querySelector('select'); s.value = 'completed'; s.dispatchEvent(new Event('change', { bubbles: true })) })()"))
	p.shows("order-19")
}

// A decision is recorded as that of whom the site has let in, and permits what the
// page says that it does.
func TestResolve(t *testing.T) {
	t.Parallel()
	g := start(t, plainSite)
	failed := g.unknown("/charges", "a", "X-Order", "order-17")
	executed := g.unknown("/charges", "b", "X-Order", "order-18")

	p := visit(t, g, "anna", desktop)
	p.decide("order-17", "It was not executed")
	p.press("button", "Resolve as failed")
	p.wait("document.querySelector('dialog:modal')") // not without confirming it
	p.press("label", "certainly ended its work")
	p.press("button", "Resolve as failed")
	p.wait("!document.querySelector('dialog')")
	p.wait("document.querySelector('#said').textContent.includes('The job is open now')")
	p.wait("document.querySelector('.job-head .badge').textContent === 'open'")
	p.shows("as failed by anna")
	p.shows("journal of 3 May")
	if j := g.job(failed); j.State != "open" || j.Attempts[0].Resolution.Actor != "anna" || j.Attempts[0].Resolution.Evidence != "journal of 3 May" {
		t.Errorf("order-17 is %+v", j)
	}

	p.press("a", "All jobs")
	p.decide("order-18", "It was executed")
	p.fill("dialog textarea[name=body]", `{"id":"ch_18"}`)
	p.press("button", "Resolve as succeeded")
	p.wait("document.querySelector('.job-head .badge')?.textContent === 'completed'")
	p.wait("document.querySelector('.lane.won')")
	if j := g.job(executed); j.State != "completed" || j.Result.Status != http.StatusOK || j.Attempts[0].Resolution.As != "succeeded" {
		t.Errorf("order-18 is %+v", j)
	}
	if _, status := g.post("/charges", "b", "X-Order", "order-18"); status != http.StatusOK {
		t.Errorf("a repetition got %d", status)
	}
	if n := g.executed("/charges"); n != 2 {
		t.Errorf("%d executions, want the two that were unknown", n)
	}
	p.press("a", "All jobs")
	p.shows("No job is unresolved")
}

// decide opens the dialog on a job's attempt, and fills in what all decisions need.
func (p *page) decide(label, choice string) {
	p.t.Helper()
	row := fmt.Sprintf("[...document.querySelectorAll('.jobs tbody tr')].find((e) => e.textContent.includes(%s))", quote(label))
	p.wait(row)
	p.pressElement(row + ".querySelector('a')")
	p.wait("document.querySelector('.job-head .label')?.textContent === " + quote(label))
	p.press("button", "Resolve")
	p.press("label", choice)
	p.fill("dialog textarea[name=evidence]", "journal of 3 May")
}

// Who decides after somebody else is told what that was, and nothing is done.
func TestLostRace(t *testing.T) {
	t.Parallel()
	g := start(t, plainSite)
	id := g.unknown("/charges", "a", "X-Order", "order-17")
	p := visit(t, g, "anna", desktop)
	p.decide("order-17", "It is to count for nothing")
	p.press("label", "certainly ended its work")
	status, answer := g.call("ben", http.MethodPost, "jobs/"+id+"/resolve", map[string]any{
		"attempt": 1, "as": "succeeded", "evidence": "charge ch_17", "response": map[string]any{"status": 201, "body": "ch_17"},
	})
	if status != http.StatusOK {
		t.Fatalf("the first decision: %d %s", status, answer)
	}
	p.expect("409") // which the browser itself complains of
	p.press("button", "Resolve as cancelled")
	p.shows("Nothing was done")
	for _, told := range []string{"completed", "succeeded", "ben", "charge ch_17"} {
		p.wait("document.querySelector('dialog [role=alert]').textContent.includes(" + quote(told) + ")")
	}
	p.press("button", "Show the job as it is")
	p.wait("!document.querySelector('dialog')")
	p.wait("document.querySelector('.job-head .badge').textContent === 'completed'")
	p.shows("as succeeded by ben")
	if j := g.job(id); j.State != "completed" || j.Attempts[0].Resolution.Actor != "ben" {
		t.Errorf("the job is %+v", j)
	}
	if n := g.executed("/charges"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// Attempts that raced stand side by side: the winner is marked, the other one kept.
func TestRace(t *testing.T) {
	t.Parallel()
	g := start(t, racingSite)
	id := g.raced("/charges", "order-20")
	p := visit(t, g, "anna", desktop)
	p.fill(".find input", id)
	p.press("button", "Open")
	p.wait("document.querySelectorAll('.lane').length === 2")
	p.wait("document.querySelector('.lane.won')?.textContent.includes('backup')")
	p.wait("document.querySelector('.lane:not(.won)').textContent.includes('discarded')")
	// They overlap in time, and so on the line.
	if !eval[bool](p, `(() => {
		const [one, other] = [...document.querySelectorAll('.lane .part:first-child')].map((e) => e.getBoundingClientRect())
		return one.left < other.left && other.left < one.right && one.bottom <= other.top
	})()`) {
		t.Errorf("the attempts don't stand side by side\n%s", p.text())
	}
	p.press("button.link", "Attempt 2")
	p.wait("document.activeElement.id === 'attempt-2'")
}

// Everything in a job may have been chosen by somebody who wants to be read by an
// operator. It stays text.
func TestTextOfJobsStaysText(t *testing.T) {
	t.Parallel()
	g := start(t, plainSite)
	const evil = `<img src=x onerror=alert(1)><b id=evil>bold</b>`
	id := g.unknown("/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "a", "X-Order", evil)
	p := visit(t, g, "anna", desktop)
	p.shows(evil)
	p.fill(".find input", id)
	p.press("button", "Open")
	p.wait("document.querySelector('.job-head .label')?.textContent === " + quote(evil))
	p.shows("<script>alert(1)</script>")
	if n := eval[int](p, "document.querySelectorAll('#evil, main img, main script').length"); n != 0 {
		t.Errorf("%d elements were made of a job's text", n)
	}

	// Nor does it turn round what stands in it, so that another order is looked up.
	id = g.unknown("/refunds/%E2%80%AE17-redro%C2%9B%E2%80%8B", "b", "X-Order", "order-\u202e71")
	p.press("a", "All jobs")
	p.fill(".find input", id)
	p.press("button", "Open")
	p.wait("document.querySelector('.job-head .label')?.textContent === 'order-\ufffd71'")
	p.shows("/refunds/\ufffd17-redro\ufffd\ufffd")
	p.wait("document.title.includes('/refunds/\ufffd17-redro\ufffd\ufffd')")
	if n := eval[int](p, "(document.title + document.body.innerText).match(/[\u202e\u009b\u200b]/)?.index ?? -1"); n >= 0 {
		t.Errorf("what can't be seen is shown: %q", p.text())
	}
}

// The other views, and how to make the page stand still.
func TestPauseAndProviders(t *testing.T) {
	t.Parallel()
	g := start(t, racingSite)
	g.raced("/charges", "order-20")
	p := visit(t, g, "anna", desktop)
	p.shows("No job is unresolved")
	p.press("button", "Pause")
	p.wait("document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
	g.unknown("/transfers", "a", "X-Order", "order-17") // on the other route
	p.press("button", "Pause")
	p.shows("order-17")
	p.press("nav a", "Providers")
	p.shows("backup")
	p.wait("document.querySelectorAll('article.card').length === 2")
	p.press("nav a", "Stores")
	p.shows("Inspected")
	p.press("button", "Inspect again")
	p.wait("document.querySelector('h2')?.textContent === 'bolt'")
}

// With the keyboard alone: every control is reached, in the order in which it stands,
// and seen to be reached.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	g := start(t, plainSite)
	g.unknown("/charges", "a", "X-Order", "order-17")
	p := visit(t, g, "anna", desktop)
	p.shows("order-17")
	p.press("button", "Pause") // so that nothing changes meanwhile
	p.wait("document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
	eval[any](p, "document.activeElement.blur()")
	eval[any](p, "document.body.setAttribute('tabindex', '-1')")
	eval[any](p, "document.body.focus()")
	if reached := p.tabbed("document"); reached[0] != "Skip to the content" {
		t.Errorf("the order is %q", reached)
	}

	// A decision without the mouse.
	eval[any](p, "document.querySelector('.jobs a').focus()")
	p.do("open", chromedp.KeyEvent(kb.Enter))
	p.wait("document.activeElement === document.querySelector('main')")
	p.wait("document.querySelector('button.primary')")
	eval[any](p, "document.querySelector('button.primary').focus()")
	p.do("resolve", chromedp.KeyEvent(kb.Enter))
	p.wait("document.querySelector('dialog:modal')?.contains(document.activeElement)")
	p.do("choose", chromedp.KeyEvent(kb.ArrowUp)) // from the first to the last
	p.wait("document.querySelector('dialog input[value=succeeded]').checked")
	p.do("back", chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
	p.tabbed("document.querySelector('dialog')")
	p.leave()
	p.wait("document.activeElement === document.querySelector('button.primary')")
}

// tabbed goes through what a part of the page has, from in front of it, and says in
// which order. One of a group of radio buttons stands for all.
func (p *page) tabbed(part string) (reached []string) {
	p.t.Helper()
	all := eval[int](p, "[..."+part+".querySelectorAll('a, button, input, select, textarea')].filter((e) => e.checkVisibility() && !e.disabled && (e.type !== 'radio' || e.checked)).length")
	for range all {
		p.do("tab", chromedp.KeyEvent(kb.Tab))
		reached = append(reached, eval[string](p, `(() => {
			const e = document.activeElement, s = getComputedStyle(e)
			if (e === document.body) return 'nothing'
			if (s.outlineStyle === 'none' || parseFloat(s.outlineWidth) < 2) return 'unseen ' + e.outerHTML
			e.dataset.reached = document.querySelectorAll('[data-reached]').length
			return e.textContent.trim() || e.name
		})()`))
	}
	for _, name := range reached {
		if name == "nothing" || strings.HasPrefix(name, "unseen ") {
			p.t.Errorf("after the others: %s", name)
		}
	}
	order := eval[[]int](p, "[...document.querySelectorAll('[data-reached]')].map((e) => Number(e.dataset.reached))")
	if !slices.IsSorted(order) || len(order) != all {
		p.t.Errorf("%d of %d controls are reached, in the order %v: %q", len(order), all, order, reached)
	}
	eval[any](p, "document.querySelectorAll('[data-reached]').forEach((e) => delete e.dataset.reached)")
	return reached
}
