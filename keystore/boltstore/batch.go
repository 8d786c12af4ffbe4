package boltstore

import (
	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// batch is a transaction of the writer. Each operation in it sees what the
// earlier ones have done.
type batch struct {
	records
	about, expiry, unresolved, lease *bbolt.Bucket

	now func() keystore.Time
	due keystore.Time // the first expiry; zero: none

	dirty   bool
	changed []keystore.Name
	// failed is why the transaction as a whole can't be committed. What concerns
	// one operation alone is that operation's error.
	failed error
}

func newBatch(tx *bbolt.Tx, now func() keystore.Time, due keystore.Time) *batch {
	return &batch{
		records:    recordsOf(tx),
		about:      tx.Bucket(aboutBucket),
		expiry:     tx.Bucket(expiryBucket),
		unresolved: tx.Bucket(unresolvedBucket),
		lease:      tx.Bucket(leaseBucket),
		now:        now,
		due:        due,
	}
}

// create puts the value under the name unless there is a record, which it
// returns otherwise.
func (b *batch) create(name keystore.Name, id keystore.WriteID, v value) (present value, created bool, err error) {
	present, presentID, err := b.present(name)
	switch {
	case err != nil:
		return nil, false, err
	case present == nil:
		b.store(name, v)
		return nil, true, b.failed
	case presentID == id:
		return nil, true, nil
	}
	if present, err = b.whole(present); err != nil {
		return nil, false, notApplied(err)
	}
	return present, false, nil
}

// swap replaces the value under the name if its write id is the expected one,
// and returns the present one otherwise.
func (b *batch) swap(name keystore.Name, expected, id keystore.WriteID, v value) (present value, swapped bool, err error) {
	present, presentID, err := b.present(name)
	switch {
	case err != nil:
		return nil, false, err
	case present == nil:
		return nil, false, nil
	case presentID == expected:
		b.store(name, v)
		return nil, true, b.failed
	case presentID == id:
		return nil, true, nil
	}
	if present, err = b.whole(present); err != nil {
		return nil, false, notApplied(err)
	}
	return present, false, nil
}

func (b *batch) present(name keystore.Name) (v value, id keystore.WriteID, err error) {
	v, err = b.lookUp(name, b.now())
	if v != nil && err == nil {
		id, err = keystore.RecordWriteID(v.record())
	}
	if err != nil {
		return nil, id, notApplied(err)
	}
	return v, id, nil
}

// store puts the value under the name, or nothing if it has expired already,
// in place of whatever is there.
func (b *batch) store(name keystore.Name, v value) {
	old := value(b.jobs.Get(name[:]))
	had, expires := old.expires(), v.expires()
	b.removePieces(old)
	if past(expires, b.now()) {
		expires = 0
		b.try(b.jobs.Delete(name[:]))
	} else {
		if len(v) > maxWhole {
			v = b.split(v)
		}
		b.try(b.jobs.Put(name[:], v))
	}
	if had != expires {
		if had != 0 {
			b.try(b.expiry.Delete(entryKey(had, name)))
		}
		if expires != 0 {
			b.try(b.expiry.Put(entryKey(expires, name), nil))
			if b.due == 0 || expires < b.due {
				b.due = expires
			}
		}
	}
	b.dirty = true
	b.changed = append(b.changed, name)
}

// purge removes up to limit records that have expired.
func (b *batch) purge(limit int) error {
	now := b.now()
	if !past(b.due, now) {
		return nil
	}
	// Removing while a cursor walks makes it skip, so that it walks first.
	var expired [][]byte
	cursor := b.expiry.Cursor()
	key, _ := cursor.First()
	for ; len(expired) < limit && key != nil && past(instant(key), now); key, _ = cursor.Next() {
		expired = append(expired, key)
	}
	b.due = 0
	if key != nil {
		b.due = instant(key)
	}
	for _, key := range expired {
		at, name := splitEntryKey(key)
		// A record that expires at another time, or never, has an entry of its
		// own, or none.
		if v := value(b.jobs.Get(name[:])); v != nil && v.expires() == at {
			b.removePieces(v)
			b.try(b.jobs.Delete(name[:]))
		}
		b.try(b.expiry.Delete(key))
		b.dirty = true
	}
	return b.failed
}

func (b *batch) try(err error) {
	if b.failed == nil {
		b.failed = err
	}
}
