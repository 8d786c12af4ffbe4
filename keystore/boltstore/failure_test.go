package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var errInjected = errors.New("injected")

// failing makes commits fail as a test wants them to.
type failing struct {
	mode atomic.Int32
	// writes counts the commits that were asked for.
	writes atomic.Int32
}

const (
	commitsWork = iota
	commitsAreLost
	commitsLandUnsaid // they are applied, and an error is returned
)

func (f *failing) commit(tx *bbolt.Tx) error {
	f.writes.Add(1)
	switch f.mode.Load() {
	case commitsAreLost:
		return errInjected
	case commitsLandUnsaid:
		return errors.Join(tx.Commit(), errInjected)
	}
	return tx.Commit()
}

// A commit that fails is ambiguous, the store goes on by itself, and repeating
// the write with the same write id is safe whether it had landed or not.
func TestFailedCommit(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]int32{"lost": commitsAreLost, "landed": commitsLandUnsaid} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var once atomic.Bool // the next commit fails
			s := newStore(t, Options{reopenEvery: time.Nanosecond, commit: func(tx *bbolt.Tx) error {
				if once.Swap(false) {
					return (&failing{}).with(mode).commit(tx)
				}
				return tx.Commit()
			}})
			before := claimed("before", s.Now())
			mustCreate(t, s, before)

			j := claimed("k", s.Now())
			once.Store(true)
			_, _, err := s.Create(t.Context(), j)
			if !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) || !errors.Is(err, errInjected) {
				t.Fatalf("create: got %v, want it ambiguous", err)
			}
			got, err := s.Get(t.Context(), j.Name)
			if err != nil || (got != nil) != (mode == commitsLandUnsaid) {
				t.Fatalf("after the failed commit: got %v, error %v", got, err)
			}
			mustCreate(t, s, j)
			wantRecord(t, s, j.Name, j)

			next := completed(j, s.Now(), []byte("done"))
			once.Store(true)
			if _, _, err := s.Swap(t.Context(), j.WriteID, next); !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
				t.Fatalf("swap: got %v, want it ambiguous", err)
			}
			mustSwap(t, s, j, next)
			wantRecord(t, s, j.Name, next)
			wantRecord(t, s, before.Name, before)
		})
	}
}

func (f *failing) with(mode int32) *failing {
	f.mode.Store(mode)
	return f
}

// As long as the file can't be opened again everything is refused, for certain;
// after that everything works.
func TestFailedReopen(t *testing.T) {
	t.Parallel()
	f := new(failing)
	s := newStore(t, Options{reopenEvery: time.Nanosecond, commit: f.commit})
	before := claimed("before", s.Now())
	mustCreate(t, s, before)
	hint, stop := s.Watch(t.Context(), keystore.NameOf("main", "alice", "k"), keystore.WriteID{})
	defer stop()

	f.mode.Store(commitsAreLost)
	j := claimed("k", s.Now())
	if _, _, err := s.Create(t.Context(), j); !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
		t.Fatalf("create: got %v, want it ambiguous", err)
	}
	for range 3 {
		if _, _, err := s.Create(t.Context(), j); !errors.Is(err, keystore.ErrUnavailable) || !errors.Is(err, keystore.ErrNotApplied) {
			t.Fatalf("create without a file: got %v, want it unavailable and not applied", err)
		}
		if _, err := s.Get(t.Context(), before.Name); !errors.Is(err, keystore.ErrUnavailable) {
			t.Fatalf("get without a file: got %v", err)
		}
	}
	select {
	case <-hint:
		t.Error("a hint although nothing was written")
	default:
	}
	f.mode.Store(commitsWork)
	mustCreate(t, s, j)
	<-hint
	wantRecord(t, s, j.Name, j)
	wantRecord(t, s, before.Name, before)
}

// Whoever writes is told that there is no room, so that an answer can be kept without
// its body.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	for _, why := range noRoom {
		var once atomic.Bool // the next commit fails
		s := newStore(t, Options{reopenEvery: time.Nanosecond, commit: func(tx *bbolt.Tx) error {
			if once.Swap(false) {
				return &os.PathError{Op: "write", Path: "jobs.db", Err: why}
			}
			return tx.Commit()
		}})
		j := claimed("k", s.Now())
		mustCreate(t, s, j)
		next := completed(j, s.Now(), []byte("done"))
		once.Store(true)
		if _, _, err := s.Swap(t.Context(), j.WriteID, next); !errors.Is(err, keystore.ErrFull) || !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("%v: got %v, want it full and ambiguous", why, err)
		}
		once.Store(true)
		if r := s.SwapMany(t.Context(), []keystore.Swap{{Expected: j.WriteID, Job: next}}); !errors.Is(r[0].Err, keystore.ErrFull) {
			t.Errorf("%v: many: got %v", why, r[0].Err)
		}
		wantRecord(t, s, j.Name, j)
		mustSwap(t, s, j, next)
	}
}

