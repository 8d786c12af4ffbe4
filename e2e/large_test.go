package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// RED-18: a large answer does not stand in the record, which everybody reads and
// every change writes again, but under a name of its own, with an expiry. While many
// replay it others claim their keys. One that is larger than what may be kept is
// passed on whole, and not kept at all.
func TestRED18LargeAnswersStandApart(t *testing.T) {
	t.Parallel()
	const size, over = 1 << 20, 3 << 20
	up, redis := newUpstream(t), startRedis(t)
	c := startGateway(t, to(up).on(redis.store()).with("max_response_body", "1MiB")).client()
	bodies := func() (keys []string) {
		all := redis.c.Scan(context.Background(), 0, redisstore.DefaultPrefix+"r:*", 1000).Iterator()
		for all.Next(context.Background()) {
			keys = append(keys, all.Val())
		}
		return keys
	}
	small := func(key string) {
		t.Helper()
		if used := redis.do("MEMORY", "USAGE", recordKey(key)).(int64); used > 4096 {
			t.Errorf("%s: the record takes %d bytes", key, used)
		}
	}

	large := post("large").tell("Up-Body", fmt.Sprint(size))
	a := c.do(large)
	wantExecuted(t, a)
	if len(a.body) != size {
		t.Fatalf("want %d bytes, got %d", size, len(a.body))
	}
	small("large")
	apart := bodies()
	if len(apart) != 1 || redis.do("PTTL", apart[0]).(int64) <= redis.do("PTTL", recordKey("large")).(int64) {
		t.Errorf("want one body that outlives its record, got %v", apart)
	}

	const each = 20
	var all sync.WaitGroup
	var mu sync.Mutex
	var replays []answer
	var took []time.Duration
	for i := range each {
		all.Go(func() {
			for range 3 {
				b := c.do(large)
				mu.Lock()
				replays = append(replays, b)
				mu.Unlock()
			}
		})
		all.Go(func() {
			for n := range 3 {
				key := fmt.Sprintf("other-%d-%d", i, n)
				b := c.do(post(key))
				if b.status != http.StatusOK || b.replayed() {
					t.Errorf("%s: want it executed, got %d %v", key, b.status, b.err)
				}
				up.want(key, 1)
				mu.Lock()
				took = append(took, b.took)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for _, b := range replays {
		wantReplay(t, a, b)
	}
	slices.Sort(took)
	t.Logf("fresh requests while 1 MiB is replayed %d times: p50 %s, slowest %s", 3*each, took[len(took)/2], took[len(took)-1])
	up.want("large", 1)

	huge := post("huge").tell("Up-Body", fmt.Sprint(over))
	if a := c.do(huge); a.status != http.StatusOK || len(a.body) != over {
		t.Fatalf("want the whole answer, got %d with %d bytes, %v", a.status, len(a.body), a.err)
	}
	wantRefusal(t, untilCode(t, c, huge, "result-not-kept"), http.StatusGone, "result-not-kept")
	up.want("huge", 1)
	small("huge")
	if n := len(bodies()); n != 1 {
		t.Errorf("%d bodies are kept, want the one", n)
	}
}
