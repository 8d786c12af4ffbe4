package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// startSibling adds an attempt to a running job, as a gateway on a racing route
// would, and returns the record with it.
func startSibling(t *testing.T, store keystore.Store, key string, token keystore.Token) *keystore.Job {
	t.Helper()
	for {
		present := getJob(t, store, key)
		next := present.Start(keystore.NewAttempt{Token: token, Provider: "second", At: store.Now(), Lease: time.Minute, Listen: time.Minute})
		next.WriteID = keystore.NewWriteID()
		_, swapped, err := store.Swap(t.Context(), present.WriteID, next)
		if err != nil {
			t.Fatalf("start a sibling: %v", err)
		}
		if swapped {
			return next
		}
	}
}

// commit reports an attempt's answer until the store has taken it, as a gateway
// does, and returns what it is told.
func commit(ctx context.Context, store keystore.Store, seen *keystore.Job, token keystore.Token, body string) (keystore.Effect, error) {
	for {
		settled := seen.Report(keystore.Report{
			Token: token, Outcome: keystore.OutcomeFinal, At: store.Now(),
			Response: &keystore.Response{Status: http.StatusOK, Body: []byte(body), Size: int64(len(body)), Answered: store.Now()},
		})
		if settled.Next == nil {
			return settled.Effect, nil
		}
		settled.Next.WriteID = keystore.NewWriteID()
		present, swapped, err := store.Swap(ctx, seen.WriteID, settled.Next)
		if err != nil || swapped {
			return settled.Effect, err
		}
		if present == nil {
			return keystore.EffectLost, nil
		}
		seen = present
	}
}

// Two attempts of one job, each against an upstream of its own. The one that was
// started last finishes first and wins; the gateway's own comes too late, is
// discarded, logged and counted; its client gets the winner's answer, as does
// every repetition.
func TestSiblingThatFinishesFirstWins(t *testing.T) {
	t.Parallel()
	one, two, redis := newUpstream(t), newUpstream(t), startRedis(t)
	g := startGateway(t, to(one).on(redis.store()))
	c := g.client()
	first := c.start(post("race").tell("Up-Hold", "gate"))
	one.reached("race", 1)

	store, token := redis.open(), keystore.NewToken()
	seen := startSibling(t, store, "race", token)
	status, body, err := get("http://" + two.addr + "/race")
	if err != nil || status != http.StatusOK {
		t.Fatalf("ask the second upstream: %d, %v", status, err)
	}
	if effect, err := commit(t.Context(), store, seen, token, body); err != nil || effect != keystore.EffectWon {
		t.Fatalf("the first to finish was told %v, %v", effect, err)
	}

	one.release("gate")
	a := first.answer()
	if a.status != http.StatusOK || a.body != body {
		t.Errorf("want the winner's answer %s, got %d %s", body, a.status, a.body)
	}
	wantMarked(t, a)
	again := c.do(post("race"))
	wantReplay(t, a, again)
	one.want("race", 1)

	j := getJob(t, store, "race")
	if late := j.Attempts[0]; late.State != keystore.AttemptDiscarded || late.Evidence.Status != http.StatusOK {
		t.Errorf("the late attempt is %s with status %d, want discarded with its evidence", late.State, late.Evidence.Status)
	}
	if j.CompletedBy != token {
		t.Error("the slot does not name the attempt that finished first")
	}
	if !strings.Contains(g.log(), "discarded") {
		t.Error("the log says nothing of a discarded attempt")
	}
	if n := g.counts("caddy_idempotency_incidents_total", "incident")["discarded"]; n != 1 {
		t.Errorf("%d discarded attempts are counted, want one", n)
	}
}

// The same the other way round: the one that was started first finishes first.
func TestSiblingThatFinishesLastIsDiscarded(t *testing.T) {
	t.Parallel()
	one, redis := newUpstream(t), startRedis(t)
	c := startGateway(t, to(one).on(redis.store())).client()
	first := c.start(post("race").tell("Up-Hold", "gate"))
	one.reached("race", 1)
	store, token := redis.open(), keystore.NewToken()
	seen := startSibling(t, store, "race", token)
	one.release("gate")
	a := first.answer()
	wantExecuted(t, a)
	if effect, err := commit(t.Context(), store, seen, token, "too late"); err != nil || effect == keystore.EffectWon || effect == keystore.EffectAlreadyWon {
		t.Errorf("the second to finish was told %v, %v", effect, err)
	}
	if late := getJob(t, store, "race").Attempt(token); late.State != keystore.AttemptDiscarded {
		t.Errorf("the second attempt is %s, want discarded", late.State)
	}
	wantReplay(t, a, c.do(post("race")))
	one.want("race", 1)
}
