package e2e

import (
	"net/http"
	"testing"
)

// FP-05: a key stands for one request. Coming back with another one it is refused: the
// stored answer would be that of something else.
func TestFP05OtherRequestUnderTheSameKeyIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	changes := map[string]func(*request){
		"body":       func(r *request) { r.body = `{"amount":2}` },
		"no body":    func(r *request) { r.body = "" },
		"host":       func(r *request) { r.host = "other.example" },
		"query":      func(r *request) { r.path = "/pay?currency=EUR" },
		"method":     func(r *request) { r.method = http.MethodPut },
		"path":       func(r *request) { r.path = "/refund" },
		"media type": func(r *request) { r.contentType = "text/plain" },
	}
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store))
		c := g.client()
		first := c.start(post("key").tell("Up-Hold", "gate"))
		up.reached("key", 1)
		refused := func(when string) {
			for name, change := range changes {
				a := c.do(post("key").as(change))
				wantRefusal(t, a, http.StatusConflict, "key-reused")
				if p := a.problem(); p.Advice != "new-key" || p.Job == "" || p.Job != a.job() {
					t.Errorf("%s, other %s: want the job and the advice to use a new key, got %+v", when, name, p)
				}
				if after := a.header.Get("Retry-After"); after != "" {
					t.Errorf("%s, other %s: Retry-After: %s, but repeating can't help", when, name, after)
				}
				if up.want("key", 1); first.done() != (when == "after") {
					t.Errorf("%s, other %s: was refused at another time", when, name)
				}
			}
		}
		// At once also while the first is running: waiting would end the same way.
		refused("meanwhile")
		up.release("gate")
		a := first.answer()
		wantExecuted(t, a)
		refused("after")
		wantReplay(t, a, c.do(post("key")))
		up.want("key", 1)
	})
}

// The same key of another owner, or in another space, is another job.
func TestOtherOwnerOrSpaceIsAnotherJob(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGatewayWith(t, "", to(up).on(store), to(up).on(store).with("space", "other"))
		main, other := g.clientOf(0), g.clientOf(1)
		bob := post("key").as(func(r *request) { r.owner = "bob" })

		alices := main.do(post("key"))
		wantExecuted(t, alices)
		bobs := main.do(bob)
		wantExecuted(t, bobs)
		up.want("key", 2)
		others := other.do(post("key"))
		wantExecuted(t, others)
		up.want("key", 3)
		if alices.job() == bobs.job() || alices.job() == others.job() {
			t.Errorf("jobs are shared: %s, %s, %s", alices.job(), bobs.job(), others.job())
		}
		wantReplay(t, alices, main.do(post("key")))
		wantReplay(t, bobs, main.do(bob))
		wantReplay(t, others, other.do(post("key")))
		up.want("key", 3)
	})
}

// Route by route, the statuses can be those of the IETF's draft.
func TestStatusesOfTheDraft(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up).with("statuses", "ietf")).client()
	wantExecuted(t, c.do(post("key")))
	a := c.do(post("key").as(func(r *request) { r.body = "{}" }))
	wantRefusal(t, a, http.StatusUnprocessableEntity, "key-reused")
	up.want("key", 1)
}
