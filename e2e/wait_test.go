package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
)

// WAIT-01: a duplicate of a running request is ordinary. It waits, within a
// bound, and gets the first one's answer.
func TestWAIT01DuplicateWaitsAndGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store))
		c := g.client()
		first := c.start(post("overlap").tell("Up-Hold", "gate"))
		up.reached("overlap", 1)
		second := c.start(post("overlap"))
		g.awaitWaiting(1)
		up.release("gate")
		wantExecuted(t, first.answer())
		wantReplay(t, first.answer(), second.answer())
		up.want("overlap", 1)
	})
}

// WAIT-01: also on another gateway than the one that executes.
func TestWAIT01DuplicateWaitsOnAnotherGateway(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	one := startGateway(t, to(up).on(redis.store()))
	two := startGateway(t, to(up).on(redis.store()))
	first := one.client().start(post("overlap").tell("Up-Hold", "gate"))
	up.reached("overlap", 1)
	second := two.client().start(post("overlap"))
	two.awaitWaiting(1)
	up.release("gate")
	wantExecuted(t, first.answer())
	wantReplay(t, first.answer(), second.answer())
	up.want("overlap", 1)
}

// WAIT-01: past the bound it is told that the first is still in flight, in words
// that a machine can tell from a reused key and from an unknown outcome, and
// when to come back.
func TestWAIT01WaitIsBounded(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("wait", "300ms")).client()
		first := c.start(post("long").tell("Up-Hold", "gate"))
		up.reached("long", 1)
		a := c.do(post("long"))
		wantRefusal(t, a, http.StatusConflict, "in-flight")
		if p := a.problem(); p.Advice != "retry-same-key" || p.State != "running" || p.Job == "" {
			t.Errorf("want a running job and the advice to repeat with the same key, got %+v", p)
		}
		retryAfter(t, a)
		up.release("gate")
		wantExecuted(t, first.answer())
		wantReplay(t, first.answer(), c.do(post("long")))
		up.want("long", 1)
	})
}

func retryAfter(t *testing.T, a answer) int {
	t.Helper()
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || seconds < 1 {
		t.Fatalf("Retry-After: %q, want a number of seconds", a.header.Get("Retry-After"))
	}
	return seconds
}

// WAIT-02: the hint when to come back grows with what is left of the lease, is
// bounded, and differs from client to client, so that the duplicates of a slow
// job don't all come back at once, again and again.
func TestWAIT02RetryAfterGrowsWithTheLease(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "",
		to(up).with("wait", "1ms").with("lease", "40s"),
		to(up).with("wait", "1ms").with("lease", "160s").with("space", "longer"),
		to(up).with("wait", "1ms").with("lease", "1h").with("space", "longest"))
	hints := func(site int) (least, most int) {
		c := g.clientOf(site)
		key := fmt.Sprintf("slow-%d", site)
		c.start(post(key).tell("Up-Hold", "gate"))
		up.reached(key, 1)
		for i := range 30 {
			a := c.do(post(key))
			wantRefusal(t, a, http.StatusConflict, "in-flight")
			hint := retryAfter(t, a)
			if i == 0 || hint < least {
				least = hint
			}
			most = max(most, hint)
		}
		up.want(key, 1)
		return least, most
	}
	_, shortMost := hints(0)
	longLeast, longMost := hints(1)
	longestLeast, longestMost := hints(2)
	t.Logf("hints: lease 40s up to %ds, 160s %d to %ds, 1h %d to %ds", shortMost, longLeast, longMost, longestLeast, longestMost)
	if shortMost <= 1 {
		t.Errorf("all hints for a lease of 40 s are one second")
	}
	if longLeast <= shortMost {
		t.Errorf("the hint does not grow with the lease: at most %d for 40 s, at least %d for 160 s", shortMost, longLeast)
	}
	if longLeast == longMost {
		t.Errorf("30 hints are all %d", longLeast)
	}
	if longestMost > 60 {
		t.Errorf("a hint of %d s is not bounded", longestMost)
	}
	up.release("gate")
}

