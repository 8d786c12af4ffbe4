package boltstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

// manyJobs creates n jobs, and returns the write of each one's end.
func manyJobs(t *testing.T, s *Store, n, size int) []keystore.Swap {
	t.Helper()
	swaps := make([]keystore.Swap, n)
	errs := make(chan error, n)
	for i := range swaps {
		j := claimed(fmt.Sprint(i), s.Now())
		swaps[i] = keystore.Swap{Expected: j.WriteID, Job: completed(j, s.Now(), make([]byte, size))}
		go func() {
			_, _, err := s.Create(context.Background(), j)
			errs <- err
		}()
	}
	for range swaps {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	return swaps
}

// As many swaps as fit into a transaction share one.
func TestManyShareCommits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ n, size, commits int }{{3000, 10, 6}, {maxBatch, 10, 1}, {20, 1 << 20, 3}, {0, 0, 0}} {
		s := newStore(t, Options{})
		swaps := manyJobs(t, s, c.n, c.size)
		commits := s.commits.Load()
		for i, r := range s.SwapMany(t.Context(), swaps) {
			if !r.Swapped || r.Present != nil || r.Err != nil {
				t.Fatalf("swap %d of %d: got %+v", i, c.n, r)
			}
		}
		if got := s.commits.Load() - commits; got != int64(c.commits) {
			t.Errorf("%d swaps of %d bytes: %d commits, want %d", c.n, c.size, got, c.commits)
		}
		for _, swap := range swaps {
			wantRecord(t, s, swap.Job.Name, swap.Job)
		}
	}
}

// A commit that fails leaves the swaps in it in doubt and no others; said again,
// they are done.
func TestManyInAFailedCommit(t *testing.T) {
	t.Parallel()
	fail := make(chan error, 1)
	s := newStore(t, Options{reopenEvery: 1, commit: func(tx *bbolt.Tx) error {
		select {
		case err := <-fail:
			return err
		default:
			return tx.Commit()
		}
	}})
	swaps := manyJobs(t, s, maxBatch+10, 10)
	fail <- errInjected
	for i, r := range s.SwapMany(t.Context(), swaps) {
		switch inDoubt := errors.Is(r.Err, keystore.ErrUnavailable) && !errors.Is(r.Err, keystore.ErrNotApplied); {
		case i < maxBatch && (!inDoubt || r.Swapped || r.Present != nil):
			t.Fatalf("swap %d: got %+v, want it in doubt", i, r)
		case i >= maxBatch && (!r.Swapped || r.Err != nil):
			t.Fatalf("swap %d: got %+v, want it swapped", i, r)
		}
	}
	for i, r := range s.SwapMany(t.Context(), swaps) {
		if !r.Swapped || r.Err != nil {
			t.Fatalf("said again: swap %d: got %+v", i, r)
		}
	}
}

// Whoever gives up while a commit is under way does not know what becomes of the
// swaps in it, and knows that the others are not applied.
func TestManyGivesUp(t *testing.T) {
	t.Parallel()
	hold, held := make(chan func(), 1), make(chan struct{})
	proceed := sync.OnceFunc(func() { close(held) })
	s := newStore(t, Options{commit: func(tx *bbolt.Tx) error {
		select {
		case arrived := <-hold:
			arrived()
			<-held
		default:
		}
		return tx.Commit()
	}})
	swaps := manyJobs(t, s, maxBatch+10, 10)
	t.Cleanup(proceed)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hold <- cancel
	for i, r := range s.SwapMany(ctx, swaps) {
		switch {
		case r.Swapped || r.Present != nil || !errors.Is(r.Err, context.Canceled) || !errors.Is(r.Err, keystore.ErrUnavailable):
			t.Fatalf("swap %d: got %+v, want the context's error", i, r)
		case errors.Is(r.Err, keystore.ErrNotApplied) != (i >= maxBatch):
			t.Fatalf("swap %d: got %v", i, r.Err)
		}
	}
	proceed()
	mustCreate(t, s, claimed("next", s.Now())) // comes after it
	for i, swap := range swaps {
		if got, err := s.Get(t.Context(), swap.Job.Name); err != nil || (got.WriteID == swap.Job.WriteID) != (i < maxBatch) {
			t.Fatalf("swap %d: got %v, %v", i, got, err)
		}
	}
}

func TestLinearizableMany(t *testing.T) {
	t.Parallel()
	storetest.Linearizable(t, func(t testing.TB) storetest.Backend {
		b := newBackend(t)
		open := b.Open
		b.Open = func(t testing.TB) keystore.Store { return storetest.ThroughMany{Store: open(t)} }
		return b
	}, storetest.Load{})
}
