package e2e

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/e2e/history"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// watched are a primary with two replicas, and sentinels.
type watched struct {
	*servers
	*redistest.Sentinels
	durability string
}

func newSentinels(s *storm) stormStore { return newWatched(s, waitsForReplica) }

func newWatched(s *storm, durability string) *watched {
	v := newServers(s)
	w := &watched{servers: v, durability: durability}
	w.Sentinels = redistest.StartSentinelsWith(s.t, v.setup())
	for _, sentinel := range w.Sentinels.Sentinels {
		w.tune(sentinel)
	}
	v.all = w.Servers
	v.primary = w.present
	v.watch(func() string {
		if p := w.Primary(); p != nil {
			return p.Addr()
		}
		return ""
	})
	return w
}

// tune makes a sentinel fit for what is done here.
func (w *watched) tune(sentinel *redistest.Server) {
	// So that a primary which is only slow is not taken for dead.
	w.must(sentinel, "SENTINEL", "SET", redistest.MasterName, "down-after-milliseconds", 3000)
	// So that it knows which replica has most when the primary dies. It looks every ten
	// seconds otherwise, and on a busy machine it has been seen to promote the other one.
	w.must(sentinel, "SENTINEL", "DEBUG", "info-period", 500)
}

// present waits until there is a primary that sentinels agree on.
func (w *watched) present() (p *redistest.Server) {
	w.s.await("the sentinels know a primary", func() bool {
		p = w.Primary()
		return p != nil && p.IsMaster()
	})
	return p
}

func (w *watched) block(name string) string { return w.store(w.URL(), name, w.durability) }

func (w *watched) says() string {
	said := w.servers.says()
	for _, s := range w.Sentinels.Sentinels {
		said += s.Addr() + ", a sentinel:\n" + s.Output() + "\n"
	}
	return said
}

// whole waits until the primary has both its replicas, and all sentinels know it: the
// next fault is not to be one too many.
func (w *watched) whole() {
	w.s.await("all replicas follow the primary", func() bool {
		p := w.Primary()
		if p == nil || !p.IsMaster() || !w.Settled() {
			return false
		}
		for _, server := range w.all {
			if server != p && !server.ReplicaOf(p) {
				return false
			}
		}
		return true
	})
}

// replaced waits until another server than this one is the primary.
func (w *watched) replaced(old *redistest.Server) (p *redistest.Server) {
	w.s.await("the primary is replaced", func() bool {
		p = w.Primary()
		return p != nil && p != old && p.IsMaster()
	})
	return p
}

// kill kills the primary, has it replaced, and has it back as a replica.
func (w *watched) kill() {
	from, old := w.s.now(), w.present()
	old.Kill()
	w.succeed(old, from)
}

