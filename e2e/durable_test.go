package e2e

import (
	"net/http"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

// RED-01: an answer that has been recorded, and that the replica does not have yet,
// is given out by no gateway: it could be lost with its server, and another one could
// come to stand in its place. New keys are not dispatched either.
func TestRED01ReplayWaitsForTheReplica(t *testing.T) {
	t.Parallel()
	up, primary := newUpstream(t), startRedis(t, "--repl-diskless-sync-delay", "0")
	replica := redistest.StartReplica(t, primary.Server)
	s := to(up).on(primary.store()+" {\ndurability {\nreplicas 1\n}\n}").with("wait", "100ms")
	one, two := startGateway(t, s).client(), startGateway(t, s).client()
	first := one.start(post("paid").tell("Up-Hold", "gate"))
	up.reached("paid", 1)
	replica.Freeze()
	up.release("gate")
	a := first.answer()
	if a.status != http.StatusOK || a.code() != "" || a.header.Get("Idempotency-Recorded") != "false" {
		t.Fatalf("want the upstream's answer, marked as not recorded, got %d %v %s", a.status, a.header, a.body)
	}
	if getJob(t, primary.open(), "paid").CompletedBy.IsZero() {
		t.Fatal("it is not there: this shows nothing")
	}
	for _, c := range []*client{one, two, two} {
		wantRefusal(t, c.do(post("paid")), http.StatusServiceUnavailable, "store-unavailable")
		wantRefusal(t, c.do(post("new")), http.StatusServiceUnavailable, "store-unavailable")
	}
	up.want("new", 0)

	replica.Thaw()
	for _, c := range []*client{two, one} {
		wantReplay(t, a, untilStatus(t, c, post("paid"), http.StatusOK))
	}
	wantExecuted(t, untilStatus(t, two, post("new"), http.StatusOK))
	up.want("paid", 1)
	up.want("new", 1)
}
