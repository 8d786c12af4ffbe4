package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// filled writes a file with pages of all kinds, and returns what is in it after it was
// closed, or as a crash leaves it.
func filled(t *testing.T, closed bool) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "jobs.db")
	s := openStore(t, path, Options{})
	err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
		for i := range 300 {
			j := failed(claimed(fmt.Sprint(i), s.Now()), s.Now())
			if i%50 == 0 {
				j = completed(claimed(fmt.Sprint(i), s.Now()), s.Now(), make([]byte, 100<<10))
			}
			b.store(j.Name, mustEncode(t, j))
			b.enter(keystore.IndexEntryOf(j))
		}
		return b.failed
	}})
	if err != nil {
		t.Fatal(err)
	}
	if closed {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// pagesOf returns the pages of a kind that are in use.
func pagesOf(t *testing.T, whole []byte, kind uint16) (found [][]byte) {
	t.Helper()
	size := os.Getpagesize()
	w := &walk{file: strings.NewReader(string(whole)), size: int64(size)}
	txid := max(binary.NativeEndian.Uint64(whole[16+48:]), binary.NativeEndian.Uint64(whole[size+16+48:]))
	if err := w.all(int(txid), false); err != nil {
		t.Fatal(err)
	}
	for id, used := range w.seen {
		page := whole[id*size:][:size]
		if used && binary.NativeEndian.Uint64(page) == uint64(id) && binary.NativeEndian.Uint16(page[8:]) == kind {
			found = append(found, page)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no page of kind %#x", kind)
	}
	return found
}

// A damaged page is an error, and neither ends the process nor leaves the file locked.
func TestOpenDamagedPages(t *testing.T) {
	t.Parallel()
	put32 := func(at int, v uint32) func([]byte) {
		return func(p []byte) { binary.NativeEndian.PutUint32(p[at:], v) }
	}
	put64 := func(at int, v uint64) func([]byte) {
		return func(p []byte) { binary.NativeEndian.PutUint64(p[at:], v) }
	}
	const first, second = pageHeaderLen, pageHeaderLen + elementLen
	for name, c := range map[string]struct {
		closed bool
		kind   uint16
		damage func(page []byte)
	}{
		"zeros":                      {false, leafPage, func(p []byte) { clear(p) }},
		"another page's":             {false, leafPage, put64(0, 3)},
		"of no kind":                 {false, leafPage, func(p []byte) { p[8] = 0 }},
		"too many pages":             {false, leafPage, put32(12, 1<<31)},
		"too many elements":          {false, leafPage, func(p []byte) { p[10], p[11] = 0xff, 0xff }},
		"a key elsewhere":            {false, leafPage, put32(second+4, 1<<31)},
		"a key without an end":       {false, leafPage, put32(second+8, 1<<31)},
		"a value without an end":     {false, leafPage, put32(second+12, 1<<31)},
		"a key twice":                {false, leafPage, func(p []byte) { copy(p[second+4:], p[first+4:][:4]); p[second+4] -= elementLen }},
		"a bucket in a bucket":       {false, leafPage, put32(first, 1)},
		"zeros for elements":         {false, leafPage, func(p []byte) { clear(p[512:]) }},
		"a branch's key elsewhere":   {false, branchPage, put32(second, 1<<31)},
		"a branch without an end":    {false, branchPage, put32(second+4, 1<<31)},
		"a branch to nowhere":        {false, branchPage, put64(second+8, 1<<40)},
		"a branch to the first page": {false, branchPage, put64(second+8, 0)},
		"a branch to its sibling":    {false, branchPage, func(p []byte) { copy(p[second+8:], p[first+8:][:8]) }},
		"a branch to itself":         {false, branchPage, func(p []byte) { copy(p[second+8:], p[:8]) }},
		"no list of free pages":      {true, freelistPage, func(p []byte) { p[8] = leafPage }},
		"too long a list":            {true, freelistPage, func(p []byte) { p[10], p[11] = 0xf0, 0xff }},
		"a free page that is none":   {true, freelistPage, put64(pageHeaderLen, 1<<40)},
		"a free page twice":          {true, freelistPage, func(p []byte) { p[10], p[11] = 2, 0; copy(p[first+8:], p[first:][:8]) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := filled(t, c.closed)
			for _, page := range pagesOf(t, whole, c.kind) {
				c.damage(page)
			}
			path := filepath.Join(t.TempDir(), "jobs.db")
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if s, err := Open(path, Options{}); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), path) {
					t.Errorf("got %v, %v, want ErrForeign with the path", s, err)
				}
			}
		})
	}
}

// What is whole is not taken for damaged.
func TestWalkPages(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		whole := filled(t, closed)
		pagesOf(t, whole, leafPage)
		pagesOf(t, whole, branchPage)
		path := filepath.Join(t.TempDir(), "jobs.db")
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, path, Options{})
		if got := entries(t, s); got["jobs"] != 300 {
			t.Errorf("%v", got)
		}
	}
}
