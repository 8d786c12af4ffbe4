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

// The power fails just after a commit could not be synced. It can be seen then, but is
// not on the disk; and what the file's next commit writes goes where the pages are
// that it has set free.
func TestPowerLossAfterAFailedSync(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		var (
			secured bool        // what can be seen is on the disk
			once    atomic.Bool // the next commit is seen, and is not on the disk
			before  []byte      // the file as it was before that
			image   []byte      // what is on the disk after the power loss
		)
		path := filepath.Join(t.TempDir(), "jobs.db")
		size := os.Getpagesize()
		read := func() []byte {
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			return whole
		}
		s := openStore(t, path, Options{
			reopenEvery: time.Nanosecond,
			secure: func(f metaPages, at int64, size int) error {
				secured = true
				return rewrite(f, at, size)
			},
			commit: func(tx *bbolt.Tx) error {
				if once.Swap(false) {
					before, secured = read(), false
					return errors.Join(tx.Commit(), errInjected)
				}
				own := tx.ID() % 2
				err := tx.Commit()
				if before != nil && image == nil {
					// Its pages of data are on the disk, its last one is not.
					image = read()
					for page := range 2 {
						if page == own || !secured {
							copy(image[page*size:(page+1)*size], before[page*size:])
						}
					}
				}
				return err
			},
		})
		var jobs []*keystore.Job
		for i := range 30 + round {
			j := claimed(fmt.Sprint(i), s.Now())
			if i%10 == 9 {
				j = completed(j, s.Now(), bodyOf(j.KeySent, 2*pieceLen))
			}
			mustCreate(t, s, j)
			jobs = append(jobs, j)
		}
		once.Store(true)
		if _, _, err := s.Create(t.Context(), claimed("lost", s.Now())); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		mustCreate(t, s, claimed("next", s.Now()))

		cut := filepath.Join(t.TempDir(), "cut.db")
		if err := os.WriteFile(cut, image, 0o600); err != nil {
			t.Fatal(err)
		}
		after := openStore(t, cut, Options{})
		for _, j := range jobs {
			wantRecord(t, after, j.Name, j)
		}
	}
}

// cachedPages is a file whose system takes what it could not write for written.
type cachedPages struct {
	seen, disk []byte
	dirty      bool
	fails      error
}

func (c *cachedPages) ReadAt(b []byte, at int64) (int, error) {
	return copy(b, c.seen[at:]), c.fails
}

func (c *cachedPages) WriteAt(b []byte, at int64) (int, error) {
	c.dirty = true
	return copy(c.seen[at:], b), nil
}

func (c *cachedPages) Sync() error {
	if c.dirty {
		copy(c.disk, c.seen)
	}
	c.dirty = false
	return nil
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	c := &cachedPages{seen: []byte("aaaabbbbcccc"), disk: []byte("aaaa....cccc")}
	if err := rewrite(c, 4, 4); err != nil || string(c.seen) != "aaaabbbbcccc" || string(c.disk) != "aaaabbbbcccc" {
		t.Errorf("%v: %s is seen, and %s on the disk", err, c.seen, c.disk)
	}
	c.fails = errInjected
	if err := rewrite(c, 4, 4); !errors.Is(err, errInjected) || c.dirty {
		t.Errorf("a page that can't be read: %v", err)
	}
}
