package boltstore

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// entries counts what is in the buckets.
func entries(t testing.TB, s *Store) map[string]int {
	t.Helper()
	count := make(map[string]int)
	err := s.read(t.Context(), func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			count[string(name)] = 0
			return b.ForEach(func(_, _ []byte) error {
				count[string(name)]++
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

func wantEntries(t testing.TB, s *Store, jobs, expiry int) {
	t.Helper()
	if got := entries(t, s); got["jobs"] != jobs || got["expiry"] != expiry {
		t.Fatalf("%d jobs and %d expiries, want %d and %d", got["jobs"], got["expiry"], jobs, expiry)
	}
}

// purge runs a portion of purging in the writer, which adds the one that goes
// along with every batch.
func (s *Store) purge(t testing.TB, limit int) {
	t.Helper()
	if err := s.submit(t.Context(), &operation{apply: func(b *batch) error { return b.purge(limit) }}); err != nil {
		t.Fatal(err)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	done := completed(j, s.Now(), []byte("x"))
	mustSwap(t, s, j, done)

	clock.Advance(retention - time.Millisecond)
	wantRecord(t, s, j.Name, done)
	if present, created, err := s.Create(t.Context(), claimed("k", s.Now())); err != nil || created || sameJob(present, done) != nil {
		t.Fatalf("create before the expiry: %v, %v, %v", present, created, err)
	}
	clock.Advance(time.Millisecond)
	wantRecord(t, s, j.Name, nil)
	late := completed(j, s.Now(), []byte("y"))
	if present, swapped, err := s.Swap(t.Context(), done.WriteID, late); err != nil || swapped || present != nil {
		t.Fatalf("swap of an expired record: %v, %v, %v", present, swapped, err)
	}
	again := claimed("k", s.Now())
	mustCreate(t, s, again)
	wantRecord(t, s, j.Name, again)
	wantEntries(t, s, 1, 0)

	// The running one outlives everything.
	clock.Advance(100 * retention)
	s.purge(t, 10)
	wantRecord(t, s, j.Name, again)
}

func TestExpiryEntriesFollowTheRecord(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	wantEntries(t, s, 1, 0)
	open := failed(j, s.Now())
	mustSwap(t, s, j, open)
	wantEntries(t, s, 1, 1)
	running := open.Start(keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: time.Minute, Listen: time.Minute})
	running.WriteID = keystore.NewWriteID()
	mustSwap(t, s, open, running)
	wantEntries(t, s, 1, 0)
	clock.Advance(time.Minute)
	done := completed(running, s.Now(), nil)
	mustSwap(t, s, running, done)
	wantEntries(t, s, 1, 1)

	clock.Advance(20 * time.Minute)
	forgotten, err := done.Forget(s.Now())
	if err != nil {
		t.Fatal(err)
	}
	forgotten.WriteID = keystore.NewWriteID()
	mustSwap(t, s, done, forgotten)
	wantRecord(t, s, j.Name, nil)
	wantEntries(t, s, 0, 0)
}

func TestPurge(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	const count = 100
	settle := func(round int) {
		for i := range count {
			j := claimed(fmt.Sprint(round, i), s.Now())
			mustCreate(t, s, j)
			mustSwap(t, s, j, completed(j, s.Now(), []byte("x")))
		}
	}
	settle(1)
	running := claimed("running", s.Now())
	mustCreate(t, s, running)
	clock.Advance(retention - time.Millisecond)
	s.purge(t, count)
	wantEntries(t, s, count+1, count)

	clock.Advance(time.Millisecond)
	s.purge(t, 10)
	left := count - 10 - minPurge
	wantEntries(t, s, left+1, left)
	// The rest goes along with new writes.
	settle(2)
	wantEntries(t, s, count+1, count)
	clock.Advance(retention)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// What expired while it was closed is found again.
	s = openStore(t, s.path, Options{Clock: clock.Now})
	s.purge(t, count-minPurge-1)
	wantEntries(t, s, 2, 1)
	s.purge(t, count)
	wantEntries(t, s, 1, 0)
	wantRecord(t, s, running.Name, running)
}

// Whatever the expiry entries say, only a record that has expired itself goes.
func TestPurgeBelievesTheRecord(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	running := claimed("k", s.Now())
	mustCreate(t, s, running)
	err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
		b.dirty, b.due = true, s.Now()
		return b.expiry.Put(entryKey(s.Now(), running.Name), nil)
	}})
	if err != nil {
		t.Fatal(err)
	}
	wantEntries(t, s, 1, 0) // it went along with that very batch
	clock.Advance(100 * retention)
	wantRecord(t, s, running.Name, running)
}

// An idle writer purges by itself, portion by portion, to the end.
func TestIdlePurge(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now, idleEvery: time.Millisecond})
	err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
		for i := range 3 * idlePurge {
			j := failed(claimed(fmt.Sprint(i), s.Now()), s.Now())
			b.store(j.Name, mustEncode(t, j))
		}
		return b.failed
	}})
	if err != nil {
		t.Fatal(err)
	}
	wantEntries(t, s, 3*idlePurge, 3*idlePurge)
	clock.Advance(retention)
	for entries(t, s)["jobs"] != 0 {
		runtime.Gosched()
	}
	wantEntries(t, s, 0, 0)
}

// The pages of purged records are used again, so that the file stays as it is.
func TestPurgedPagesAreReused(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	size := func() (size int64) {
		err := s.read(t.Context(), func(tx *bbolt.Tx) error { size = tx.Size(); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return size
	}
	var after []int64
	for round := range 6 {
		for i := range 40 {
			j := claimed(fmt.Sprint(round, i), s.Now())
			mustCreate(t, s, j)
			mustSwap(t, s, j, completed(j, s.Now(), make([]byte, 20<<10)))
		}
		clock.Advance(retention)
		s.purge(t, 1000)
		after = append(after, size())
	}
	if after[5] > after[1]*3/2 {
		t.Errorf("the file goes on growing: %v", after)
	}
}
