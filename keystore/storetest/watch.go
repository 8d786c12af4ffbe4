package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var watchTests = []testCase{
	{"watch/written by another gateway", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
		defer stop()
		mustSwap(t, other, j.WriteID, completed(other, j, []byte("paid")))
		mustHint(t, hint)
	}},
	{"watch/written by this gateway", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
		defer stop()
		mustSwap(t, s, j.WriteID, unknown(s, j))
		mustHint(t, hint)
	}},
	{"watch/changed before", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		mustSwap(t, other, j.WriteID, unknown(other, j))
		hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
		defer stop()
		mustHint(t, hint)
	}},
	{"watch/gone before", func(t *testing.T, b Backend) {
		s := b.Open(t)
		hint, stop := s.Watch(contextOf(t), starting(s, "k").Name, keystore.NewWriteID())
		defer stop()
		mustHint(t, hint)
	}},
	{"watch/dropped", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		hint, stop := s.Watch(contextOf(t), j.Name, done.WriteID)
		defer stop()
		dropped := *done
		dropped.Expires, dropped.WriteID = other.Now(), keystore.NewWriteID()
		mustSwap(t, other, done.WriteID, &dropped)
		mustHint(t, hint)
	}},
	{"watch/no hint is lost on the way", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		for range 60 {
			next := renewed(j)
			written := make(chan error, 1)
			go func() { // at the same time as the watch, before or after it
				_, _, err := other.Swap(context.Background(), j.WriteID, next)
				written <- err
			}()
			hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			waitForChange(t, s, hint, j)
			stop()
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			j = next
		}
	}},
	{"watch/many for one record", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		var hints []<-chan struct{}
		for range 100 {
			hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
			defer stop()
			hints = append(hints, hint)
		}
		mustSwap(t, other, j.WriteID, completed(other, j, []byte("paid")))
		for _, hint := range hints {
			mustHint(t, hint)
		}
	}},
	{"watch/others do not end with one", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		_, stopFirst := s.Watch(contextOf(t), j.Name, j.WriteID)
		hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
		defer stop()
		stopFirst()
		stopFirst() // twice does no harm
		mustSwap(t, other, j.WriteID, unknown(other, j))
		mustHint(t, hint)
	}},
	{"watch/thousands", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		const names, each = 100, 30
		var jobs []*keystore.Job
		for i := range names {
			jobs = append(jobs, mustCreate(t, s, starting(s, fmt.Sprint("k", i))))
		}
		before := runtime.NumGoroutine()
		var stops []func()
		hints := make([][]<-chan struct{}, names)
		for i, j := range jobs {
			for range each {
				hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
				hints[i] = append(hints[i], hint)
				stops = append(stops, stop)
			}
		}
		// Subtests beside this one start goroutines too, but not thousands.
		if grown := runtime.NumGoroutine() - before; grown > names*each/3 {
			t.Errorf("%d watchers cost %d goroutines", names*each, grown)
		}
		for _, i := range []int{0, names / 2, names - 1} {
			mustSwap(t, other, jobs[i].WriteID, unknown(other, jobs[i]))
			for _, hint := range hints[i] {
				mustHint(t, hint)
			}
		}
		for _, stop := range stops {
			stop()
		}
	}},
}

func mustHint(t *testing.T, hint <-chan struct{}) {
	t.Helper()
	select {
	case <-hint:
	case <-time.After(patience):
		t.Fatal("no hint came")
	}
}

// waitForChange waits for hints until the record is another one; a hint can be
// wrong.
func waitForChange(t *testing.T, s keystore.Store, hint <-chan struct{}, seen *keystore.Job) {
	t.Helper()
	for {
		mustHint(t, hint)
		present, err := s.Get(contextOf(t), seen.Name)
		if err != nil {
			t.Fatal(err)
		}
		if present.WriteID != seen.WriteID {
			return
		}
	}
}

var lifeTests = []testCase{
	{"life/closed", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		hint, stop := s.Watch(contextOf(t), j.Name, j.WriteID)
		defer stop()
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		mustHint(t, hint)
		ctx := contextOf(t)
		_, _, err := s.Create(ctx, starting(s, "other"))
		mustFailWith(t, "create", err, keystore.ErrClosed)
		_, _, err = s.Swap(ctx, j.WriteID, unknown(s, j))
		mustFailWith(t, "swap", err, keystore.ErrClosed)
		next := keystore.Swap{Expected: j.WriteID, Job: unknown(s, j)}
		for _, r := range swapMany(ctx, t, s, next, next) {
			mustFailWith(t, "swap many", r.Err, keystore.ErrClosed)
		}
		_, err = s.Get(ctx, j.Name)
		mustFailWith(t, "get", err, keystore.ErrClosed)
		mustFailWith(t, "index", s.Index(ctx, keystore.IndexEntryOf(j)), keystore.ErrClosed)
		_, _, err = s.List(ctx, "", 10)
		mustFailWith(t, "list", err, keystore.ErrClosed)
		_, _, err = s.Scan(ctx, "", 10)
		mustFailWith(t, "scan", err, keystore.ErrClosed)
		hint, stop = s.Watch(ctx, j.Name, j.WriteID)
		defer stop()
		mustHint(t, hint)
		if err := s.Close(); err != nil {
			t.Errorf("close again: %v", err)
		}
	}},
	{"life/context at its end", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := starting(s, "k")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, created, err := s.Create(ctx, j); err == nil {
			t.Errorf("create: got %t; want an error", created)
		} else if !errors.Is(err, keystore.ErrUnavailable) && !errors.Is(err, context.Canceled) {
			t.Errorf("create: got %v; want one of the contract's errors, or the context's", err)
		}
		if _, err := s.Get(ctx, j.Name); err == nil {
			t.Error("get: want an error")
		}
		if _, _, err := s.Scan(ctx, "", 10); err == nil {
			t.Error("scan: want an error")
		}
		next := keystore.Swap{Expected: j.WriteID, Job: unknown(s, j)}
		for _, r := range swapMany(ctx, t, s, next, next) {
			if r.Err == nil || r.Swapped || r.Present != nil {
				t.Errorf("swap many: got %+v, want an error each", r)
			}
		}
		mustCreate(t, s, j) // whether the first has landed or not
		mustBe(t, s, j)
	}},
	{"life/get of nothing", func(t *testing.T, b Backend) {
		s := b.Open(t)
		mustBeGone(t, s, keystore.NameOf("main", "alice", "never written"))
	}},
}
