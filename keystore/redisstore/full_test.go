package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// limit sets a server's memory limit; 1 byte: it is full.
func limit(t *testing.T, admin *redis.Client, bytes string) {
	t.Helper()
	if err := admin.ConfigSet(contextOf(t), "maxmemory", bytes).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestRED07OutOfMemory: a real server at its limit refuses, for certain, what is new,
// starts an attempt or brings a body, goes on answering reads, and takes what settles
// a job without one.
func TestRED07OutOfMemory(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openAt(t, server.URL())
	admin := rawClient(t, server.URL())
	kept := mustCreate(t, s, job(s, "kept"))
	mustSwap(t, s, kept.WriteID, completed(s, kept, make([]byte, 100<<10)))
	open := mustCreate(t, s, job(s, "open"))
	open = mustSwap(t, s, open.WriteID, settled(s, open, keystore.OutcomeFailed, nil))
	running := map[string]*keystore.Job{}
	for _, key := range []string{"inline", "apart", "failed", "unknown", "many", "many inline"} {
		running[key] = mustCreate(t, s, job(s, key))
	}
	limit(t, admin, "1")

	full := func(what string, err error) {
		t.Helper()
		mustBeUnavailable(t, what, err, true)
		if !errors.Is(err, keystore.ErrFull) {
			t.Errorf("%s: got %v, want that the store is full", what, err)
		}
	}
	_, _, err := s.Create(contextOf(t), job(s, "another"))
	full("create", err)
	if present, created, err := s.Create(contextOf(t), job(s, "kept")); err != nil || created || present == nil || len(present.Result.Body) != 100<<10 {
		t.Errorf("create of what is there: got %v, %t, %v", present, created, err)
	}
	next := open.Start(keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: patience, Listen: patience})
	next.WriteID = keystore.NewWriteID()
	_, _, err = s.Swap(contextOf(t), open.WriteID, next)
	full("another attempt", err)
	for key, size := range map[string]int{"inline": 1, "apart": maxInline + 1} {
		j := running[key]
		whole := completed(s, j, make([]byte, size))
		_, _, err = s.Swap(contextOf(t), j.WriteID, whole)
		full(key+" body", err)
		if got := mustGet(t, s, j.Name); got.WriteID != j.WriteID {
			t.Errorf("%s body: it was written all the same", key)
		}
		lean := *whole
		lean.Result, lean.WriteID = whole.Result.WithoutBody(), keystore.NewWriteID()
		mustSwap(t, s, j.WriteID, &lean)
		if got := mustGet(t, s, j.Name); got.WriteID != lean.WriteID || !got.Result.NotKept || got.Result.Size != int64(size) {
			t.Errorf("%s body: got %+v", key, got.Result)
		}
	}
	mustSwap(t, s, running["failed"].WriteID, settled(s, running["failed"], keystore.OutcomeFailed, nil))
	mustSwap(t, s, running["unknown"].WriteID, settled(s, running["unknown"], keystore.OutcomeUnknown, nil))
	results := s.SwapMany(contextOf(t), []keystore.Swap{
		{Expected: running["many"].WriteID, Job: settled(s, running["many"], keystore.OutcomeUnknown, nil)},
		{Expected: running["many inline"].WriteID, Job: completed(s, running["many inline"], []byte("x"))},
	})
	if !results[0].Swapped || results[0].Err != nil {
		t.Errorf("among many: got %+v", results[0])
	}
	full("a body among many", results[1].Err)
	if got := mustGet(t, s, kept.Name); got.Result.NotKept || len(got.Result.Body) != 100<<10 {
		t.Error("what was kept before is no longer there")
	}
	limit(t, admin, "0")
	mustSwap(t, s, running["many inline"].WriteID, completed(s, running["many inline"], []byte("x")))
	mustSwap(t, s, open.WriteID, next)
}