// succeed has a primary that was killed replaced, and has it back as a replica.
func (w *watched) succeed(old *redistest.Server, from time.Duration) {
	has, most := make(map[*redistest.Server]int64), int64(0)
	for _, r := range w.all {
		if r != old {
			has[r] = r.Offset() // it gets no more
			most = max(most, has[r])
		}
	}
	next := w.replaced(old)
	old.Follow(next)
	w.whole()
	f := history.Span{From: from, To: w.s.now(), Beyond: has[next] < most}
	if f.Beyond {
		w.s.count("the replica promoted that has less")
		w.s.t.Logf("the replica was promoted that has %d bytes less", most-has[next])
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.spans.Failovers = append(w.s.spans.Failovers, f)
}

func (w *watched) other(rnd *rand.Rand) *redistest.Server {
	p := w.present()
	for {
		if r := w.all[rnd.IntN(len(w.all))]; r != p {
			return r
		}
	}
}

func (w *watched) faults() map[string]func(*rand.Rand) {
	faults := w.everywhere()
	faults["primary killed"] = func(*rand.Rand) { w.kill() }
	faults["primary frozen until it is replaced"] = func(*rand.Rand) {
		from := w.s.now()
		old := w.present()
		old.Freeze()
		next := w.replaced(old)
		// The other replica follows by now, so that the old primary has nobody left who
		// would acknowledge anything.
		w.s.await("the other replica follows the new primary", func() bool {
			for _, server := range w.all {
				if server != next && server != old && !server.ReplicaOf(next) {
					return false
				}
			}
			return true
		})
		old.Thaw()
		w.whole()
		w.s.span(&w.s.spans.Failovers, from)
	}
	faults["replica killed"] = func(rnd *rand.Rand) {
		r := w.other(rnd)
		r.Kill()
		sleepUpTo(rnd, 2*time.Second)
		r.Follow(w.present())
		w.whole()
	}
	faults["sentinel killed"] = func(rnd *rand.Rand) {
		s := w.Sentinels.Sentinels[rnd.IntN(3)]
		s.Kill()
		sleepUpTo(rnd, 2*time.Second)
		s.Restart()
		w.tune(s)
		w.whole()
	}
	faults["store read-only"] = func(rnd *rand.Rand) {
		p := w.present()
		w.do([]*redistest.Server{p}, "REPLICAOF", "127.0.0.1", "1") // where nobody is
		sleepUpTo(rnd, time.Second)
		w.must(p, "REPLICAOF", "NO", "ONE")
		w.whole()
	}
	forward := faults["clock forward"]
	faults["clock forward"] = func(rnd *rand.Rand) {
		forward(rnd)
		w.whole() // replicas seem to have been silent for long
	}
	back := faults["clock back"]
	faults["clock back"] = func(rnd *rand.Rand) {
		back(rnd)
		w.whole()
	}
	return faults
}

// sharded is a cluster of three masters with a replica each.
type sharded struct {
	*servers
	*redistest.Cluster
}

func newCluster(s *storm) stormStore {
	v := newServers(s)
	// So that a master which is only slow is not taken for dead.
	c := &sharded{servers: v, Cluster: redistest.StartClusterWith(s.t, 3, v.setup("--cluster-node-timeout", "4000"))}
	v.all = append(append(v.all, c.Masters...), c.Replicas...)
	v.watch(func() (masters string) {
		for n := range 3 {
			a, b := c.Masters[n].IsMaster(), c.Replicas[n].IsMaster()
			if a == b {
				return "" // who it is turns out later
			}
			masters += fmt.Sprintf("%d:%v ", n, a)
		}
		return masters
	})
	rnd := s.draw("shard")
	v.primary = func() *redistest.Server {
		master, _ := c.shard(rnd.IntN(3))
		return master
	}
	return c
}

// shard returns the master and the replica of a shard, as they are now.
func (c *sharded) shard(n int) (master, replica *redistest.Server) {
	c.s.await("a shard has a master and a replica", func() bool {
		master, replica = c.Masters[n], c.Replicas[n]
		if !master.IsMaster() {
			master, replica = replica, master
		}
		return master.IsMaster() && replica.ReplicaOf(master)
	})
	return master, replica
}

func (c *sharded) block(name string) string { return c.store(c.URL(), name, waitsForReplica) }

func (c *sharded) faults() map[string]func(*rand.Rand) {
	faults := c.everywhere()
	// A server of a cluster that takes no writes says who does.
	faults["master killed"] = func(rnd *rand.Rand) {
		from, n := c.s.now(), rnd.IntN(3)
		master, replica := c.shard(n)
		master.Kill()
		c.s.await("the replica has taken over", replica.IsMaster)
		master.Restart()
		c.shard(n)
		c.s.span(&c.s.spans.Failovers, from)
	}
	faults["master frozen until it is replaced"] = func(rnd *rand.Rand) {
		from, n := c.s.now(), rnd.IntN(3)
		master, replica := c.shard(n)
		master.Freeze()
		c.s.await("the replica has taken over", replica.IsMaster)
		master.Thaw()
		c.s.await("the old master follows", func() bool { return !master.IsMaster() && master.ReplicaOf(replica) })
		c.s.span(&c.s.spans.Failovers, from)
	}
	faults["master changed in good order"] = func(rnd *rand.Rand) {
		from := c.s.now()
		master, replica := c.shard(rnd.IntN(3))
		c.s.await("the replica takes over", func() bool {
			c.do([]*redistest.Server{replica}, "CLUSTER", "FAILOVER")
			time.Sleep(100 * time.Millisecond)
			return replica.IsMaster() && !master.IsMaster()
		})
		c.s.await("the old master follows", func() bool { return master.ReplicaOf(replica) })
		c.s.span(&c.s.spans.Failovers, from)
	}
	faults["replica killed"] = func(rnd *rand.Rand) {
		n := rnd.IntN(3)
		_, replica := c.shard(n)
		replica.Kill()
		sleepUpTo(rnd, 2*time.Second)
		replica.Restart()
		c.shard(n)
	}
	faults["slots migrated"] = func(rnd *rand.Rand) {
		for _, key := range c.s.crowd.recent(20) {
			record := redisstore.RecordKey(redisstore.DefaultPrefix, keystore.NameOf(kindOf(key), "alice", key))
			to, _ := c.shard(rnd.IntN(3))
			if c.MasterOf(record) != to {
				c.Migrate(record, to)
			}
		}
		// A master that dies before its replica has what was moved to it would take that
		// with it: one fault at a time.
		for n := range 3 {
			master, replica := c.shard(n)
			moved := master.Offset()
			c.s.await("the replica has what was moved", func() bool { return replica.Offset() >= moved })
		}
	}
	for _, name := range []string{"clock forward", "clock back"} {
		step := faults[name]
		faults[name] = func(rnd *rand.Rand) {
			step(rnd)
			for n := range 3 {
				c.shard(n)
			}
		}
	}
	return faults
}
