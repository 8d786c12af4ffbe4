package boltstore

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

func TestOpenCreatesPrivateFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a", "b", "jobs.db")
	openStore(t, path, Options{})
	if runtime.GOOS == "windows" {
		return // it has no such permissions
	}
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700, filepath.Dir(filepath.Dir(path)): 0o700} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", p, got, want)
		}
	}
}

func TestOpenLocked(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	_, err := Open(s.path, Options{})
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), s.path) {
		t.Fatalf("got %v, want ErrLocked with the path", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openStore(t, s.path, Options{})
}

func TestOpenForeign(t *testing.T) {
	t.Parallel()
	damaged := func(cleanly bool) func(string) error {
		return func(path string) error {
			s, err := Open(path+".good", Options{})
			if err != nil {
				return err
			}
			if cleanly {
				err = s.Close()
			} else {
				defer func() { _ = s.Close() }()
			}
			whole, readErr := os.ReadFile(path + ".good")
			if err := errors.Join(err, readErr); err != nil {
				return err
			}
			// All but the two pages that say where things are.
			clear(whole[2*os.Getpagesize():])
			return os.WriteFile(path, whole, 0o600)
		}
	}
	cut := func(path string) error {
		err := damaged(false)(path)
		return errors.Join(err, os.Truncate(path, int64(2*os.Getpagesize())))
	}
	// Finding the free pages of a file that was not closed comes across this.
	damagedLeaves := func(path string) error {
		const mark = "a body to be found again"
		s, err := Open(path+".good", Options{})
		if err != nil {
			return err
		}
		if err = s.Close(); err == nil {
			s, err = Open(path+".good", Options{})
		}
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		for i := range 50 {
			j := claimed(strconv.Itoa(i), s.Now())
			if _, _, err := s.Create(t.Context(), completed(j, s.Now(), []byte(mark))); err != nil {
				return err
			}
		}
		whole, err := os.ReadFile(path + ".good")
		if err != nil {
			return err
		}
		for page := range slices.Chunk(whole, os.Getpagesize()) {
			if bytes.Contains(page, []byte(mark)) {
				clear(page)
			}
		}
		return os.WriteFile(path, whole, 0o600)
	}
	foreignBolt := func(format string) func(string) error {
		return func(path string) error {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				return err
			}
			err = db.Update(func(tx *bbolt.Tx) error {
				if format == "" {
					_, err := tx.CreateBucket([]byte("other"))
					return err
				}
				about, err := tx.CreateBucket(aboutBucket)
				if err != nil {
					return err
				}
				return about.Put(formatKey, []byte(format))
			})
			return errors.Join(err, db.Close())
		}
	}
	for name, write := range map[string]func(path string) error{
		"short text":       func(p string) error { return os.WriteFile(p, []byte("hello\n"), 0o600) },
		"long text":        func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("hello\n"), 20000), 0o600) },
		"zeros":            func(p string) error { return os.WriteFile(p, make([]byte, 1<<16), 0o600) },
		"damaged, closed":  damaged(true),
		"damaged, crashed": damaged(false),
		"damaged leaves":   damagedLeaves,
		"cut short":        cut,
		"other database":   foreignBolt(""),
		"newer version":    foreignBolt("3"),
		"unversioned file": foreignBolt("\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "jobs.db")
			if err := write(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first try must not leave it locked
				if _, err = Open(path, Options{}); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), path) {
					t.Fatalf("got %v, want ErrForeign with the path", err)
				}
			}
			after, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
		})
	}
}

// A file that a crash left between the first two steps of creating it, or that
// somebody has created beforehand, is an empty store.
func TestOpenEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, bare := filepath.Join(dir, "empty.db"), filepath.Join(dir, "bare.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(bare, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{empty, bare} {
		s := openStore(t, path, Options{})
		mustCreate(t, s, claimed("k", s.Now()))
	}
}

func TestOpenDirectoryInTheWay(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("got %v, want an error with the path", err)
	}
}
