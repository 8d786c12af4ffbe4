package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// MasterName is the name that sentinels know their servers by.
const MasterName = "mymaster"

// Sentinels are a primary with two replicas, and three sentinels that watch them.
// Create it with [StartSentinels].
type Sentinels struct {
	t testing.TB
	// Servers are the primary, as it was at the start, and its replicas.
	Servers   []*Server
	Sentinels []*Server
}

// StartSentinels runs them, and waits until the sentinels could replace the
// primary. Arguments are those of each server.
func StartSentinels(t testing.TB, args ...string) *Sentinels {
	t.Helper()
	return StartSentinelsWith(t, Setup{Args: args})
}

// StartSentinelsWith is [StartSentinels] with all that can be said of the servers.
func StartSentinelsWith(t testing.TB, with Setup) *Sentinels {
	t.Helper()
	g := &Sentinels{t: t}
	with.Args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, with.Args...)
	primary := start(t, server, with, func(s *Server) []string {
		return append([]string{"--replica-announce-port", s.frontPort()}, with.Args...)
	})
	g.Servers = []*Server{primary}
	for range 2 {
		g.Servers = append(g.Servers, startReplica(t, primary, with))
	}
	for range 3 {
		g.Sentinels = append(g.Sentinels, start(t, sentinel, Setup{}, func(s *Server) []string {
			config := filepath.Join(s.dir, "sentinel.conf")
			text := fmt.Sprintf(`bind 127.0.0.1
port %s
dir %s
sentinel monitor %[3]s 127.0.0.1 %[4]s 2
sentinel down-after-milliseconds %[3]s 1000
sentinel failover-timeout %[3]s 5000
sentinel parallel-syncs %[3]s 2
`, s.port, s.dir, MasterName, primary.frontPort())
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatalf("redistest: configure a sentinel: %v", err)
			}
			return []string{config}
		}))
	}
	for _, s := range g.Sentinels {
		g.await("a sentinel knows all", func() bool {
			return strings.HasSuffix(s.field("info", "sentinel", "master0"), ",slaves=2,sentinels=3")
		})
	}
	return g
}

// URL is the sentinels' one.
func (g *Sentinels) URL() string {
	return fmt.Sprintf("redis+sentinel://%s?master_name=%s&addr=%s&addr=%s",
		g.Sentinels[0].Addr(), MasterName, g.Sentinels[1].Addr(), g.Sentinels[2].Addr())
}

// Primary returns the server that most sentinels hold for the primary.
func (g *Sentinels) Primary() *Server {
	votes := make(map[string]int)
	for _, s := range g.Sentinels {
		if at, _ := s.do("sentinel", "get-master-addr-by-name", MasterName).([]any); len(at) == 2 {
			port, _ := at[1].(string)
			votes[port]++
		}
	}
	for _, s := range g.Servers {
		if 2*votes[s.frontPort()] > len(g.Sentinels) {
			return s
		}
	}
	return nil
}

// Settled reports whether all sentinels agree on the primary, have finished whatever
// they were doing, and hold both replicas for able to take its place. Before, another
// failure would be one too many for them.
func (g *Sentinels) Settled() bool {
	p := g.Primary()
	if p == nil {
		return false
	}
	for _, s := range g.Sentinels {
		m := fields(s.do("sentinel", "master", MasterName))
		if m["port"] != p.frontPort() || m["flags"] != "master" || m["num-other-sentinels"] != "2" {
			return false
		}
		replicas, _ := s.do("sentinel", "replicas", MasterName).([]any)
		if len(replicas) != len(g.Servers)-1 {
			return false
		}
		for _, r := range replicas {
			if r := fields(r); r["flags"] != "slave" || r["master-link-status"] != "ok" || r["master-port"] != p.frontPort() {
				return false
			}
		}
	}
	return true
}

// fields returns what a command reports as names and values in turn.
func fields(reply any) map[string]string {
	of := make(map[string]string)
	list, _ := reply.([]any)
	for i := 0; i+1 < len(list); i += 2 {
		name, _ := list[i].(string)
		of[name], _ = list[i+1].(string)
	}
	return of
}

func (g *Sentinels) await(what string, f func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("redistest: it never came: %s", what)
		}
	}
}
