package redisstore

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// TestRoundTrips: a fresh job costs two commands, everybody who comes later one.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		warm := mustCreate(t, s, job(s, "warm")) // tells the server the script
		mustSwap(t, s, warm.WriteID, completed(s, warm, nil))
		eventually(t, "the clock is sampled", func() bool {
			_, known := s.ClockOffset()
			return known
		})

		cost := func(what string, want int, f func()) {
			t.Helper()
			before := commands(proxy)
			f()
			if got := commands(proxy) - before; got != want {
				t.Errorf("%s: took %d commands, want %d", what, got, want)
			}
		}
		j := job(s, "k")
		var done *keystore.Job
		cost("claim", 1, func() { mustCreate(t, s, j) })
		cost("commit", 1, func() { done = mustSwap(t, s, j.WriteID, completed(s, j, make([]byte, 32<<10))) })
		cost("lost claim", 1, func() {
			if present, _, err := s.Create(contextOf(t), job(s, "k")); err != nil || present == nil || present.WriteID != done.WriteID {
				t.Errorf("got %v, %v; want the completed job", present, err)
			}
		})
		cost("lost commit", 1, func() { _, _, _ = s.Swap(contextOf(t), j.WriteID, completed(s, j, nil)) })
		cost("get", 1, func() { mustGet(t, s, j.Name) })

		j = mustCreate(t, s, job(s, "large"))
		cost("commit of a large body", 2, func() { done = mustSwap(t, s, j.WriteID, completed(s, j, make([]byte, 33<<10))) })
		cost("replay of a large body", 2, func() { done = mustGet(t, s, j.Name) })
		cost("another write of it", 1, func() {
			noted := *done
			noted.WriteID = keystore.NewWriteID()
			mustSwap(t, s, done.WriteID, &noted)
		})
	})
}

// commands is how many commands clients have sent, but for the clock's.
func commands(p *faultnet.Proxy) (n int) {
	for name, count := range p.Counts() {
		if name != "TIME" && name != "HELLO" {
			n += count
		}
	}
	return n
}

// TestRED19TouchesNothingElse: whatever a store does in its life, it sends no
// command that could harm other applications on the same server.
func TestRED19TouchesNothingElse(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := faultnet.New(t, server.Addr())
	admin := rawClient(t, server.URL())
	ctx := contextOf(t)
	if err := admin.Set(ctx, "other", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ConfigResetStat(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, "redis://"+proxy.Addr())
	for i, size := range []int{0, 10, 100 << 10} {
		j := mustCreate(t, s, job(s, fmt.Sprint("k", i)))
		hint, stop := s.Watch(ctx, j.Name, j.WriteID)
		if err := s.Index(ctx, keystore.IndexEntryOf(j)); err != nil {
			t.Fatal(err)
		}
		done := mustSwap(t, s, j.WriteID, completed(s, j, make([]byte, size)))
		mustHint(t, hint)
		stop()
		if _, _, err := s.List(ctx, "", 10); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Scan(ctx, "", 10); err != nil {
			t.Fatal(err)
		}
		if err := admin.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		s.SwapMany(ctx, []keystore.Swap{{Expected: j.WriteID, Job: done}, {Expected: j.WriteID, Job: renewed(j)}})
		if i == 0 {
			dropped := *done
			dropped.Expires, dropped.WriteID = s.Now(), keystore.NewWriteID()
			mustSwap(t, s, done.WriteID, &dropped)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := openAt(t, "redis://"+proxy.Addr()).Close(); err != nil { // as on a reload
		t.Fatal(err)
	}

	stats, err := admin.Info(ctx, "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{ // those of scripts included
		"set": true, "get": true, "getrange": true, "setrange": true, "del": true, "publish": true,
		"zadd": true, "zscore": true, "zrem": true, "zrangebyscore": true, "scan": true,
		"evalsha": true, "eval": true, "time": true, "subscribe": true, "ping": true, "hello": true,
		"info": true, "config|resetstat": true, "client|setinfo": true, "script|flush": true, // the test's own
	}
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):`).FindAllStringSubmatch(stats, -1) {
		if !allowed[m[1]] {
			t.Errorf("the store sent %s", m[1])
		}
	}
	if proxy.Count("del") != 0 {
		t.Error("the store sent a DEL of its own, where only the script compares before it deletes")
	}
	keys, err := admin.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if key != "other" && !strings.HasPrefix(key, DefaultPrefix) {
			t.Errorf("the store wrote %s", key)
		}
	}
	if v, err := admin.Get(ctx, "other").Result(); v != "1" {
		t.Errorf("the other application's key: got %q, %v", v, err)
	}
}

// TestCL14WrongType: what stands under a record's name may not even be a string.
func TestCL14WrongType(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		for how, byScript := range map[string]bool{"natively": false, "by script": true} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				s := openAt(t, "redis://"+addr)
				s.noSetGet.Store(byScript)
				admin := rawClient(t, "redis://"+addr)
				j := job(s, how)
				if err := admin.LPush(contextOf(t), recordKey(j.Name), "x").Err(); err != nil {
					t.Fatal(err)
				}
				present, created, err := s.Create(contextOf(t), j)
				if present != nil || created || !errors.Is(err, keystore.ErrCorrupt) {
					t.Errorf("create: got %v, %t, %v", present, created, err)
				}
				present, swapped, err := s.Swap(contextOf(t), j.WriteID, completed(s, j, nil))
				if present != nil || swapped || !errors.Is(err, keystore.ErrCorrupt) {
					t.Errorf("swap: got %v, %t, %v", present, swapped, err)
				}
				present, err = s.Get(contextOf(t), j.Name)
				if present != nil || !errors.Is(err, keystore.ErrCorrupt) {
					t.Errorf("get: got %v, %v", present, err)
				}
				hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
				defer stop()
				mustHint(t, hint)
				if kind, err := admin.Type(contextOf(t), recordKey(j.Name)).Result(); kind != "list" {
					t.Errorf("it is a %s now, %v", kind, err)
				}
			})
		}
	})
}