// TestRED09NothingIsHalfDone: every script, on a server that is full, does either all
// that it is for or nothing, and brings in no body past the limit. A script that
// deleted first would: a server does not look any more after its first write.
func TestRED09NothingIsHalfDone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openAt(t, server.URL())
	admin := rawClient(t, server.URL())
	ctx := contextOf(t)
	body := make([]byte, maxInline)
	scripts := map[*redis.Script]int{}
	for name, c := range map[string]struct {
		script *redis.Script
		args   func(key string, j *keystore.Job) []any
		done   func(reply any, now *keystore.Job, record string) bool
	}{
		"create": {createScript, func(string, *keystore.Job) []any { return []any{"x", 0} }, func(any, *keystore.Job, string) bool { return true }},
		"swap": {swapScript, func(_ string, j *keystore.Job) []any {
			return []any{j.WriteID.String(), must(keystore.EncodeRecord(completed(s, j, body))), 60_000, s.channel(), ""}
		}, func(_ any, now *keystore.Job, _ string) bool { return now.Result != nil }},
		"swap again": {swapScript, func(_ string, j *keystore.Job) []any {
			return []any{keystore.WriteID{}.String(), must(keystore.EncodeRecord(j)), 0, s.channel(), ""}
		}, func(any, *keystore.Job, string) bool { return true }},
		"drop": {swapScript, func(_ string, j *keystore.Job) []any {
			return []any{j.WriteID.String(), must(keystore.EncodeRecord(j)), -1, s.channel(), ""}
		}, func(_ any, _ *keystore.Job, record string) bool { return record == "" }},
		"flag": {flagScript, func(_ string, j *keystore.Job) []any { return []any{j.WriteID.String()} }, func(_ any, _ *keystore.Job, record string) bool {
			return record[keystore.WaiterOffset] == keystore.WaiterSome
		}},
	} {
		scripts[c.script]++
		j := mustCreate(t, s, job(s, name))
		key := s.recordKey(j.Name)
		before := admin.Get(ctx, key).Val()
		limit(t, admin, "1")
		for range 3 {
			reply, err := s.servers.one.run(ctx, c.script, key, c.args(key, j)...)
			record, getErr := admin.Get(ctx, key).Result()
			if getErr != nil && !errors.Is(getErr, redis.Nil) {
				t.Fatal(getErr)
			}
			if err != nil {
				if !strings.Contains(err.Error(), "OOM") || record != before {
					t.Errorf("%s: failed with %v, and the record was touched: %t", name, err, record != before)
				}
				continue
			}
			var now *keystore.Job
			if record != "" {
				now = must(keystore.DecodeRecord(j.Name, []byte(record)))
			}
			if grown := len(record) - len(before); grown > 0 {
				t.Errorf("%s: the record has grown by %d bytes past the limit", name, grown)
			}
			if !c.done(reply, now, record) {
				t.Errorf("%s: it says that it was done, %v, and it was not", name, reply)
			}
		}
		limit(t, admin, "0")
	}

	// Entries of the index are marked and removed; whichever comes first.
	for i, order := range [][]string{{"a", "1", "", "b", "1", "2"}, {"b", "1", "2", "a", "1", ""}} {
		key := fmt.Sprint(s.indexKey(), i)
		admin.ZAdd(ctx, key, redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 1, Member: "b"})
		limit(t, admin, "1")
		args := make([]any, len(order))
		for i, a := range order {
			args[i] = a
		}
		_, err := s.servers.one.run(ctx, staleScript, key, args...)
		scripts[staleScript]++
		limit(t, admin, "0")
		now := fmt.Sprint(admin.ZRangeWithScores(ctx, key, 0, -1).Val())
		if want := map[bool]string{true: "[{1 a} {1 b}]", false: "[{2 b}]"}[err != nil]; now != want {
			t.Errorf("stale: error %v, and the index is %s", err, now)
		}
	}
	key := s.indexKey() + "full"
	limit(t, admin, "1")
	_, err := s.servers.one.run(ctx, indexScript, key, 1, "a", 2, "b")
	scripts[indexScript]++
	limit(t, admin, "0")
	if n := admin.ZCard(ctx, key).Val(); (err == nil) != (n == 2) {
		t.Errorf("index: error %v, and %d entries", err, n)
	}
	for script := range sources {
		if scripts[script] == 0 {
			t.Errorf("a script was not tried:\n%s", sources[script])
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestRED07FullServerIsListed: unresolved jobs are found, entered and listed on a server
// that is full, and those that are no longer so don't keep others from it.
func TestRED07FullServerIsListed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openAt(t, server.URL())
	stale, running, late := mustCreate(t, s, job(s, "stale")), mustCreate(t, s, job(s, "running")), mustCreate(t, s, job(s, "late"))
	mustIndex(t, s, stale)
	mustIndex(t, s, running)
	mustSwap(t, s, stale.WriteID, completed(s, stale, nil))
	limit(t, rawClient(t, server.URL()), "1")
	if got := mustList(t, s); !slices.Equal(got, []string{"running"}) {
		t.Errorf("listed: %v", got)
	}
	mustIndex(t, s, late)
	if got := mustList(t, s); len(got) != 2 {
		t.Errorf("listed: %v", got)
	}
}

// TestRED07FullServerConfirms: a record that is there is confirmed to be durable by a
// write that takes no memory.
func TestRED07FullServerConfirms(t *testing.T) {
	t.Parallel()
	primary, _ := replicated(t)
	s := openAt(t, primary.URL(), waiting(Durability{Replicas: 1, Timeout: 2 * time.Second}))
	running, j := mustCreate(t, s, job(s, "running")), mustCreate(t, s, job(s, "k"))
	done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
	limit(t, rawClient(t, primary.URL()), "1")
	mustSwap(t, s, keystore.WriteID{}, done) // before the first replay
	mustCreate(t, s, running)                // an earlier send, met again
	next := completed(s, running, []byte("paid"))
	if _, swapped, err := s.Swap(contextOf(t), keystore.NewWriteID(), next); swapped || err != nil {
		t.Errorf("swap of another record: got %t, %v", swapped, err)
	}
}
