package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/cutter"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

// clocked is the embedded store, with a clock that can be moved.
type clocked struct {
	s          *storm
	dir, clock string
	ahead      time.Duration
}

func newClocked(s *storm) stormStore {
	dir := s.t.TempDir()
	c := &clocked{s: s, dir: dir, clock: filepath.Join(dir, "clock")}
	c.step(0)
	return c
}

func (c *clocked) block(string) string {
	return "store clocked " + filepath.Join(c.dir, "jobs") + " " + c.clock
}

func (c *clocked) fronts() []*cutter.Cutter { return nil }

func (c *clocked) says() string { return "" } // the gateways do

func (c *clocked) step(by time.Duration) {
	c.s.t.Helper()
	c.ahead += by
	c.s.jumped(c.ahead)
	// Whoever reads it sees all of it.
	if err := os.WriteFile(c.clock+".new", binary.NativeEndian.AppendUint64(nil, uint64(c.ahead)), 0o600); err != nil {
		c.s.t.Fatal(err)
	}
	if err := os.Rename(c.clock+".new", c.clock); err != nil {
		c.s.t.Fatal(err)
	}
}

func (c *clocked) faults() map[string]func(*rand.Rand) { return c.s.clockFaults(c.step) }

// servers are Redis servers with a cutter before each of them.
type servers struct {
	s        *storm
	clock    *redistest.Clock
	password string // the file that has it
	all      []*redistest.Server
	primary  func() *redistest.Server // one of those that take writes

	mu      sync.Mutex
	cutters map[*redistest.Server]*cutter.Cutter
}

const rightPassword, wrongPassword = "right", "wrong"

func newServers(s *storm) *servers {
	v := &servers{s: s, clock: redistest.NewClock(s.t), cutters: make(map[*redistest.Server]*cutter.Cutter)}
	v.password = filepath.Join(s.t.TempDir(), "password")
	if err := os.WriteFile(v.password, []byte(rightPassword), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// setup is how the servers are started.
func (v *servers) setup(args ...string) redistest.Setup {
	return redistest.Setup{
		Args:  append([]string{"--user", "gateway", "on", ">" + rightPassword, "~*", "&*", "+@all", "--hz", "100"}, args...),
		Clock: v.clock,
		Front: func(server *redistest.Server) string {
			v.mu.Lock()
			defer v.mu.Unlock()
			c := cutter.New(v.s.t, server.Addr(), v.s.seed+uint64(len(v.cutters)))
			v.cutters[server] = c
			return c.Addr()
		},
	}
}

func (v *servers) fronts() (all []*cutter.Cutter) {
	for _, server := range v.all {
		all = append(all, v.cutters[server])
	}
	return all
}

func (v *servers) says() string {
	var b strings.Builder
	for _, server := range v.all {
		fmt.Fprintf(&b, "%s, known as %s:\n%s\n", server.Addr(), server.Front(), server.Output())
	}
	return b.String()
}

// store is what a gateway's configuration says of them.
func (v *servers) store(url, name, durability string) string {
	return fmt.Sprintf("store redis %s {\nusername gateway\npassword {file.%s}\nclient_name %s\ntimeout 500ms\n%s}", url, v.password, name, durability)
}

const waitsForReplica = "durability {\nreplicas 1\ntimeout 200ms\n}\n"

// do sends a command to servers, whatever state they are in: one that does not
// answer is one that does not take it.
func (v *servers) do(to []*redistest.Server, args ...any) {
	for _, server := range to {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, _ = server.Do(ctx, args...)
		cancel()
	}
}

// must sends a command that has to work.
func (v *servers) must(to *redistest.Server, args ...any) {
	v.s.t.Helper()
	v.s.await(fmt.Sprintf("the server takes %v", args), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := to.Do(ctx, args...)
		return err == nil
	})
}

// watch writes down when others take writes than before, as far as one can tell.
func (v *servers) watch(primaries func() string) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		before, since := "", time.Duration(0) // and since when that is known
		for {
			at := v.s.now()
			if now := primaries(); now != "" {
				if before != "" && now != before {
					v.s.changed(since, at)
				}
				before, since = now, at
			}
			select {
			case <-done:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	v.s.t.Cleanup(func() { close(done); <-ended })
}

// step moves the servers' clock.
func (v *servers) step(by time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.s.jumped(v.clock.Step(0) + by)
	v.clock.Step(by)
}

// everywhere are the faults that all arrangements of servers have.
func (v *servers) everywhere() map[string]func(*rand.Rand) {
	faults := map[string]func(*rand.Rand){
		"store frozen": func(rnd *rand.Rand) {
			p := v.primary()
			p.Freeze()
			sleepUpTo(rnd, 1200*time.Millisecond) // nobody takes it for dead
			p.Thaw()
		},
		"store pauses clients": func(rnd *rand.Rand) {
			p := v.primary()
			what := "ALL"
			if rnd.IntN(2) == 0 {
				what = "WRITE"
			}
			v.do([]*redistest.Server{p}, "CLIENT", "PAUSE", 200+rnd.IntN(2000), what)
			sleepUpTo(rnd, 2*time.Second)
		},
		"store forgets its scripts": func(*rand.Rand) { v.do(v.all, "SCRIPT", "FLUSH") },
		"store out of memory": func(rnd *rand.Rand) {
			from := v.s.now()
			v.do(v.all, "CONFIG", "SET", "maxmemory", "1")
			sleepUpTo(rnd, 3*time.Second)
			for _, server := range v.all {
				v.must(server, "CONFIG", "SET", "maxmemory", "0")
			}
			v.s.span(&v.s.spans.Full, from)
		},
		"store has another password": func(rnd *rand.Rand) {
			v.do(v.all, "ACL", "SETUSER", "gateway", "resetpass", ">"+wrongPassword)
			v.do(v.all, "CLIENT", "KILL", "USER", "gateway")
			sleepUpTo(rnd, 3*time.Second)
			for _, server := range v.all {
				v.must(server, "ACL", "SETUSER", "gateway", "resetpass", ">"+rightPassword)
			}
		},
	}
	maps.Copy(faults, v.s.clockFaults(v.step))
	return faults
}

// standalone is one server that answers what is on its disk.
type standalone struct{ *servers }

func newStandalone(s *storm) stormStore {
	v := newServers(s)
	server := redistest.StartWith(s.t, v.setup("--appendonly", "yes", "--appendfsync", "always"))
	v.all = []*redistest.Server{server}
	v.primary = func() *redistest.Server { return server }
	return standalone{v}
}

func (v standalone) block(name string) string {
	return v.store("redis://"+v.all[0].Front(), name, "durability {\nfsync\ntimeout 200ms\n}\n")
}

func (v standalone) faults() map[string]func(*rand.Rand) {
	server := v.all[0]
	faults := v.everywhere()
	faults["store killed"] = func(rnd *rand.Rand) {
		server.Kill()
		sleepUpTo(rnd, 2*time.Second)
		server.Restart()
	}
	faults["store read-only"] = func(rnd *rand.Rand) {
		v.do(v.all, "REPLICAOF", "127.0.0.1", "1") // where nobody is
		sleepUpTo(rnd, 2*time.Second)
		v.must(server, "REPLICAOF", "NO", "ONE")
	}
	return faults
}
