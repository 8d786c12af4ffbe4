package redisstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// TestRefusalsOfRealServers: whatever makes a server refuse, that nothing was done is
// known for certain, nothing was, and as soon as it is over everything goes on. What
// the servers say is theirs.
func TestRefusalsOfRealServers(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct {
		args []string
		// refuse makes the server refuse, and returns what ends that.
		refuse func(t *testing.T, server *redistest.Server, admin *redis.Client) (heal func())
	}{
		"BUSY": {[]string{"--busy-reply-threshold", "10"}, func(t *testing.T, server *redistest.Server, admin *redis.Client) func() {
			looping := make(chan error, 1)
			go func() {
				patient := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: -1, MaxRetries: -1})
				defer patient.Close()
				looping <- patient.Eval(context.Background(), "while true do end", nil).Err()
			}()
			eventually(t, "the server is busy", func() bool {
				err := admin.Get(contextOf(t), "x").Err()
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
			return func() {
				if err := admin.ScriptKill(contextOf(t)).Err(); err != nil {
					t.Fatal(err)
				}
				if err := <-looping; err == nil {
					t.Error("the script has ended by itself")
				}
			}
		}},
		"LOADING": {[]string{"--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"}, func(t *testing.T, server *redistest.Server, admin *redis.Client) func() {
			if err := admin.Do(contextOf(t), "debug", "populate", 3000, "ballast", 1000).Err(); err != nil {
				t.Fatal(err)
			}
			configure(t, admin, "key-load-delay", "10000") // microseconds for each: it takes until it is told otherwise
			loaded := make(chan error, 1)
			go func() {
				patient := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: -1, MaxRetries: -1})
				defer patient.Close()
				loaded <- patient.Do(context.Background(), "debug", "reload").Err()
			}()
			eventually(t, "the server is loading", func() bool {
				err := admin.Get(contextOf(t), "x").Err()
				return err != nil && strings.HasPrefix(err.Error(), "LOADING")
			})
			return func() {
				eventually(t, "loading is quick again", func() bool {
					err := admin.ConfigSet(contextOf(t), "key-load-delay", "0").Err()
					return err == nil || !strings.HasPrefix(err.Error(), "LOADING")
				})
				if err := <-loaded; err != nil {
					t.Fatal(err)
				}
			}
		}},
		"READONLY": {nil, func(t *testing.T, _ *redistest.Server, admin *redis.Client) func() {
			replicate(t, admin, "127.0.0.1", "1")
			return func() { replicate(t, admin, "no", "one") }
		}},
		"MASTERDOWN": {[]string{"--replica-serve-stale-data", "no", "--replica-read-only", "no"}, func(t *testing.T, _ *redistest.Server, admin *redis.Client) func() {
			replicate(t, admin, "127.0.0.1", "1")
			return func() { replicate(t, admin, "no", "one") }
		}},
		"MISCONF": {nil, func(t *testing.T, _ *redistest.Server, admin *redis.Client) func() {
			return failSnapshots(t, admin)
		}},
		"NOREPLICAS": {nil, func(t *testing.T, _ *redistest.Server, admin *redis.Client) func() {
			configure(t, admin, "min-replicas-to-write", "1")
			return func() { configure(t, admin, "min-replicas-to-write", "0") }
		}},
		"CLUSTERDOWN": {[]string{"--cluster-enabled", "yes"}, func(t *testing.T, _ *redistest.Server, admin *redis.Client) func() {
			if err := admin.ClusterDelSlotsRange(contextOf(t), 0, 16383).Err(); err != nil {
				t.Fatal(err)
			}
			return func() { allSlots(t, admin) }
		}},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			admin := rawClient(t, server.URL()+"?max_retries=-1")
			if says == "CLUSTERDOWN" {
				allSlots(t, admin)
			}
			s := openAt(t, server.URL(), func(o *Options) { o.Timeout = time.Second })
			j := mustCreate(t, s, job(s, "k"))
			mustSwap(t, s, j.WriteID, renewed(j)) // the server knows the script
			j = mustGet(t, s, j.Name)
			many := mustCreate(t, s, job(s, "many"))

			heal := c.refuse(t, server, admin)
			fresh, done := job(s, "new"), completed(s, j, []byte("paid"))
			refused := func(what string, err error) {
				t.Helper()
				mustBeUnavailable(t, what, err, true)
				if err != nil && !strings.Contains(err.Error(), says) {
					t.Errorf("%s: got %v, want it to say %s", what, err, says)
				}
			}
			for range 2 { // fewer than make the others not be asked
				_, created, err := s.Create(contextOf(t), fresh)
				refused("create", err)
				_, swapped, err2 := s.Swap(contextOf(t), j.WriteID, done)
				refused("swap", err2)
				if created || swapped {
					t.Errorf("it says that it was done: %t, %t", created, swapped)
				}
			}
			result := s.SwapMany(contextOf(t), []keystore.Swap{{Expected: many.WriteID, Job: completed(s, many, nil)}})[0]
			if result.Swapped {
				t.Error("among many: it says that it was done")
			}
			refused("swap many", result.Err)

			heal()
			eventually(t, "the server answers", func() bool { _, err := s.Get(contextOf(t), j.Name); return err == nil })
			for name, id := range map[keystore.Name]keystore.WriteID{j.Name: j.WriteID, many.Name: many.WriteID} {
				if got := mustGet(t, s, name); got.WriteID != id {
					t.Error("a write that was certainly not done is there")
				}
			}
			if got, err := s.Get(contextOf(t), fresh.Name); err != nil || got != nil {
				t.Errorf("a job that was certainly not created is there: %v, %v", got, err)
			}
			eventually(t, "writes are taken", func() bool { _, created, err := s.Create(contextOf(t), fresh); return err == nil && created })
			mustSwap(t, s, j.WriteID, done)
		})
	}
}

