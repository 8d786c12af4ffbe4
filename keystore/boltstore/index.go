package boltstore

import (
	"context"
	"encoding/hex"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	defaultPage = 100
	// maxScan is how many entries one transaction looks at, since what is freed
	// meanwhile can't be used again before it ends.
	maxScan = 1024
)

// Index implements [keystore.Store]. There is one entry per name, the one
// entered last.
func (s *Store) Index(ctx context.Context, entries ...keystore.IndexEntry) error {
	if len(entries) == 0 {
		return nil
	}
	err := s.submit(ctx, &operation{size: 2 * entryLen * len(entries), apply: func(b *batch) error {
		for _, e := range entries {
			b.enter(e)
		}
		return b.failed
	}})
	if err != nil {
		return fmt.Errorf("index in %s: %w", s.path, err)
	}
	return nil
}

func (b *batch) enter(e keystore.IndexEntry) {
	if old := b.lease.Get(e.Name[:]); old != nil {
		if instant(old) == e.LeaseEnd {
			return
		}
		b.try(b.unresolved.Delete(entryKey(instant(old), e.Name)))
	}
	key := entryKey(e.LeaseEnd, e.Name)
	b.try(b.unresolved.Put(key, nil))
	b.try(b.lease.Put(e.Name[:], key[:instantLen]))
	b.dirty = true
}

// List implements [keystore.Store]. A limit that is not positive stands for 100.
// A job whose entry is moved meanwhile can be on two pages. An unreadable record
// is logged and left out, so that the others are still found; its entry stays.
func (s *Store) List(ctx context.Context, cursor string, limit int) (page []*keystore.Job, next string, err error) {
	if limit <= 0 {
		limit = defaultPage
	}
	after, err := hex.DecodeString(cursor)
	if err != nil || (len(after) != 0 && len(after) != entryLen) {
		return nil, "", fmt.Errorf("list %s: %q is not a cursor of this store", s.path, cursor)
	}
	var stale []keystore.IndexEntry
	for {
		var found []*keystore.Job
		var untrue []keystore.IndexEntry
		found, untrue, after, err = s.scan(ctx, after, limit-len(page))
		if err != nil {
			return nil, "", fmt.Errorf("list %s: %w", s.path, err)
		}
		page = append(page, found...)
		stale = append(stale, untrue...)
		if after == nil || len(page) == limit {
			break
		}
	}
	if err := s.drop(ctx, stale); err != nil {
		// The page is as true without it.
		s.log.Warn("dropping stale entries from the index failed", "file", s.path, "error", err)
	}
	return page, hex.EncodeToString(after), nil
}

// scan returns up to limit unresolved jobs whose entries come after the given
// key, the entries on the way that are not true, and the key to go on from: nil
// at the end.
func (s *Store) scan(ctx context.Context, after []byte, limit int) (found []*keystore.Job, stale []keystore.IndexEntry, last []byte, err error) {
	now := s.now()
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		records := recordsOf(tx)
		cursor := tx.Bucket(unresolvedBucket).Cursor()
		key, _ := cursor.Seek(after)
		if len(after) > 0 && string(key) == string(after) {
			key, _ = cursor.Next()
		}
		last = nil
		for scanned := 0; key != nil; key, _ = cursor.Next() {
			if len(found) == limit || scanned == maxScan {
				return nil
			}
			scanned++
			last = append(last[:0], key...)
			end, name := splitEntryKey(key)
			job, err := records.decodeAt(name, now)
			switch {
			case err != nil:
				s.log.Error("an unresolved job can't be read", "file", s.path, "record", name, "error", err)
			case job != nil && job.Unresolved():
				found = append(found, job)
			default:
				stale = append(stale, keystore.IndexEntry{Name: name, LeaseEnd: end})
			}
		}
		last = nil
		return nil
	})
	return found, stale, last, err
}

func (r records) decodeAt(name keystore.Name, now keystore.Time) (*keystore.Job, error) {
	v, err := r.lookUp(name, now)
	if err == nil {
		v, err = r.whole(v)
	}
	if v == nil || err != nil {
		return nil, err
	}
	return keystore.DecodeRecord(name, v.record())
}

// drop removes entries from the index that are still not true when the writer
// comes to them.
func (s *Store) drop(ctx context.Context, stale []keystore.IndexEntry) error {
	now := s.now()
	var over []keystore.IndexEntry
	for _, e := range stale {
		// An entry is made before the write that makes it true. While the lease
		// lasts that write may be on its way.
		if e.LeaseEnd <= now {
			over = append(over, e)
		}
	}
	for len(over) > 0 {
		portion := over[:min(len(over), idlePurge)]
		over = over[len(portion):]
		err := s.submit(ctx, &operation{apply: func(b *batch) error {
			for _, e := range portion {
				b.leave(e)
			}
			return b.failed
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// leave removes the entry if the job is not unresolved and it was not entered
// again with another lease end.
func (b *batch) leave(e keystore.IndexEntry) {
	job, err := b.decodeAt(e.Name, b.now())
	if err != nil || (job != nil && job.Unresolved()) {
		return
	}
	b.try(b.unresolved.Delete(entryKey(e.LeaseEnd, e.Name)))
	if have := b.lease.Get(e.Name[:]); have != nil && instant(have) == e.LeaseEnd {
		b.try(b.lease.Delete(e.Name[:]))
	}
	b.dirty = true
}
