package boltstore

import (
	"fmt"

	"go.etcd.io/bbolt"
)

// begin begins a transaction. The library reads the file's first pages for that, with its
// locks held. Where the file was emptied that would fault, and leave them held, so that
// everybody would wait for ever. Therefore the file is asked first.
func (f *file) begin(writable bool) (tx *bbolt.Tx, err error) {
	if info, err := f.handle.Stat(); err == nil && info.Size() < f.metas {
		return nil, fmt.Errorf("%w: it was cut short to %d bytes", errPanic, info.Size())
	}
	f.locking(func() { tx, err = f.db.Begin(writable) })
	return tx, err
}

// rollback undoes a transaction unless it has been committed.
func (f *file) rollback(tx *bbolt.Tx) {
	f.locking(func() { _ = tx.Rollback() }) // fails only if there is nothing left to undo
}

// locking runs what leaves the library's locks held if it panics.
func (f *file) locking(fn func()) {
	panics := true
	defer func() {
		if panics {
			f.wedged.Store(true)
		}
	}()
	fn()
	panics = false
}

// release gives the file back, for others to open.
func (f *file) release() error {
	if f.db == nil || f.wedged.Load() {
		if f.handle == nil {
			return nil
		}
		return f.handle.Close()
	}
	return f.db.Close()
}
