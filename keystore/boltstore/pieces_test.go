package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// bodyOf returns a body that differs from place to place and from seed to seed.
func bodyOf(seed string, size int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprint(&b, seed, i, ",")
	}
	return b.Bytes()[:size]
}

func formatOf(t testing.TB, s *Store) (format string) {
	t.Helper()
	if err := s.read(t.Context(), func(tx *bbolt.Tx) error {
		format = string(tx.Bucket(aboutBucket).Get(formatKey))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return format
}

// A record comes back as it was, whatever its size; and of what is replaced, forgotten
// or expired no piece stays behind.
func TestPieces(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, maxWhole - 500, maxWhole, pieceLen - 500, pieceLen, pieceLen + 1, 2 * pieceLen, 7*pieceLen - 400, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			clock := newTestClock()
			s := newStore(t, Options{Clock: clock.Now})
			var done []*keystore.Job
			for i := range 5 {
				j := claimed(fmt.Sprint(i), s.Now())
				mustCreate(t, s, j)
				done = append(done, completed(j, s.Now(), bodyOf(j.KeySent, size)))
				mustSwap(t, s, j, done[i])
			}
			for _, j := range done {
				wantRecord(t, s, j.Name, j)
				other := claimed(j.KeySent, s.Now())
				if present, created, err := s.Create(t.Context(), other); err != nil || created || sameJob(present, j) != nil {
					t.Errorf("another claim: %v, %v, %v", present, created, err)
				}
				if present, swapped, err := s.Swap(t.Context(), other.WriteID, other); err != nil || swapped || sameJob(present, j) != nil {
					t.Errorf("another swap: %v, %v, %v", present, swapped, err)
				}
				hint, stop := s.Watch(t.Context(), j.Name, j.WriteID)
				select {
				case <-hint:
					t.Error("a hint although nothing has changed")
				default:
				}
				stop()
			}
			page, next, err := s.Scan(t.Context(), "", 10)
			if err != nil || next != "" || len(page) != len(done) {
				t.Fatalf("scan: %d jobs, %q, %v", len(page), next, err)
			}

			rewritten := *done[0] // written again
			rewritten.WriteID = keystore.NewWriteID()
			mustSwap(t, s, done[0], &rewritten)
			wantRecord(t, s, rewritten.Name, &rewritten)
			clock.Advance(retention / 2) // when nobody can report any more
			forgotten, err := done[1].Forget(s.Now())
			if err != nil {
				t.Fatal(err)
			}
			forgotten.WriteID = keystore.NewWriteID()
			mustSwap(t, s, done[1], forgotten)
			wantRecord(t, s, forgotten.Name, nil)
			wantRecord(t, s, done[2].Name, done[2])

			clock.Advance(retention / 2)
			mustCreate(t, s, claimed("2", s.Now())) // over what has expired
			s.purge(t, 100)
			if got := entries(t, s); got["pieces"] != 0 || got["jobs"] != 1 {
				t.Errorf("left: %v", got)
			}
		})
	}
}

// A job that is unknown and has kept a large answer is listed with it.
func TestPiecesAreListed(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := claimed("k", s.Now())
	body := bodyOf("k", 3*pieceLen)
	kept := reported(j, keystore.Report{
		Outcome: keystore.OutcomeUnknown, At: s.Now(),
		Kept: &keystore.Response{Status: 200, Body: body, Size: int64(len(body)), Answered: s.Now()},
	})
	mustCreate(t, s, kept)
	if err := s.Index(t.Context(), keystore.IndexEntryOf(kept)); err != nil {
		t.Fatal(err)
	}
	page, _, err := s.List(t.Context(), "", 10)
	if err != nil || len(page) != 1 || page[0].LastAttempt().Kept == nil || !bytes.Equal(page[0].LastAttempt().Kept.Body, body) {
		t.Errorf("got %v, %v", page, err)
	}
}

