package redistest

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
)

// nodeTimeout is how long a server of a cluster may be silent before the others
// replace it; the failover takes about twice as long.
const nodeTimeout = 2 * time.Second

// slots is how many there are.
const slots = 16384

// Cluster is a Redis Cluster. Create it with [StartCluster].
type Cluster struct {
	t    testing.TB
	with Setup
	// Masters and Replicas are as they were at the start: the replica of Masters[0]
	// is Replicas[0], and so on.
	Masters, Replicas []*Server
}

// StartCluster runs a cluster of masters with as many replicas, and waits until
// every replica could take its master's place. Arguments are those of each server.
func StartCluster(t testing.TB, masters int, args ...string) *Cluster {
	t.Helper()
	return StartClusterWith(t, masters, Setup{Args: args})
}

// StartClusterWith is [StartCluster] with all that can be said of the servers.
func StartClusterWith(t testing.TB, masters int, with Setup) *Cluster {
	t.Helper()
	c := &Cluster{t: t, with: with}
	servers := make([]*Server, 2*masters)
	for i := range servers {
		servers[i] = c.start()
	}
	c.Masters, c.Replicas = servers[:masters], servers[masters:]
	ids := make([]string, masters)
	for i, s := range c.Masters {
		ids[i] = s.must("cluster", "myid").(string)
		s.must("cluster", "set-config-epoch", i+1)
		s.must("cluster", "addslotsrange", i*slots/masters, (i+1)*slots/masters-1)
	}
	for _, s := range servers[1:] {
		c.meet(s)
	}
	c.awaitAcquaintance()
	for i, s := range c.Replicas {
		s.must("cluster", "replicate", ids[i])
	}
	c.await("every replica has its master's data", func(s *Server) bool {
		return !slices.Contains(c.Replicas, s) || s.field("info", "replication", "master_link_status") == "up"
	})
	c.await("every server knows every replica", func(s *Server) bool {
		nodes, _ := s.do("cluster", "nodes").(string)
		return s.field("cluster", "info", "cluster_state") == "ok" &&
			strings.Count(nodes, "slave") == masters && !strings.Contains(nodes, "handshake")
	})
	return c
}

// start runs a server that is of no cluster yet.
func (c *Cluster) start() *Server {
	return start(c.t, server, c.with, func(s *Server) []string {
		return append([]string{
			"--cluster-enabled", "yes", "--cluster-port", testport.Take(c.t), "--cluster-announce-port", s.frontPort(), "--replica-announce-port", s.frontPort(),
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
			"--cluster-require-full-coverage", "no", // else one dead master stops them all
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
		}, c.with.Args...)
	})
}

func (c *Cluster) meet(s *Server) {
	first := c.Masters[0]
	_, port, _ := net.SplitHostPort(first.Addr())
	s.must("cluster", "meet", "127.0.0.1", port, first.argument("--cluster-port"))
}

func (c *Cluster) awaitAcquaintance() {
	c.await("all know each other", func(s *Server) bool {
		return s.field("cluster", "info", "cluster_known_nodes") == strconv.Itoa(len(c.servers()))
	})
}

// Join adds a master that has no slots yet, and no replica.
func (c *Cluster) Join() *Server {
	c.t.Helper()
	s := c.start()
	c.Masters = append(c.Masters, s)
	c.meet(s)
	c.awaitAcquaintance()
	c.await("the new server takes writes", func(s *Server) bool { return s.field("cluster", "info", "cluster_state") == "ok" })
	return s
}

func (c *Cluster) servers() []*Server { return slices.Concat(c.Masters, c.Replicas) }

// URL is the cluster's, with the addresses of all its servers.
func (c *Cluster) URL() string {
	var url strings.Builder
	for i, s := range c.servers() {
		switch i {
		case 0:
			fmt.Fprintf(&url, "redis+cluster://%s", s.front)
		case 1:
			fmt.Fprintf(&url, "?addr=%s", s.front)
		default:
			fmt.Fprintf(&url, "&addr=%s", s.front)
		}
	}
	return url.String()
}

// Client returns a client that is closed at the test's end.
func (c *Cluster) Client() *redis.ClusterClient {
	o := &redis.ClusterOptions{ClusterStateReloadInterval: time.Second}
	for _, s := range c.servers() {
		o.Addrs = append(o.Addrs, s.front)
	}
	client := redis.NewClusterClient(o)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// MasterOf returns the server that has a key at present.
func (c *Cluster) MasterOf(key string) *Server {
	c.t.Helper()
	slot := c.servers()[0].must("cluster", "keyslot", key).(int64)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, s := range c.servers() {
			nodes, _ := s.do("cluster", "nodes").(string)
			for line := range strings.Lines(nodes) {
				if strings.Contains(line, "myself,master") && hasSlot(strings.Fields(line), slot) {
					return s
				}
			}
		}
	}
	c.t.Fatalf("redistest: no server has slot %d", slot)
	return nil
}

func hasSlot(fields []string, slot int64) bool {
	for _, f := range fields[min(8, len(fields)):] {
		from, to, ok := strings.Cut(f, "-")
		if !ok {
			to = from
		}
		first, _ := strconv.ParseInt(from, 10, 64)
		last, err := strconv.ParseInt(to, 10, 64)
		if err == nil && first <= slot && slot <= last {
			return true
		}
	}
	return false
}

// Migrate moves the slot of a key, with its keys, to another master, key by key, and
// waits until all servers know.
func (c *Cluster) Migrate(key string, to *Server) {
	c.t.Helper()
	c.Migrating(key, to)()
}

// Migrating is [Cluster.Migrate] up to where all keys have moved and the slot has not.
// What it returns does the rest.
func (c *Cluster) Migrating(key string, to *Server) (finish func()) {
	c.t.Helper()
	from := c.MasterOf(key)
	slot := from.must("cluster", "keyslot", key).(int64)
	fromID, toID := from.must("cluster", "myid").(string), to.must("cluster", "myid").(string)
	to.must("cluster", "setslot", slot, "importing", fromID)
	from.must("cluster", "setslot", slot, "migrating", toID)
	for {
		keys, _ := from.must("cluster", "getkeysinslot", slot, 100).([]any)
		if len(keys) == 0 {
			break
		}
		for _, k := range keys {
			from.must("migrate", "127.0.0.1", to.port, k, 0, 5000)
		}
	}
	return func() {
		c.t.Helper()
		to.must("cluster", "setslot", slot, "node", toID)
		from.must("cluster", "setslot", slot, "node", toID)
		c.await("every server knows who has the slot", func(s *Server) bool {
			nodes, _ := s.do("cluster", "nodes").(string)
			for line := range strings.Lines(nodes) {
				if fields := strings.Fields(line); hasSlot(fields, slot) {
					return fields[0] == toID
				}
			}
			return false
		})
	}
}

func (c *Cluster) await(what string, f func(*Server) bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if !slices.ContainsFunc(c.servers(), func(s *Server) bool { return !f(s) }) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("redistest: it never came: %s", what)
		}
	}
}