// TestTakesNoWrites: a server that takes no writes for now, but has all that it has
// acknowledged, tells what is there. To what is new it says no, for certain; and so it does
// to an earlier send of the same claim, which would let an attempt start. A demoted server
// tells nothing.
func TestTakesNoWrites(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct {
		refuse func(t *testing.T, admin *redis.Client)
		tells  bool
	}{
		"MISCONF": {func(t *testing.T, admin *redis.Client) { failSnapshots(t, admin) }, true},
		"NOREPLICAS": {func(t *testing.T, admin *redis.Client) {
			configure(t, admin, "min-replicas-to-write", "1")
		}, true},
		"READONLY": {func(t *testing.T, admin *redis.Client) { replicate(t, admin, "127.0.0.1", "1") }, false},
	} {
		for kind, change := range map[string]func(*Options){
			"plain":    func(*Options) {},
			"unshared": func(o *Options) { o.Unshared = true },
			"durable":  waiting(Durability{Fsync: true, Timeout: 400 * time.Millisecond}),
		} {
			t.Run(says+"/"+kind, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
				admin := rawClient(t, server.URL())
				for _, oldServer := range []bool{false, true} {
					s := openAt(t, server.URL(), change)
					s.noSetGet.Store(oldServer)
					suffix := fmt.Sprint(oldServer)
					open, running, claimed := job(s, "open"+suffix), job(s, "running"+suffix), job(s, "claimed"+suffix)
					done := mustCreate(t, s, job(s, "done"+suffix))
					done = mustSwap(t, s, done.WriteID, completed(s, done, make([]byte, 100<<10)))
					mustCreate(t, s, open)
					open = mustSwap(t, s, open.WriteID, settled(s, open, keystore.OutcomeFailed, nil))
					mustCreate(t, s, running)
					mustCreate(t, s, claimed)

					c.refuse(t, admin)
					for _, j := range []*keystore.Job{done, open, running} {
						present, created, err := s.Create(contextOf(t), job(s, j.KeySent))
						if !c.tells {
							mustBeUnavailable(t, "create of what is there", err, true)
							continue
						}
						if err != nil || created || present == nil || present.WriteID != j.WriteID {
							t.Errorf("%s: got %v, %t, %v; want what is there", j.KeySent, present, created, err)
						} else if j == done && len(present.Result.Body) != 100<<10 {
							t.Errorf("%s: it has a body of %d bytes", j.KeySent, len(present.Result.Body))
						}
					}
					if _, created, err := s.Create(contextOf(t), claimed); created || err == nil {
						t.Errorf("an earlier send: got %t, %v; want it refused", created, err)
					}
					_, created, err := s.Create(contextOf(t), job(s, "new"+suffix))
					mustBeUnavailable(t, "create", err, true)
					next := open.Start(keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: patience, Listen: patience})
					next.WriteID = keystore.NewWriteID()
					_, swapped, err := s.Swap(contextOf(t), open.WriteID, next)
					mustBeUnavailable(t, "another attempt", err, true)
					if created || swapped {
						t.Errorf("it says that it was done: %t, %t", created, swapped)
					}
					replicate(t, admin, "no", "one")
					configure(t, admin, "min-replicas-to-write", "0")
					configure(t, admin, "save", "")
				}
			})
		}
	}
}

// failSnapshots makes a server refuse writes, since it can't write to its disk.
func failSnapshots(t *testing.T, admin *redis.Client) (heal func()) {
	t.Helper()
	dir := admin.ConfigGet(contextOf(t), "dir").Val()["dir"]
	// What is there already can't be replaced by a file.
	if err := os.MkdirAll(filepath.Join(dir, "dump.rdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	configure(t, admin, "save", "3600 1")
	if err := admin.BgSave(contextOf(t)).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the snapshot has failed", func() bool {
		return strings.Contains(admin.Info(contextOf(t), "persistence").Val(), "rdb_last_bgsave_status:err")
	})
	return func() { configure(t, admin, "save", "") }
}

func configure(t *testing.T, admin *redis.Client, name, value string) {
	t.Helper()
	if err := admin.ConfigSet(contextOf(t), name, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func replicate(t *testing.T, admin *redis.Client, host, port string) {
	t.Helper()
	if err := admin.Do(contextOf(t), "replicaof", host, port).Err(); err != nil {
		t.Fatal(err)
	}
}

func allSlots(t *testing.T, admin *redis.Client) {
	t.Helper()
	if err := admin.ClusterAddSlotsRange(contextOf(t), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster is up", func() bool {
		return strings.Contains(admin.ClusterInfo(contextOf(t)).Val(), "cluster_state:ok")
	})
}
