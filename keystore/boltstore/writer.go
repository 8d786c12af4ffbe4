package boltstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// maxBatch and maxBatchBytes bound what goes into one transaction, and so
	// how long the first of its operations waits for the last.
	maxBatch      = 512
	maxBatchBytes = 8 << 20

	// minPurge is how many expired records are purged along with a batch at
	// least, and idlePurge how many in a transaction of their own. A job takes
	// two operations, so purging one record per operation outruns them.
	minPurge  = 16
	idlePurge = 256
)

// operation is one write, or a step of housekeeping.
type operation struct {
	size  int // bytes
	apply func(*batch) error
	err   error
	done  chan struct{} // closed when err, and what apply has left, can be read
}

// writer is the state of the goroutine that writes.
type writer struct {
	waiting []*operation // reused from batch to batch
	due     keystore.Time
	tried   time.Time // when opening the file again was last tried
	last    *file     // the one opened last
}

// submit has the writer apply an operation, and waits until it is on the disk.
// What apply has left can be read only if submit returns no error.
func (s *Store) submit(ctx context.Context, op *operation) error {
	op.done = make(chan struct{})
	if err := ctx.Err(); err != nil {
		return notApplied(fmt.Errorf("%w: %w", keystore.ErrUnavailable, err))
	}
	select {
	case <-s.closing:
		return notApplied(keystore.ErrClosed)
	default:
	}
	select {
	case s.ops <- op:
	case <-s.closing:
		return notApplied(keystore.ErrClosed)
	case <-ctx.Done():
		return notApplied(fmt.Errorf("%w: %w", keystore.ErrUnavailable, ctx.Err()))
	}
	select {
	case <-op.done:
		return op.err
	case <-ctx.Done():
	}
	select {
	case <-op.done: // both at once: what is known counts
		return op.err
	default:
		return fmt.Errorf("%w: no longer waiting for the commit: %w", keystore.ErrUnavailable, ctx.Err())
	}
}

func notApplied(err error) error { return fmt.Errorf("%w: %w", keystore.ErrNotApplied, err) }

// write is the goroutine that writes.
func (s *Store) write() {
	defer close(s.closed)
	idle := time.NewTimer(s.opts.idleEvery)
	defer idle.Stop()
	for {
		select {
		case op := <-s.ops:
			s.commit(s.gather(op))
		case <-idle.C:
			idle.Reset(s.idle())
		case <-s.closing:
			if f := s.file.Swap(nil); f != nil {
				s.closeErr = f.close()
			}
			s.watchers.hintAll() // so that whoever waits meets ErrClosed
			return
		}
	}
}

// gather adds to the first operation those that are waiting already.
func (s *Store) gather(first *operation) []*operation {
	s.writer.waiting = append(s.writer.waiting[:0], first)
	ops := s.writer.waiting
	size := first.size
	// Those that the last commit has answered are about to send their next
	// operations: they are let run first.
	runtime.Gosched()
	for more := true; more && len(ops) < maxBatch && size < maxBatchBytes; {
		select {
		case op := <-s.ops:
			ops = append(ops, op)
			size += op.size
		default:
			more = false
		}
	}
	s.writer.waiting = ops
	return ops
}

// commit applies the operations in one transaction and answers them.
func (s *Store) commit(ops []*operation) {
	changed, err := s.transact(func(b *batch) error {
		for _, op := range ops {
			op.err = op.apply(b)
			if b.failed != nil {
				return b.failed
			}
		}
		if b.dirty {
			return b.purge(max(minPurge, len(ops)))
		}
		return nil
	})
	for i, op := range ops {
		if err != nil {
			op.err = err
		}
		close(op.done)
		ops[i] = nil
	}
	s.watchers.hint(changed)
}

// idle does what is left to do when nobody asks for anything, and returns after
// what time to do more.
func (s *Store) idle() time.Duration {
	if s.file.Load() == nil {
		s.reopen()
	}
	if !past(s.writer.due, s.now()) {
		return s.opts.idleEvery
	}
	if _, err := s.transact(func(b *batch) error { return b.purge(idlePurge) }); err != nil {
		s.log.Warn("purging expired jobs failed", "file", s.path, "error", err)
		return s.opts.idleEvery
	}
	return s.opts.idleEvery / 100 // there may be more; let requests in between
}

// transact runs fn in a transaction and commits it if fn has changed anything.
// It returns the names whose records were changed.
//
// An error wraps [keystore.ErrNotApplied] unless it came from the commit itself:
// then nobody knows, and the file is closed and opened again, because what the
// library holds in memory may not agree with the disk any more.
func (s *Store) transact(fn func(*batch) error) ([]keystore.Name, error) {
	f := s.file.Load()
	if f == nil {
		if f = s.reopen(); f == nil {
			return nil, notApplied(s.noFile())
		}
	}
	var b *batch
	committing := false
	err := guard(func() error {
		tx, err := f.begin(true)
		if err != nil {
			return err
		}
		defer f.rollback(tx)
		id := int64(tx.ID())
		if id != f.durable.Load()+1 { // nobody else has written a commit
			return errReplaced
		}
		b = newBatch(tx, s.now, s.writer.due)
		if err := fn(b); err != nil || !b.dirty {
			return err
		}
		committing = true
		if err := s.opts.commit(tx); err != nil {
			return err
		}
		f.durable.Store(id)
		return nil
	})
	if err == nil {
		s.writer.due = b.due
		if committing {
			s.commits.Add(1)
			f.settle()
		}
		return b.changed, nil
	}
	if isFull(err) {
		err = fmt.Errorf("%w: %w", keystore.ErrFull, err)
	}
	err = fmt.Errorf("%w: write %s: %w", keystore.ErrUnavailable, s.path, err)
	if committing || errors.Is(err, errPanic) || errors.Is(err, errReplaced) {
		s.log.Error("a write has failed; opening the store file again", "file", s.path, "error", err)
		s.file.Store(nil)
		f.failed.Store(true)
		f.settle()
		if closeErr := f.release(); closeErr != nil {
			s.log.Error("closing the store file failed", "file", s.path, "error", closeErr)
		}
		s.writer.tried = time.Time{}
		s.reopen()
	}
	if !committing {
		err = notApplied(err)
	}
	return nil, err
}

// reopen opens the file again after it was given up, if the last try is long
// enough ago. It returns nil if there is still no file.
func (s *Store) reopen() *file {
	if time.Since(s.writer.tried) < s.opts.reopenEvery {
		return nil
	}
	f, err := openFile(s.path, s.writer.last, s.opts)
	if err != nil {
		s.writer.tried = time.Now()
		s.log.Error("the store is unavailable: its file can't be opened again", "file", s.path, "error", err)
		return nil
	}
	s.log.Info("the store file is open again", "file", s.path)
	s.writer.due, s.writer.last = f.due, f
	s.file.Store(f)
	return f
}

// isFull reports whether a write has failed for want of room.
func isFull(err error) bool {
	return slices.ContainsFunc(noRoom, func(why error) bool { return errors.Is(err, why) })
}
