package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// impossibleStore says that a record is there, and has none.
type impossibleStore struct{ keystore.Store }

func (impossibleStore) Create(context.Context, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, false, nil
}

// CL-08: a claim that is told "already there" together with "nothing there" has
// claimed nothing, and nothing is dispatched. No real store answers like this,
// so that this is the one test with a store made for it.
func TestCL08ImpossibleAnswerOfTheStoreDispatchesNothing(t *testing.T) {
	t.Parallel()
	bolt, err := boltstore.Open(t.TempDir()+"/jobs", boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer bolt.Close()
	gateway := proxy.NewGateway(impossibleStore{bolt}, proxy.GatewayOptions{})
	defer gateway.Close()
	route, err := proxy.NewRoute(gateway, proxy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var executions atomic.Int32
	server := httptest.NewServer(route.Middleware(
		func(r *http.Request) string { return r.Header.Get("X-Owner") },
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { executions.Add(1) })))
	defer server.Close()
	c := &client{t: t, url: server.URL, c: server.Client()}
	a := c.do(post("impossible"))
	wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
	retryAfter(t, a)
	if n := executions.Load(); n != 0 {
		t.Errorf("%d executions, want none", n)
	}
}

// CL-09: a claim whose reply was lost meets its own record when it is sent
// again, and knows it by its write id: the job runs, once.
func TestCL09LostReplyToTheClaimExecutesOnce(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	net := faultnet.New(t, redis.Addr())
	c := startGateway(t, to(up).on(storeAt(net.Addr()))).client()
	for key, lose := range map[string]faultnet.Action{"cut": faultnet.LoseReplyAndCut, "silent": faultnet.LoseReplyAndHang} {
		net.Inject(faultnet.Fault{Command: "SET", Do: lose, Times: 1})
		a := c.do(post(key))
		wantExecuted(t, a)
		up.want(key, 1)
		wantReplay(t, a, c.do(post(key)))
		up.want(key, 1)
	}
}

// A claim of which nobody ever learns whether it landed is refused and not
// dispatched. In the background the record comes to say so, whether it had
// landed or not, and then the key works like any other.
func TestAmbiguousClaimIsRefusedAndFreedAgain(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	net := faultnet.New(t, redis.Addr())
	c := startGateway(t, to(up).on(storeAt(net.Addr())).with("wait", "100ms")).client()
	wantExecuted(t, c.do(post("warm")))
	for key, fault := range map[string]faultnet.Fault{
		"landed":     {Command: "SET", Do: faultnet.LoseReplyAndCut},
		"not-landed": {Command: "SET", Do: faultnet.CutBefore},
	} {
		remove := net.Inject(fault)
		a := c.do(post(key))
		wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
		if p := a.problem(); p.Advice != "retry-same-key" {
			t.Errorf("%s: want the advice to repeat with the same key, got %+v", key, p)
		}
		retryAfter(t, a)
		up.want(key, 0)
		remove()

		a = untilStatus(t, c, post(key), http.StatusOK)
		wantExecuted(t, a)
		wantReplay(t, a, c.do(post(key)))
		up.want(key, 1)
	}
}

// CL-12: completing a job keeps what it was bound to. An identical repetition is
// the same request on any gateway.
func TestCL12CompletionKeepsTheFingerprint(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	one := startGateway(t, to(up).on(redis.store())).client()
	two := startGateway(t, to(up).on(redis.store())).client()
	store := redis.open()
	first := one.start(post("bound").tell("Up-Hold", "gate"))
	up.reached("bound", 1)
	claimed := getJob(t, store, "bound")
	up.release("gate")
	a := first.answer()
	wantExecuted(t, a)
	completed := getJob(t, store, "bound")
	if claimed.Fingerprint != completed.Fingerprint || claimed.Owner != completed.Owner ||
		claimed.Created != completed.Created || claimed.ID != completed.ID || claimed.KeySent != completed.KeySent {
		t.Errorf("completing has changed what never changes:\n%+v\n%+v", claimed, completed)
	}
	wantReplay(t, a, two.do(post("bound")))
	up.want("bound", 1)
}

// CL-14: what stands under a record's name and is no record is never taken for
// one, nor for none. Nothing is dispatched, nothing breaks, and other keys work.
func TestCL14GarbledRecordDispatchesNothing(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	c := startGateway(t, to(up).on(redis.store()).with("cache", "off")).client()
	redis.do("SET", recordKey("garbage"), "garbage")
	redis.do("SET", recordKey("empty"), "")
	redis.do("LPUSH", recordKey("list"), "x")
	wantExecuted(t, c.do(post("truncated")))
	record := redis.do("GET", recordKey("truncated")).(string)
	redis.do("SET", recordKey("truncated"), record[:len(record)/2])
	for _, key := range []string{"garbage", "empty", "list", "truncated"} {
		for _, a := range volley(3, post(key), c) {
			wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
		}
	}
	for _, key := range []string{"garbage", "empty", "list"} {
		up.want(key, 0)
	}
	up.want("truncated", 1)
	wantExecuted(t, c.do(post("healthy")))
}

// CL-15: the result is not saved in passing. While the store takes no writes it
// is tried again; the client need not wait for that, and later repetitions find
// the result, and not a job in flight for ever.
func TestCL15ResultIsSavedOnceTheStoreTakesIt(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	c := startGateway(t, to(up).on(redis.store()).with("lease", "5s").with("wait", "100ms")).client()
	first := c.start(post("saved").tell("Up-Hold", "gate"))
	up.reached("saved", 1)
	redis.do("CLIENT", "PAUSE", 4000, "WRITE")
	up.release("gate")
	a := first.answer()
	if a.status != http.StatusOK || a.code() != "" {
		t.Fatalf("want the upstream's answer, got %d %s", a.status, a.body)
	}
	replay := untilStatus(t, c, post("saved"), http.StatusOK)
	wantReplay(t, a, replay)
	up.want("saved", 1)
}

// RED-11: a store that fails after the upstream has succeeded does not turn the
// success into an error. The client gets the real answer soon, told that it is
// not recorded; once the store is back a repetition gets it too, or is blocked.
func TestRED11StoreFailsAfterTheUpstreamSucceeded(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redisServer) (heal func()){
		"stopped": func(s *redisServer) func() { s.Stop(); return s.Restart },
		"frozen":  func(s *redisServer) func() { s.Freeze(); return s.Thaw },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up, redis := newUpstream(t), startDurableRedis(t)
			c := startGateway(t, to(up).on(redis.store()).with("wait", "100ms")).client()
			first := c.start(post("paid").tell("Up-Hold", "gate"))
			up.reached("paid", 1)
			heal := fail(redis)
			released := time.Now()
			up.release("gate")
			a := first.answer()
			t.Logf("answered %s after the upstream", time.Since(released).Round(time.Millisecond))
			if a.status != http.StatusOK || a.code() != "" || a.header.Get("Idempotency-Recorded") != "false" {
				t.Fatalf("want the upstream's answer, marked as not recorded, got %d %v %s", a.status, a.header, a.body)
			}
			// The attempt's own timeout is a minute: this is not that.
			if took := time.Since(released); took > 20*time.Second {
				t.Errorf("the answer was held back for %s", took)
			}
			wantRefusal(t, c.do(post("paid")), http.StatusServiceUnavailable, "store-unavailable")
			up.want("paid", 1)

			heal()
			again := untilStatus(t, c, post("paid"), http.StatusOK)
			wantReplay(t, a, again)
			up.want("paid", 1)
		})
	}
}
