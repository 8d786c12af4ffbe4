package e2e

import (
	"net/http"
	"testing"
)

// click is what a page sends that lets its user choose another model while the
// first one has not answered: the same key, and one member of the body changed.
func click(model string) request {
	return post("click").as(func(r *request) { r.body = `{"prompt":"hello","model":"` + model + `"}` })
}

const ignoreModel = unproven + "timeout 60s\nfingerprint json {\nignore /model\n}\n"

// The fallback button: without racing it is one more click on the same job, which
// is executed once, and both clicks get its answer.
func TestFallbackButtonExecutesNothing(t *testing.T) {
	t.Parallel()
	a, b := newUpstream(t), newUpstream(t)
	g := startGateway(t, between(ignoreModel, named{name: "a", before: "request_header Up-Hold gate", up: a}, named{name: "b", up: b}))
	first := g.client().start(click("a"))
	a.reached("click", 1)
	second := g.client().start(click("b"))
	g.awaitWaiting(1)
	b.want("click", 0)
	a.release("gate")
	wantExecuted(t, first.answer())
	wantReplay(t, first.answer(), second.answer())
	g.wantAttempts(first.answer(), "a succeeded")
	a.want("click", 1)
	b.want("click", 0)
}

// With racing there is exactly one sibling, however often the button is pressed,
// and whoever answers first is the result of all clicks.
func TestFallbackButtonStartsOneSibling(t *testing.T) {
	t.Parallel()
	for _, winner := range []string{"a", "b"} {
		t.Run(winner+" answers first", func(t *testing.T) {
			t.Parallel()
			ups := map[string]*upstream{"a": newUpstream(t), "b": newUpstream(t)}
			g := startGateway(t, between(ignoreModel+"race after 300ms",
				named{name: "a", before: "request_header Up-Hold gate", up: ups["a"]}, named{name: "b", before: "request_header Up-Hold gate", up: ups["b"]}))
			first := g.client().start(click("a"))
			ups["a"].reached("click", 1)
			second, third := g.client().start(click("b")), g.client().start(click("c"))
			ups["b"].reached("click", 1)
			g.awaitWaiting(2)
			ups[winner].release("gate")
			one := first.answer()
			wantExecuted(t, one)
			wantReplay(t, one, second.answer())
			wantReplay(t, one, third.answer())
			wantReplay(t, one, g.client().do(click("d")))
			if winner == "a" {
				g.wantAttempts(one, "a succeeded", "b discarded")
			} else {
				g.wantAttempts(one, "a discarded", "b succeeded")
			}
			ups["a"].want("click", 1)
			ups["b"].want("click", 1)
		})
	}
}

// A click that comes when the first one's outcome is unknown starts the sibling
// itself, where the route races, and nothing where it does not.
func TestFallbackButtonAfterTheTimeout(t *testing.T) {
	t.Parallel()
	a, b := newUpstream(t), newUpstream(t)
	options := unproven + "timeout 500ms\nfingerprint json {\nignore /model\n}\n"
	hangs := named{name: "a", before: "request_header Up-Hold gate", up: a}
	g := startGateway(t, between(options, hangs, named{name: "b", up: b}))
	first := g.client().do(click("a"))
	wantUnknown(t, first)
	second := g.client().do(click("b"))
	wantUnknown(t, second)
	if first.job() != second.job() {
		t.Errorf("jobs %s and %s, want one", first.job(), second.job())
	}
	b.want("click", 0)
	if err := g.load(between(options+"race after 100ms", hangs, named{name: "b", up: b})); err != nil {
		t.Fatal(err)
	}
	third := untilStatus(t, g.client(), click("b"), http.StatusOK)
	if third.job() != first.job() {
		t.Errorf("jobs %s and %s, want one", first.job(), third.job())
	}
	a.release("gate")
	wantReplay(t, third, g.client().do(click("a")))
	a.want("click", 1)
	b.want("click", 1)
}