// WAIT-03: how many may wait is bounded, for one job and in all. Who comes on
// top is refused at once and does not go upstream; who leaves makes room, and
// leaves nothing behind.
func TestWAIT03WaitingRoomIsBounded(t *testing.T) {
	t.Parallel()
	const perJob, total, crowd = 40, 50, 200
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store).with("waiters", fmt.Sprintf("%d %d", perJob, total)))
		c := g.client()
		first := c.start(post("popular").tell("Up-Hold", "gate"))
		up.reached("popular", 1)
		other := c.start(post("other").tell("Up-Hold", "gate"))
		up.reached("other", 1)
		calm := g.stacks("")

		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		answers := make(chan answer, 2*crowd)
		duplicates := func(key string, n int) {
			for range n {
				go func() { answers <- c.doContext(ctx, post(key)) }()
			}
		}
		refused := func(n int) {
			for range n {
				a := <-answers
				wantRefusal(t, a, http.StatusServiceUnavailable, "too-many-waiters")
				retryAfter(t, a)
			}
		}
		duplicates("popular", crowd)
		refused(crowd - perJob)
		g.awaitWaiting(perJob)
		duplicates("other", crowd)
		refused(crowd - (total - perJob))
		g.awaitWaiting(total)
		up.want("popular", 1)
		up.want("other", 1)
		// Other keys don't suffer.
		wantExecuted(t, c.do(post("third")))

		leave()
		g.awaitWaiting(0)
		c.c.CloseIdleConnections()
		eventually(t, "the goroutines of those who waited have gone", func() bool { return g.stacks("") <= calm+10 })
		again := c.start(post("popular"))
		g.awaitWaiting(1)
		up.release("gate")
		wantExecuted(t, other.answer())
		wantReplay(t, first.answer(), again.answer())
		up.want("popular", 1)
	})
}

// WAIT-06: the end of the wait ends in a refusal, never in a request of the
// waiter's own. The number of executions does not depend on it.
func TestWAIT06EndOfTheWaitIsNoPermission(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("wait", "200ms")).client()
		first := c.start(post("slow").tell("Up-Hold", "gate"))
		up.reached("slow", 1)
		for _, a := range volley(5, post("slow"), c) {
			wantRefusal(t, a, http.StatusConflict, "in-flight")
		}
		up.want("slow", 1)
		up.release("gate")
		wantExecuted(t, first.answer())
		up.want("slow", 1)
	})
}

// Clients that take nothing of an answer, the first one and those who waited for it,
// hold nothing while they don't: there is still a place for who waits, and the one
// connection to Redis is free.
func TestSlowClientsHoldNothing(t *testing.T) {
	t.Parallel()
	const size = 16_000_000 // more than all buffers on the way take
	up, redis := newUpstream(t), startRedis(t)
	s := to(up).on(redis.store()+" {\npool_size 1\n}").with("waiters", "2 2").with("max_response_body", "32MiB").with("cache", "off")
	g := startGateway(t, s)
	large := post("large").tell("Up-Body", strconv.Itoa(size)).tell("Up-Hold", "large")
	var slow []*raw
	for i := range 3 {
		c := g.dial(0)
		c.head("large", "X-Owner: alice", "Content-Length: "+strconv.Itoa(len(large.body)), "Up-Body: "+strconv.Itoa(size), "Up-Hold: large")
		if _, err := io.WriteString(c, large.body); err != nil {
			t.Fatal(err)
		}
		up.reached("large", 1)
		g.awaitWaiting(i)
		slow = append(slow, c)
	}
	up.release("large")
	for _, c := range slow {
		if _, err := c.in.Peek(1); err != nil {
			t.Fatal(err)
		}
	}
	g.awaitWaiting(0)

	other := post("other").tell("Up-Hold", "other")
	first := g.client().start(other)
	up.reached("other", 1)
	others := []*pending{g.client().start(other), g.client().start(other)}
	g.awaitWaiting(len(others))
	up.release("other")
	wantExecuted(t, first.answer())
	for _, w := range others {
		wantReplay(t, first.answer(), w.answer())
	}
	whole := g.client().do(large)
	wantMarked(t, whole)
	for _, c := range slow {
		if a := c.answer(); a.err != nil || a.status != http.StatusOK || a.body != whole.body || len(a.body) != size {
			t.Errorf("who was slow got %d with %d bytes, %v", a.status, len(a.body), a.err)
		}
	}
	up.want("large", 1)
	up.want("other", 1)
}
