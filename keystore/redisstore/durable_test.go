package redisstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

// replicated is a primary and one replica that is in step with it.
func replicated(t testing.TB) (primary, replica *redistest.Server) {
	t.Helper()
	primary = redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica = redistest.StartReplica(t, primary)
	return primary, replica
}

func waiting(d Durability) func(*Options) { return func(o *Options) { o.Durability = d } }

// TestDurability: what else such a store has to do is tried in
// TestRED17LeastACLWithDurability.
func TestDurability(t *testing.T) {
	t.Parallel()
	storetest.Durability(t, func(t testing.TB) storetest.DurableBackend {
		primary, replica := replicated(t)
		return storetest.DurableBackend{
			Open: func(t testing.TB) keystore.Store {
				return openAt(t, primary.URL(), waiting(Durability{Replicas: 1, Timeout: 2 * time.Second}))
			},
			Starve: replica.Freeze, Feed: replica.Thaw,
		}
	})
}

// TestRED01ClaimIsOnTheReplica: a claim that was acknowledged is there after the
// primary is lost at that very instant; one that was not is not believed in.
func TestRED01ClaimIsOnTheReplica(t *testing.T) {
	t.Parallel()
	primary, replica := replicated(t)
	s := openAt(t, primary.URL(), waiting(Durability{Replicas: 1, Timeout: 2 * time.Second}))
	var kept []*keystore.Job
	for i := range 50 {
		kept = append(kept, mustCreate(t, s, job(s, fmt.Sprint("k", i))))
	}
	replica.Freeze()
	short := job(s, "short")
	if _, created, err := s.Create(contextOf(t), short); !created || !errors.Is(err, keystore.ErrNotDurable) {
		t.Errorf("with a replica that lags: got %t, %v", created, err)
	}
	primary.Kill()
	replica.Thaw()
	if err := rawClient(t, replica.URL()).Do(contextOf(t), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	promoted := openAt(t, replica.URL())
	for _, j := range kept {
		if got := mustGet(t, promoted, j.Name); got.WriteID != j.WriteID {
			t.Errorf("%s: another record is there", j.KeySent)
		}
	}
}

// TestDurabilityIsAskedForAgain: where the answer to a write or to the question for
// acknowledgements is lost, both are sent again, and the question is about a write
// of that connection.
func TestDurabilityIsAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"set", "evalsha", "wait"} {
		for what, do := range map[string]faultnet.Action{"lost": faultnet.LoseReplyAndCut, "cut": faultnet.CutBefore} {
			t.Run(command+" "+what, func(t *testing.T) {
				t.Parallel()
				primary, replica := replicated(t)
				proxy := faultnet.New(t, primary.Addr())
				s := openAt(t, "redis://"+proxy.Addr(), waiting(Durability{Replicas: 1, Timeout: 2 * time.Second}))
				warm := mustCreate(t, s, job(s, "warm"))
				mustSwap(t, s, warm.WriteID, completed(s, warm, nil))

				proxy.Inject(faultnet.Fault{Command: command, Do: do, Times: 1})
				waits := proxy.Count("wait")
				j := mustCreate(t, s, job(s, "k"))
				done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
				if n := proxy.Count("wait") - waits; n < 2 {
					t.Errorf("asked for acknowledgements %d times for two writes", n)
				}
				// The same with a replica that lags: nothing may look acknowledged.
				replica.Freeze()
				proxy.Inject(faultnet.Fault{Command: command, Do: do, Times: 1})
				late := job(s, "late")
				if _, _, err := s.Create(contextOf(t), late); !errors.Is(err, keystore.ErrNotDurable) {
					t.Errorf("create: got %v, want that it is not durable", err)
				}
				proxy.Inject(faultnet.Fault{Command: command, Do: do, Times: 1})
				if _, _, err := s.Swap(contextOf(t), done.WriteID, completed(s, j, []byte("paid"))); !errors.Is(err, keystore.ErrNotDurable) {
					t.Errorf("swap: got %v, want that it is not durable", err)
				}
			})
		}
	}
}

// TestDemotedBetweenWriteAndWait: a server that has become a replica meanwhile
// acknowledges nothing.
func TestDemotedBetweenWriteAndWait(t *testing.T) {
	t.Parallel()
	primary, replica := replicated(t)
	proxy := faultnet.New(t, primary.Addr())
	s := openAt(t, "redis://"+proxy.Addr(), waiting(Durability{Replicas: 1, Timeout: 2 * time.Second}))
	parked := proxy.Park("wait")
	failed := make(chan error, 1)
	go func() {
		_, _, err := s.Create(contextOf(t), job(s, "k"))
		failed <- err
	}()
	<-parked.Arrived()
	admin := rawClient(t, primary.URL())
	if err := rawClient(t, replica.URL()).Do(contextOf(t), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.Do(contextOf(t), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	parked.Release()
	if err := <-failed; !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
		t.Errorf("got %v, want that nobody knows", err)
	}
}

// TestFsync: servers that know WAITAOF are asked by it, others have to promise that
// every answer is of what is on the disk.
func TestFsync(t *testing.T) {
	t.Parallel()
	fsync := waiting(Durability{Fsync: true})
	for what, c := range map[string]struct {
		args    []string
		waitaof string // a server's answer, empty: the real one's
		durable bool
	}{
		"on the disk":         {nil, "*2\r\n:1\r\n:0\r\n", true},
		"not in time":         {nil, "*2\r\n:0\r\n:0\r\n", false},
		"no append-only file": {nil, "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n", false},
		"old, appends always": {[]string{"--appendonly", "yes", "--appendfsync", "always"}, "", true},
		"old, every second":   {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, "", false},
		"old, no file":        {nil, "", false},
		"old, tells nothing":  {[]string{"--appendonly", "yes", "--appendfsync", "always", "--rename-command", "config", ""}, "", false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			proxy := faultnet.New(t, redistest.Start(t, c.args...).Addr())
			answer := c.waitaof
			if answer == "" {
				answer = "-ERR unknown command 'WAITAOF'\r\n" // whatever the server's version
			}
			proxy.Inject(faultnet.Fault{Command: "waitaof", Do: faultnet.Answer, Reply: answer})
			s := openAt(t, "redis://"+proxy.Addr(), fsync)
			for i := range 2 {
				_, created, err := s.Create(contextOf(t), job(s, fmt.Sprint("k", i)))
				if !created || errors.Is(err, keystore.ErrNotDurable) == c.durable || (c.durable && err != nil) {
					t.Errorf("create: got %t, %v; want it durable: %t", created, err, c.durable)
				}
			}
		})
	}
}

func TestDurabilityOptions(t *testing.T) {
	t.Parallel()
	for what, d := range map[string]Durability{
		"negative": {Replicas: -1}, "longer than a try": {Replicas: 1, Timeout: 600 * time.Millisecond}, "too short": {Fsync: true, Timeout: time.Microsecond},
	} {
		if s, err := Open(Options{URL: "redis://127.0.0.1:1", Durability: d}); err == nil {
			_ = s.Close()
			t.Errorf("%s: it was taken", what)
		}
	}
}