// Trying to open the file again is bounded in number, not done by every caller.
func TestReopenIsBounded(t *testing.T) {
	t.Parallel()
	f := new(failing)
	s := newStore(t, Options{reopenEvery: time.Hour, commit: f.commit})
	f.mode.Store(commitsAreLost)
	before := f.writes.Load()
	for i := range 10 {
		if _, _, err := s.Create(t.Context(), claimed(fmt.Sprint(i), s.Now())); !errors.Is(err, keystore.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if got := f.writes.Load() - before; got != 2 {
		t.Errorf("%d commits were tried, want the failed one and one on opening again", got)
	}
}

// A real failure inside the library: its file was closed under it.
func TestBrokenHandle(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	before := claimed("before", s.Now())
	mustCreate(t, s, before)
	if err := s.file.Load().handle.Close(); err != nil {
		t.Fatal(err)
	}
	j := claimed("k", s.Now())
	if _, _, err := s.Create(t.Context(), j); !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
		t.Fatalf("create: got %v, want it ambiguous", err)
	}
	mustCreate(t, s, j)
	wantRecord(t, s, j.Name, j)
	wantRecord(t, s, before.Name, before)
}

// A store whose file is gone must not go on with an empty one: that would free
// every key.
func TestReopenNeverBeginsAnew(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"removed": os.Remove,
		"emptied": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600))
		},
		"replaced": func(path string) error {
			other, err := Open(path+".new", Options{})
			if err != nil {
				return err
			}
			return errors.Join(other.Close(), os.Rename(path+".new", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := new(failing)
			s := newStore(t, Options{reopenEvery: time.Nanosecond, commit: f.commit})
			j := claimed("k", s.Now())
			mustCreate(t, s, j)
			if err := spoil(s.path); err != nil {
				t.Fatal(err)
			}
			f.mode.Store(commitsAreLost)
			_, _, _ = s.Create(t.Context(), claimed("other", s.Now()))
			f.mode.Store(commitsWork)
			for range 2 {
				if _, _, err := s.Create(t.Context(), claimed("k", s.Now())); !errors.Is(err, keystore.ErrUnavailable) || !errors.Is(err, keystore.ErrNotApplied) {
					t.Fatalf("got %v, want it unavailable", err)
				}
			}
		})
	}
}

// Nor with an older copy that was written over it while it was in use: that would free
// the keys that have come since.
func TestWrittenOverByAnOlderCopy(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{reopenEvery: time.Nanosecond})
	content := func() []byte {
		whole, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		return whole
	}
	older := content()
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	former := content()
	if err := os.WriteFile(s.path, older, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, created, err := s.Create(t.Context(), claimed("k", s.Now())); created || !errors.Is(err, keystore.ErrUnavailable) || !errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("created %v, %v, want it unavailable", created, err)
		}
	}
	if err := os.WriteFile(s.path, former, 0o600); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, s, claimed("other", s.Now()))
	wantRecord(t, s, j.Name, j)
}

// A file that was emptied while it was in use lets nobody wait for ever, and is taken up
// again when its content is back.
func TestEmptiedInUse(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{reopenEvery: time.Nanosecond})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	former, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.path, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := s.Get(t.Context(), j.Name); !errors.Is(err, keystore.ErrUnavailable) {
			t.Errorf("get: %v, want it unavailable", err)
		}
		if _, created, err := s.Create(t.Context(), claimed("k", s.Now())); created || !errors.Is(err, keystore.ErrUnavailable) || !errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("created %v, %v, want it unavailable", created, err)
		}
	}
	if err := os.WriteFile(s.path, former, 0o600); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, s, claimed("other", s.Now()))
	wantRecord(t, s, j.Name, j)
}

// An operation that panics, as the library does when it meets a damaged page,
// fails its batch for certain and nothing else.
func TestPanicInBatch(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
		b.store(j.Name, mustEncode(t, failed(j, s.Now())))
		panic("page 7: unexpected page type")
	}})
	if !errors.Is(err, keystore.ErrUnavailable) || !errors.Is(err, keystore.ErrNotApplied) {
		t.Fatalf("got %v, want it unavailable and not applied", err)
	}
	wantRecord(t, s, j.Name, j)
	mustCreate(t, s, claimed("other", s.Now()))
}

// Nobody needs to write for the file to be opened again.
func TestIdleReopen(t *testing.T) {
	t.Parallel()
	f := new(failing)
	s := newStore(t, Options{reopenEvery: time.Nanosecond, idleEvery: time.Millisecond, commit: f.commit})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	f.mode.Store(commitsAreLost)
	_, _, _ = s.Create(t.Context(), claimed("other", s.Now()))
	f.mode.Store(commitsWork)
	for {
		got, err := s.Get(t.Context(), j.Name)
		if err == nil && sameJob(got, j) == nil {
			return
		}
		if !errors.Is(err, keystore.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// A database whose locks were left held by a panic can't be closed. That must
// not hang whoever closes the store.
func TestReleaseOfWedgedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jobs.db")
	f, err := openFile(path, nil, Options{commit: (*bbolt.Tx).Commit, secure: rewrite})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.db.Begin(true); err != nil {
		t.Fatal(err)
	}
	f.wedged.Store(true)
	if err := f.release(); err != nil {
		t.Fatal(err)
	}
}
