package e2e

import (
	"net/http"
	"testing"
)

// RED-07: a Redis whose memory is full, and that evicts nothing. New keys are refused
// before anything is sent, answers that were kept are given as ever, and a job that is
// under way is recorded: its client has the whole answer, and whoever repeats is told
// that it was executed.
func TestRED07MemoryIsFull(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t, "--maxmemory-policy", "noeviction")
	c := startGateway(t, to(up).on(redis.store()).with("wait", "100ms")).client()
	sizes := map[string]string{"small": "1000", "large": "100000"}
	before := make(map[string]answer)
	running := make(map[string]*pending)
	for name, size := range sizes {
		r := post("before-"+name).tell("Up-Body", size)
		before[name] = c.do(r)
		wantExecuted(t, before[name])
		running[name] = c.start(post("during-"+name).tell("Up-Body", size).tell("Up-Hold", name))
		up.reached("during-"+name, 1)
	}
	failed := post("failed").tell("Up-Status", "429").tell("Up-Once", "yes")
	if a := c.do(failed); a.status != http.StatusTooManyRequests {
		t.Fatalf("want the upstream's refusal, got %d %s", a.status, a.body)
	}
	redis.do("CONFIG", "SET", "maxmemory", "1")

	for range 3 {
		wantRefusal(t, c.do(post("new")), http.StatusServiceUnavailable, "store-unavailable")
		wantRefusal(t, c.do(failed), http.StatusServiceUnavailable, "store-unavailable")
	}
	up.want("new", 0)
	up.want("failed", 1)
	for name := range sizes {
		wantReplay(t, before[name], c.do(post("before-"+name).tell("Up-Body", sizes[name])))
		up.release(name)
		a := running[name].answer()
		wantExecuted(t, a)
		if a.header.Get("Idempotency-Recorded") != "" || len(a.body) != len(before[name].body) {
			t.Errorf("want the whole answer, and that it is recorded, got %d bytes and %v", len(a.body), a.header)
		}
		again := c.do(post("during-"+name).tell("Up-Body", sizes[name]))
		wantRefusal(t, again, http.StatusGone, "result-not-kept")
		if p := again.problem(); p.State != "completed" || p.Advice != "already-done" || again.job() != a.job() {
			t.Errorf("want that it is completed, got %+v", p)
		}
		up.want("during-"+name, 1)
	}

	redis.do("CONFIG", "SET", "maxmemory", "0")
	wantExecuted(t, c.do(post("new")))
	wantExecuted(t, c.do(failed))
	for name := range sizes {
		wantReplay(t, before[name], c.do(post("before-"+name).tell("Up-Body", sizes[name])))
		wantRefusal(t, c.do(post("during-"+name).tell("Up-Body", sizes[name])), http.StatusGone, "result-not-kept")
	}
	up.want("new", 1)
	up.want("failed", 2)
}
