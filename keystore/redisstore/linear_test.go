package redisstore

import (
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

func TestLinearizable(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func(testing.TB) storetest.Backend{
		"miniredis": onMiniredis, "redis": onRedis,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Linearizable(t, backend, storetest.Load{})
		})
	}
}

// TestLinearizableWhileRepliesAreLost runs through a network that executes some
// commands without telling, and loses as many before they are executed.
func TestLinearizableWhileRepliesAreLost(t *testing.T) {
	t.Parallel()
	servers := map[string]func(t testing.TB) string{
		"miniredis": func(t testing.TB) string { return miniredis.RunT(t).Addr() },
		"redis":     func(t testing.TB) string { return redistest.Start(t).Addr() },
	}
	senders := map[string]func(*Options){
		"sent once":                  func(o *Options) { o.Resends = -1 },
		"sent again":                 func(*Options) {},
		"sent again by the client":   func(o *Options) { o.Resends, o.ClientRetries = -1, 3 },
		"sent again by both of them": func(o *Options) { o.ClientRetries = 3 },
	}
	for server, start := range servers {
		for sender, change := range senders {
			t.Run(server+"/"+sender, func(t *testing.T) {
				t.Parallel()
				storetest.Linearizable(t, func(t testing.TB) storetest.Backend {
					proxy := faultnet.New(t, start(t))
					for i, command := range []string{"set", "evalsha", "get"} {
						proxy.Inject(faultnet.Fault{Command: command, Do: faultnet.LoseReplyAndCut, Chance: 0.03, Seed: uint64(i)})
						proxy.Inject(faultnet.Fault{Command: command, Do: faultnet.CutBefore, Chance: 0.03, Seed: uint64(i + 100)})
					}
					return storetest.Backend{
						Open: func(t testing.TB) keystore.Store { return openAt(t, "redis://"+proxy.Addr(), change) },
					}
				}, storetest.Load{Operations: 80})
			})
		}
	}
}

// TestLinearizableManyWhileRepliesAreLost does the same with all swaps going
// through SwapMany.
func TestLinearizableManyWhileRepliesAreLost(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		storetest.Linearizable(t, func(t testing.TB) storetest.Backend {
			proxy := faultnet.New(t, addr)
			for i, command := range []string{"set", "evalsha", "get"} {
				proxy.Inject(faultnet.Fault{Command: command, Do: faultnet.LoseReplyAndCut, Chance: 0.03, Seed: uint64(i)})
				proxy.Inject(faultnet.Fault{Command: command, Do: faultnet.CutBefore, Chance: 0.03, Seed: uint64(i + 100)})
			}
			return storetest.Backend{Open: func(t testing.TB) keystore.Store {
				return storetest.ThroughMany{Store: openAt(t, "redis://"+proxy.Addr())}
			}}
		}, storetest.Load{Operations: 80})
	})
}
