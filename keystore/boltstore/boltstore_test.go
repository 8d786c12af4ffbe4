package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestReload(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jobs.db")
	s := openStore(t, path, Options{})
	large := bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16)
	open, running, done := claimed("open", s.Now()), claimed("running", s.Now()), claimed("done", s.Now())
	for _, j := range []*keystore.Job{open, running, done} {
		mustCreate(t, s, j)
	}
	openNext, doneNext := failed(open, s.Now()), completed(done, s.Now(), large)
	mustSwap(t, s, open, openNext)
	mustSwap(t, s, done, doneNext)
	if err := s.Index(t.Context(), keystore.IndexEntryOf(running)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, path, Options{})
		wantRecord(t, s, open.Name, openNext)
		wantRecord(t, s, running.Name, running)
		wantRecord(t, s, done.Name, doneNext)
		page, next, err := s.List(t.Context(), "", 10)
		if err != nil || next != "" || len(page) != 1 || page[0].ID != running.ID {
			t.Fatalf("list: %v, next %q, error %v", page, next, err)
		}
	}
}

func TestLargeBodiesAreKeptBytePerByte(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	var wg sync.WaitGroup
	for i, size := range []int{0, 1, 4 << 10, 64 << 10, 1 << 20, 10 << 20} {
		wg.Go(func() {
			j := claimed(fmt.Sprint(i), s.Now())
			body := bytes.Repeat([]byte{byte(i + 1)}, size)
			next := completed(j, s.Now(), body)
			if _, _, err := s.Create(t.Context(), j); err != nil {
				t.Error(err)
			}
			if _, _, err := s.Swap(t.Context(), j.WriteID, next); err != nil {
				t.Error(err)
			}
			got, err := s.Get(t.Context(), j.Name)
			if err == nil {
				err = sameJob(got, next)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// garble puts raw bytes where the record stands.
func garble(t testing.TB, s *Store, name keystore.Name, raw []byte) {
	t.Helper()
	err := s.submit(context.Background(), &operation{apply: func(b *batch) error {
		b.dirty = true
		b.try(b.jobs.Put(name[:], append(bytes.Clone(raw), make([]byte, instantLen)...)))
		return b.failed
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCorruptRecordIsNeverNone(t *testing.T) {
	t.Parallel()
	for _, length := range []int{0, 1, instantLen, instantLen + 1, 200} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			t.Parallel()
			s := newStore(t, Options{})
			j := claimed("k", s.Now())
			mustCreate(t, s, j)
			err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
				b.dirty = true
				b.try(b.jobs.Put(j.Name[:], make([]byte, length)))
				return b.failed
			}})
			if err != nil {
				t.Fatal(err)
			}
			_, getErr := s.Get(t.Context(), j.Name)
			_, _, createErr := s.Create(t.Context(), claimed("k", s.Now()))
			_, _, swapErr := s.Swap(t.Context(), j.WriteID, failed(j, s.Now()))
			for what, err := range map[string]error{"get": getErr, "create": createErr, "swap": swapErr} {
				if !errors.Is(err, keystore.ErrCorrupt) {
					t.Errorf("%s: got %v, want ErrCorrupt", what, err)
				}
			}
			hint, stop := s.Watch(t.Context(), j.Name, j.WriteID)
			defer stop()
			<-hint
		})
	}
}

// What could never be read again, or would let time free a key, is not written.
func TestRefusedRecords(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	nameless, expiring := claimed("a", s.Now()), claimed("b", s.Now())
	nameless.WriteID = keystore.WriteID{}
	expiring.Expires = s.Now() + 1
	for _, j := range []*keystore.Job{nameless, expiring} {
		if _, created, err := s.Create(t.Context(), j); created || !errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("create: created %v, error %v", created, err)
		}
		wantRecord(t, s, j.Name, nil)
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	j := claimed("k", s.Now())
	_, _, err := s.Create(ended, j)
	for _, want := range []error{keystore.ErrUnavailable, keystore.ErrNotApplied, context.Canceled} {
		if !errors.Is(err, want) {
			t.Errorf("an ended context: got %v, want %v", err, want)
		}
	}
	if _, err := s.Get(ended, j.Name); !errors.Is(err, keystore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("get under an ended context: %v", err)
	}

	// The writer holds the first, so that the second is never handed to it.
	release, busy := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan error, 2)
	go func() {
		answers <- s.submit(ctx, &operation{apply: func(b *batch) error {
			close(busy)
			<-release
			b.store(j.Name, mustEncode(t, j))
			return b.failed
		}})
	}()
	<-busy
	go func() {
		_, _, err := s.Create(ctx, claimed("other", s.Now()))
		answers <- err
	}()
	cancel()
	first, second := <-answers, <-answers
	if errors.Is(first, keystore.ErrNotApplied) {
		first, second = second, first
	}
	if !errors.Is(first, keystore.ErrUnavailable) || !errors.Is(first, context.Canceled) || errors.Is(first, keystore.ErrNotApplied) {
		t.Errorf("handed to the writer: %v", first)
	}
	if !errors.Is(second, keystore.ErrNotApplied) || !errors.Is(second, context.Canceled) {
		t.Errorf("not handed to the writer: %v", second)
	}
	close(release)
	other := claimed("after", s.Now())
	mustCreate(t, s, other) // the first one is on the disk by then
	wantRecord(t, s, j.Name, j)
	wantRecord(t, s, keystore.NameOf("main", "alice", "other"), nil)
}

func mustEncode(t testing.TB, j *keystore.Job) value {
	t.Helper()
	v, err := encodeValue(j)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	hint, stop := s.Watch(t.Context(), j.Name, j.WriteID)
	defer stop()

	release, busy := make(chan struct{}), make(chan struct{})
	answer := make(chan error, 1)
	next := failed(j, s.Now())
	go func() {
		answer <- s.submit(t.Context(), &operation{apply: func(b *batch) error {
			close(busy)
			<-release
			b.store(j.Name, mustEncode(t, next))
			return b.failed
		}})
	}()
	<-busy
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	<-s.closing
	if _, _, err := s.Create(t.Context(), claimed("late", s.Now())); !errors.Is(err, keystore.ErrClosed) || !errors.Is(err, keystore.ErrNotApplied) {
		t.Errorf("create while closing: %v", err)
	}
	close(release)
	if err := <-answer; err != nil {
		t.Errorf("handed in before closing: %v", err)
	}
	wg.Wait()
	<-hint

	_, _, createErr := s.Create(t.Context(), j)
	_, _, swapErr := s.Swap(t.Context(), j.WriteID, next)
	_, getErr := s.Get(t.Context(), j.Name)
	_, _, listErr := s.List(t.Context(), "", 1)
	indexErr := s.Index(t.Context(), keystore.IndexEntryOf(j))
	for what, err := range map[string]error{"create": createErr, "swap": swapErr, "get": getErr, "list": listErr, "index": indexErr} {
		if !errors.Is(err, keystore.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	closedHint, stop := s.Watch(t.Context(), j.Name, j.WriteID)
	defer stop()
	<-closedHint

	wantRecord(t, openStore(t, s.path, Options{}), j.Name, next)
}
