package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// wantOneAnswer checks that all answers are the same, of one job, and all but
// one of them replays.
func wantOneAnswer(t *testing.T, answers []answer) {
	t.Helper()
	fresh := 0
	for _, a := range answers {
		if a.err != nil || a.status != http.StatusOK || a.body != answers[0].body || a.job() != answers[0].job() || a.job() == "" {
			t.Fatalf("want the same answer for all:\n%d %s %s\ngot also (error %v):\n%d %s %s",
				answers[0].status, answers[0].job(), answers[0].body, a.err, a.status, a.job(), a.body)
		}
		if !a.replayed() {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d answers are not marked as replays, want one", fresh)
	}
}

// CL-01: taking a key is one atomic step, whose loser learns in the same step
// what is there. However many ask at once, one of them executes, and the others
// get its answer.
func TestCL01SimultaneousRequestsExecuteOnce(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		answers := volley(50, post("click").tell("Up-Sleep", "1s"), c)
		wantOneAnswer(t, answers)
		up.want("click", 1)
		wantReplay(t, answers[0], c.do(post("click")))
		up.want("click", 1)
	})
}

// The same where the requests come in at two gateways that share a Redis.
func TestCL01SimultaneousRequestsOverTwoGatewaysExecuteOnce(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	one := startGateway(t, to(up).on(redis.store()))
	two := startGateway(t, to(up).on(redis.store()))
	wantOneAnswer(t, volley(50, post("click").tell("Up-Sleep", "1s"), one.client(), two.client()))
	up.want("click", 1)
}

// CL-10: lock and result are one record, so there is no moment at which the lock
// is gone and the result not yet there, in which a waiter would go ahead. Many
// keys at once, over two gateways: each is executed once.
func TestCL10ManyKeysOverTwoGatewaysExecuteOnceEach(t *testing.T) {
	t.Parallel()
	const keys, repetitions = 200, 5
	up, redis := newUpstream(t), startRedis(t)
	one := startGateway(t, to(up).on(redis.store())).client()
	two := startGateway(t, to(up).on(redis.store())).client()
	var all sync.WaitGroup
	begun := make(chan struct{}, 40) // bounds how many keys are under way
	answers := make([][]answer, keys)
	key := func(i int) string { return fmt.Sprintf("key-%d", i) }
	for i := range keys {
		begun <- struct{}{}
		all.Go(func() {
			defer func() { <-begun }()
			answers[i] = volley(repetitions, post(key(i)).tell("Up-Sleep", "100ms"), one, two)
		})
	}
	all.Wait()
	executed := 0
	for i := range keys {
		wantOneAnswer(t, answers[i])
		executed += len(up.of(key(i)))
		up.want(key(i), 1)
	}
	if executed != keys {
		t.Errorf("%d executions, want %d", executed, keys)
	}
}

// CL-10: a waiter whose record has vanished is told so. It has no proof that
// nothing happened, and does not become the leader by surprise. The attempt that
// was running puts the record back when it ends.
func TestCL10WaiterDoesNotExecuteWhenTheRecordVanishes(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	g := startGateway(t, to(up).on(redis.store()))
	c := g.client()
	first := c.start(post("lost").tell("Up-Hold", "gate"))
	up.reached("lost", 1)
	waiter := c.start(post("lost"))
	g.awaitWaiting(1)
	redis.do("DEL", recordKey("lost"))
	wantRefusal(t, waiter.answer(), http.StatusServiceUnavailable, "record-lost")
	up.want("lost", 1)

	up.release("gate")
	a := first.answer()
	wantExecuted(t, a)
	wantReplay(t, a, c.do(post("lost")))
	up.want("lost", 1)
}

// A duplicate that waited for an attempt which certainly did nothing is told
// that, and does not go upstream itself: 49 of them at once would be a stampede
// on a server that has just asked for less. A fresh request then does.
func TestWaitersOfARefusedAttemptDoNotGoUpstream(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store))
		c := g.client()
		busy := post("busy").tell("Up-Status", "429").tell("Up-Header", "Retry-After: 7").
			tell("Up-Hold", "gate").tell("Up-Once", "yes")
		first := c.start(busy)
		up.reached("busy", 1)
		waiters := make([]*pending, 49)
		for i := range waiters {
			waiters[i] = c.start(busy)
		}
		g.awaitWaiting(len(waiters))
		up.release("gate")

		a := first.answer()
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "7" || a.code() != "" {
			t.Errorf("want the upstream's own refusal, got status %d, %v", a.status, a.header)
		}
		for _, w := range waiters {
			a := w.answer()
			wantRefusal(t, a, http.StatusTooManyRequests, "not-executed")
			if p := a.problem(); p.Advice != "retry-same-key" || p.Job == "" {
				t.Errorf("want the job and the advice to repeat with the same key, got %+v", p)
			}
		}
		up.want("busy", 1)

		again := c.do(busy)
		wantExecuted(t, again)
		up.want("busy", 2)
		if again.job() != a.job() {
			t.Errorf("the next attempt belongs to job %q, the first to %q", again.job(), a.job())
		}
	})
}
