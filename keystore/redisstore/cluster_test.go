package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/cutter"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

// TestCluster does all that needs a cluster on one, since that is six servers; what
// does harm to it comes last.
func TestCluster(t *testing.T) {
	var fronts []*cutter.Cutter
	cluster := redistest.StartClusterWith(t, 3, redistest.Setup{Front: func(s *redistest.Server) string {
		fronts = append(fronts, cutter.New(t, s.Addr(), uint64(len(fronts))))
		return fronts[len(fronts)-1].Addr()
	}})
	raw := cluster.Client()
	conformAndStayLinearizable(t, sharing(raw, byURL(cluster.URL())))

	open := func(t *testing.T, prefix string) *Store {
		return openWith(t, byURL(cluster.URL()), func(o *Options) { o.Prefix, o.Timeout = prefix, time.Second })
	}

	t.Run("linearizable through a network that cuts and delays", func(t *testing.T) {
		for _, front := range fronts {
			front.Set(
				cutter.Fault{Do: cutter.CutBefore, Chance: 0.02, Of: "through-cutter"},
				cutter.Fault{Do: cutter.CutAfter, Chance: 0.02, Of: "through-cutter"},
				cutter.Fault{Do: cutter.Delay, Chance: 0.02, Of: "through-cutter", Delay: 20 * time.Millisecond},
			)
			t.Cleanup(func() { front.Set() })
		}
		storetest.Linearizable(t, func(testing.TB) storetest.Backend {
			return storetest.Backend{Open: func(t testing.TB) keystore.Store {
				return openWith(t, byURL(cluster.URL()), func(o *Options) { o.Prefix, o.ClientName = "cutter:", "through-cutter" })
			}}
		}, storetest.Load{})
		for _, action := range []cutter.Action{cutter.CutBefore, cutter.CutAfter, cutter.Delay} {
			if !slices.ContainsFunc(fronts, func(c *cutter.Cutter) bool { return c.Hits(action) > 0 }) {
				t.Errorf("nothing was hit by fault %d", action)
			}
		}
	})

	t.Run("RED05 keys in all slots", func(t *testing.T) {
		s := open(t, "red05:")
		used := make(map[*redistest.Server]int)
		for i := range 500 {
			j := mustCreate(t, s, job(s, fmt.Sprint("{same}", i))) // a client's braces choose nothing
			mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
			if i%25 == 0 {
				used[cluster.MasterOf(s.recordKey(j.Name))]++
			}
		}
		if len(used) != 3 {
			t.Errorf("the jobs are on %d masters, want them on 3", len(used))
		}
		n := 0
		for cursor := ""; ; {
			page, next, err := s.Scan(contextOf(t), cursor, 100)
			if err != nil {
				t.Fatal(err)
			}
			n += len(page)
			if cursor = next; cursor == "" {
				break
			}
		}
		if n < 500 {
			t.Errorf("a scan found %d jobs of 500", n)
		}
	})

	t.Run("RED08 each master is inspected", func(t *testing.T) {
		found := inspect(t, open(t, "inspect:"))
		of := make(map[string]int)
		for _, f := range found.Findings {
			of[f.Code]++
		}
		if len(found.Servers) != 3 || of["persistence"] != 3 || of["failover"] != 3 || of["cluster-down"]+of["acl"]+of["unreachable"] != 0 {
			t.Errorf("got %v", found.Findings)
		}
	})

	t.Run("RED17 the least rights", func(t *testing.T) {
		for _, server := range append(slices.Clone(cluster.Masters), cluster.Replicas...) {
			rules := append([]any{"acl", "setuser", "gateway", "on", ">hunter2"}, leastACL...)
			rules = append(rules, "+cluster|slots", "+cluster|info", "+asking")
			if err := rawClient(t, server.URL()).Do(contextOf(t), rules...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		s := openWith(t, byURL(cluster.URL()), func(o *Options) { o.Servers.Username, o.Servers.Password = "gateway", "hunter2" })
		for i := range 20 {
			j := mustCreate(t, s, job(s, fmt.Sprint("k", i)))
			hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			mustIndex(t, s, j)
			mustSwap(t, s, j.WriteID, completed(s, j, make([]byte, 40<<10)))
			mustHint(t, hint)
			stop()
		}
		for _, f := range inspect(t, s).Findings {
			if f.Code == "acl" || f.Code == "untold" {
				t.Error(f)
			}
		}
		for _, server := range cluster.Masters {
			for _, denied := range deniedCommands(t, rawClient(t, server.URL())) {
				if !strings.Contains(denied, "config") { // which is for whoever wants it
					t.Errorf("something was refused: %s", denied)
				}
			}
		}
	})

	t.Run("a slot moves under load", func(t *testing.T) {
		s := open(t, "move:")
		moving := job(s, "k")
		key := s.recordKey(moving.Name)
		from := cluster.MasterOf(key)
		to := cluster.Masters[0]
		if to == from {
			to = cluster.Masters[1]
		}
		mustCreate(t, s, moving)
		large := job(s, "k") // a body of its own moves along
		large = completed(s, large, make([]byte, 100<<10))
		mustSwap(t, s, moving.WriteID, large)

		// Renewals of one job after the other, each expecting the one before: a write
		// that was executed twice, or not at all, would be found out by the next.
		ctx, stop := context.WithCancel(context.Background())
		var writes atomic.Int64
		var wg sync.WaitGroup
		wg.Go(func() {
			present := large
			for i := 0; ctx.Err() == nil; i++ {
				next := *present
				next.WriteID = keystore.NewWriteID()
				var swapped bool
				var err error
				if i%2 == 0 {
					_, swapped, err = s.Swap(contextOf(t), present.WriteID, &next)
				} else {
					r := s.SwapMany(contextOf(t), []keystore.Swap{{Expected: present.WriteID, Job: &next}})[0]
					swapped, err = r.Swapped, r.Err
				}
				if err != nil || !swapped {
					t.Errorf("write %d: got %t, %v", i, swapped, err)
					return
				}
				if got, err := s.Get(contextOf(t), next.Name); err != nil || got == nil || got.WriteID != next.WriteID || got.Result.NotKept {
					t.Errorf("read %d: got %v, %v", i, got, err)
					return
				}
				present = &next
				writes.Add(1)
			}
		})
		for range 3 {
			before := writes.Load()
			cluster.Migrate(key, to)
			from, to = to, from
			eventually(t, "writes go on", func() bool { return writes.Load() > before+5 || t.Failed() })
		}
		stop()
		wg.Wait()
		t.Logf("%d writes while the slot moved three times", writes.Load())
	})

	t.Run("a master dies", func(t *testing.T) {
		s := open(t, "die:")
		victim := cluster.Masters[2]
		jobs := make(map[bool][]*keystore.Job) // whether on the victim
		for i := 0; len(jobs[true]) < 5 || len(jobs[false]) < 5; i++ {
			j := job(s, fmt.Sprint("k", i))
			onVictim := cluster.MasterOf(s.recordKey(j.Name)) == victim
			jobs[onVictim] = append(jobs[onVictim], mustCreate(t, s, j))
		}
		hint, unwatch := s.Watch(contextOf(t), jobs[true][0].Name, jobs[true][0].WriteID)
		defer unwatch()
		// So that its replica has them too.
		if err := rawClient(t, victim.URL()).Wait(contextOf(t), 1, 5*time.Second).Err(); err != nil {
			t.Fatal(err)
		}
		victim.Freeze() // the worse case of the two: connections stay open
		died := time.Now()

		refused, slow := 0, time.Duration(0)
		replica := cluster.Replicas[2]
		var promoted time.Time
		next := completed(s, jobs[true][0], []byte("paid"))
		for {
			if promoted.IsZero() && replica.IsMaster() {
				promoted = time.Now()
			}
			began := time.Now()
			_, swapped, err := s.Swap(contextOf(t), jobs[true][0].WriteID, next)
			if err == nil {
				if !swapped {
					t.Error("another write came between")
				}
				break
			}
			if took := time.Since(began); refused > 0 {
				slow = max(slow, took)
			}
			refused++
			if time.Since(died) > patience {
				t.Fatal("the failed master's slots do not serve again")
			}
			// The other slots go on.
			for _, j := range jobs[false] {
				if _, err := s.Get(contextOf(t), j.Name); err != nil {
					t.Fatalf("a job on another master: %v", err)
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Logf("refused %d times, the slowest in %s; served %s after the failure, and %s after the failover was seen",
			refused, slow.Round(time.Millisecond), time.Since(died).Round(time.Millisecond), time.Since(promoted).Round(time.Millisecond))
		if got := mustGet(t, s, next.Name); got.WriteID != next.WriteID {
			t.Error("the write is not there")
		}
		mustHint(t, hint)
		// Who looks then looks at the new master.
		eventually(t, "the new master is inspected", func() bool {
			found, err := s.survey(contextOf(t))
			return err == nil && len(found.Servers) == 3 && slices.ContainsFunc(found.Servers, func(state ServerState) bool { return state.Server == replica.Front() })
		})
		victim.Thaw()
		for _, j := range jobs[true][1:] {
			mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		}
	})
}
