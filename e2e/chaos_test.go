package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
)

// chaosKey is the key of the i-th request of a test that breaks things at random.
func chaosKey(i int) string { return fmt.Sprintf("chaos-%d", i) }

// pester sends requests with this many keys, each until there is an answer that
// tells its fate, and returns the answers by key. Progress is told as they come.
func pester(keys int, progress chan<- struct{}, clients ...*client) map[string]answer {
	const workers = 8
	answers := make(map[string]answer)
	var mu sync.Mutex
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < keys; i += workers {
				for n := 0; ; n++ {
					a := clients[n%len(clients)].do(post(chaosKey(i)).tell("Up-Sleep", "20ms"))
					if a.err == nil && (a.status == http.StatusOK || a.code() == "outcome-unknown") {
						mu.Lock()
						answers[chaosKey(i)] = a
						mu.Unlock()
						break
					}
				}
				select {
				case progress <- struct{}{}:
				default:
				}
			}
		})
	}
	all.Wait()
	return answers
}

// killing kills and restarts a gateway at random moments while requests come in,
// and returns the answers by key.
func killing(t *testing.T, g *gateway, keys, deaths int) map[string]answer {
	t.Helper()
	progress, done := make(chan struct{}, 1), make(chan map[string]answer, 1)
	c := g.client()
	go func() { done <- pester(keys, progress, c) }()
	for range deaths {
		select {
		case <-progress:
		case answers := <-done: // too quick for that many deaths
			return answers
		case <-time.After(patience):
			t.Fatal("nothing was answered between two deaths")
		}
		time.Sleep(rand.N(50 * time.Millisecond)) // at whatever moment
		g.kill()
		g.restart()
	}
	return <-done
}

// wantTold checks that no key was executed twice, that whoever was told an answer
// gets the same one again, and that a key of which nobody knows is still blocked,
// unless its late answer has come. It returns how many keys nobody knew of.
func wantTold(t *testing.T, up *upstream, c *client, keys int, answers map[string]answer) (unknown int) {
	t.Helper()
	for i := range keys {
		key := chaosKey(i)
		told := answers[key]
		n := len(up.of(key))
		switch {
		case n > 1:
			t.Errorf("%s was executed %d times", key, n)
		case told.status == http.StatusOK && n != 1:
			t.Errorf("%s was answered %s, and executed %d times", key, told.body, n)
		}
		again := c.do(post(key))
		if told.status == http.StatusOK {
			wantReplay(t, told, again)
			continue
		}
		unknown++
		if again.code() != "outcome-unknown" && again.status != http.StatusOK {
			t.Errorf("%s was unknown, and now there is %d %s", key, again.status, again.body)
		}
		up.want(key, n)
	}
	return unknown
}

// However often a gateway is killed: nothing is executed twice, and what a client
// was told is told again.
func TestKilledGatewayForgetsNothingItHasTold(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		const keys, deaths = 100, 5
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store).with("lease", "2s").with("wait", "100ms"))
		answers := killing(t, g, keys, deaths)
		t.Logf("%d of %d keys are unknown after %d deaths", wantTold(t, up, g.client(), keys, answers), keys, deaths)
	})
}

// CL-13: record and expiry are one write. However often a gateway is killed,
// every record either expires, or belongs to a job that is unresolved, which
// time alone must not free.
func TestCL13KilledGatewayLeavesNoRecordWithoutExpiry(t *testing.T) {
	t.Parallel()
	const keys, deaths = 200, 8
	up, redis := newUpstream(t), startRedis(t)
	g := startGateway(t, to(up).on(redis.store()).with("lease", "2s").with("wait", "100ms"))
	killing(t, g, keys, deaths)
	store, unresolved := redis.open(), 0
	for i := range keys {
		j := getJob(t, store, chaosKey(i))
		if j == nil {
			t.Errorf("%s has no record", chaosKey(i))
			continue
		}
		if j.Unresolved() {
			unresolved++
		}
		if expires := redis.do("PTTL", recordKey(chaosKey(i))).(int64) != -1; expires == j.Unresolved() {
			t.Errorf("%s: unresolved %v, but its record expires: %v", chaosKey(i), j.Unresolved(), expires)
		}
	}
	t.Logf("%d records, %d of them unresolved after %d deaths", len(redis.records()), unresolved, deaths)
	if n := len(redis.records()); n != keys {
		t.Errorf("%d records for %d keys", n, keys)
	}
}

// A network to Redis that loses one reply in ten and one command in twenty, and
// two gateways whose clients repeat until they know: nothing is executed twice,
// and what was told stays.
func TestFaultyNetworkToTheStoreExecutesOnce(t *testing.T) {
	t.Parallel()
	const keys = 150
	up, redis := newUpstream(t), startRedis(t)
	net := faultnet.New(t, redis.Addr())
	faulty := to(up).on(storeAt(net.Addr())).with("lease", "10s").with("wait", "2s")
	one, two := startGateway(t, faulty).client(), startGateway(t, faulty).client()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, command := range []string{"SET", "EVALSHA", "GET"} {
		net.Inject(faultnet.Fault{Command: command, Do: faultnet.LoseReplyAndCut, Chance: 0.1, Seed: seed})
		net.Inject(faultnet.Fault{Command: command, Do: faultnet.CutBefore, Chance: 0.05, Seed: seed + 1})
	}
	answers := pester(keys, nil, one, two)
	healthy := startGateway(t, to(up).on(redis.store())).client()
	t.Logf("%d of %d keys are unknown", wantTold(t, up, healthy, keys, answers), keys)
}