// A file that has no pieces yet is one that older versions can read, and what they have
// written into one is read.
func TestFilesOfOlderVersions(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jobs.db")
	clock := newTestClock()
	s, err := Open(path, Options{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	small := claimed("small", s.Now())
	mustCreate(t, s, small)
	old := completed(claimed("old", s.Now()), s.Now(), bodyOf("old", 1<<20))
	if err := s.submit(t.Context(), &operation{apply: func(b *batch) error { // as they do
		b.dirty, b.due = true, old.Expires
		return errors.Join(b.jobs.Put(old.Name[:], mustEncode(t, old)), b.expiry.Put(entryKey(old.Expires, old.Name), nil),
			b.jobs.Tx().DeleteBucket(piecesBucket))
	}}); err != nil {
		t.Fatal(err)
	}
	if got := formatOf(t, s); got != formatWhole {
		t.Errorf("the format is %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = openStore(t, path, Options{Clock: clock.Now})
	if got := formatOf(t, s); got != formatWhole {
		t.Errorf("opened again: the format is %q", got)
	}
	wantRecord(t, s, small.Name, small)
	wantRecord(t, s, old.Name, old)
	again := *old
	again.WriteID = keystore.NewWriteID()
	mustSwap(t, s, old, &again)
	wantRecord(t, s, old.Name, &again)
	if got := formatOf(t, s); got != formatPieces {
		t.Errorf("with pieces: the format is %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = openStore(t, path, Options{Clock: clock.Now})
	if got := formatOf(t, s); got != formatPieces {
		t.Errorf("opened again with pieces: the format is %q", got)
	}
	wantRecord(t, s, old.Name, &again)
	clock.Advance(retention)
	s.purge(t, 10)
	if got := entries(t, s); got["pieces"] != 0 || got["jobs"] != 1 {
		t.Errorf("left: %v", got)
	}
}

// A record that has lost a piece is not none.
func TestLostPiece(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := completed(claimed("k", s.Now()), s.Now(), bodyOf("k", 3*pieceLen))
	mustCreate(t, s, j)
	if err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
		b.dirty = true
		key, _ := b.pieces.Cursor().First()
		return b.pieces.Delete(key)
	}}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), j.Name); got != nil || !errors.Is(err, keystore.ErrCorrupt) {
		t.Errorf("get: %v, %v", got, err)
	}
	other := claimed("k", s.Now())
	if _, created, err := s.Create(t.Context(), other); created || !errors.Is(err, keystore.ErrCorrupt) || !errors.Is(err, keystore.ErrNotApplied) {
		t.Errorf("create: %v, %v", created, err)
	}
	if _, swapped, err := s.Swap(context.Background(), other.WriteID, other); swapped || !errors.Is(err, keystore.ErrCorrupt) || !errors.Is(err, keystore.ErrNotApplied) {
		t.Errorf("swap: %v, %v", swapped, err)
	}
}

// A length that can't be that of a record is damage, and neither asked for as memory nor a
// reason to open the file again.
func TestImpossibleLength(t *testing.T) {
	t.Parallel()
	for _, length := range []uint64{0, 1, 2 << 30, 1 << 50, math.MaxInt64, 1 << 63, math.MaxUint64} {
		s := newStore(t, Options{})
		j := completed(claimed("k", s.Now()), s.Now(), bodyOf("k", 3*pieceLen))
		mustCreate(t, s, j)
		if err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
			b.dirty = true
			stub := bytes.Clone(b.jobs.Get(j.Name[:]))
			binary.BigEndian.PutUint64(stub[keystore.RecordHeaderLen+8:], length)
			return b.jobs.Put(j.Name[:], stub)
		}}); err != nil {
			t.Fatal(err)
		}
		opened := s.file.Load()
		if got, err := s.Get(t.Context(), j.Name); got != nil || !errors.Is(err, keystore.ErrCorrupt) {
			t.Errorf("length %d: get: %v, %v", length, got, err)
		}
		other := claimed("k", s.Now())
		if _, created, err := s.Create(t.Context(), other); created || !errors.Is(err, keystore.ErrCorrupt) || !errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("length %d: create: %v, %v", length, created, err)
		}
		if _, swapped, err := s.Swap(t.Context(), other.WriteID, other); swapped || !errors.Is(err, keystore.ErrCorrupt) || !errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("length %d: swap: %v, %v", length, swapped, err)
		}
		beside := claimed("beside", s.Now())
		mustCreate(t, s, beside)
		if page, next, err := s.Scan(t.Context(), "", 10); err != nil || next != "" || len(page) != 1 {
			t.Errorf("length %d: scan: %d jobs, %q, %v", length, len(page), next, err)
		}
		if s.file.Load() != opened {
			t.Errorf("length %d: the file was opened again", length)
		}
	}
}
