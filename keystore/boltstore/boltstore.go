// Package boltstore is the embedded default store: one durable file, one
// machine, one process.
//
// A single goroutine writes. It takes as many operations as are waiting, puts
// them into one transaction, commits that to the disk, and only then answers
// all of them; when nothing else is waiting, an operation is committed at once.
// Readers see only what is on the disk for certain.
//
// The file does not shrink. What purging frees is used again by later writes,
// so that it stays as large as its busiest time has made it; to make it smaller,
// stop the server and rewrite the file with bbolt's own "compact" command. Which
// pages are free is written down by [Store.Close] only. After a crash the next
// [Open] finds out by walking through the file, which takes the longer the
// larger it is; in exchange no commit writes a list that has no bounds.
package boltstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var _ keystore.Store = (*Store)(nil)

// Options are what [Open] can be told. The zero value is a good one.
type Options struct {
	// Logger is told of failed commits and unreadable records; never of keys,
	// owners or bodies. Nil: nobody is.
	Logger *slog.Logger

	// Clock is the clock that expiries are judged by. Nil: the system's, kept
	// from going back while the store is open; see [Store.Now].
	Clock func() time.Time

	// commit takes the place of a transaction's own commit, for tests.
	commit func(*bbolt.Tx) error
	// secure takes the place of [rewrite], for tests.
	secure func(f metaPages, at int64, size int) error
	// reopenEvery is how often a file is opened again after that has failed.
	reopenEvery time.Duration
	// idleEvery is how often the writer looks for expired records by itself.
	idleEvery time.Duration
}

// Store keeps jobs in one file. Its methods can be called concurrently.
type Store struct {
	path string
	info os.FileInfo // which file it is
	opts Options
	log  *slog.Logger
	now  func() keystore.Time

	// file is what is read and written. It is nil after a commit has failed,
	// until the file could be opened again, and once the store is closed.
	file atomic.Pointer[file]

	// ops hands operations to the writer. It has no buffer: what was sent is in
	// the writer's hands, what was not is certain never to be applied.
	ops      chan *operation
	closing  chan struct{} // closed to ask the writer to end
	closed   chan struct{} // closed when it has
	closeErr error         // to be read when closed is
	endOnce  sync.Once

	watchers watchers
	writer   writer // touched by the writer's goroutine only
	commits  atomic.Int64
}

// Open opens the store in the file at this path, and creates the file and its
// directory if need be. They are readable by the process's user only.
//
// The error wraps [ErrLocked] if another process, or another Store of this one,
// holds the file, and [ErrForeign] if the file is not one that this version can
// read.
func Open(path string, opts Options) (*Store, error) {
	s, err := open(path, opts)
	if err != nil {
		return nil, err
	}
	go s.write()
	return s, nil
}

// open returns a store without its writer.
func open(path string, opts Options) (*Store, error) {
	s := &Store{
		path:    path,
		opts:    opts,
		log:     opts.Logger,
		ops:     make(chan *operation),
		closing: make(chan struct{}),
		closed:  make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.opts.commit == nil {
		s.opts.commit = (*bbolt.Tx).Commit
	}
	if s.opts.secure == nil {
		s.opts.secure = rewrite
	}
	if s.opts.reopenEvery == 0 {
		s.opts.reopenEvery = time.Second
	}
	if s.opts.idleEvery == 0 {
		s.opts.idleEvery = time.Second
	}
	s.now = newClock(opts.Clock)
	if err := makeDirectory(path); err != nil {
		return nil, err
	}
	f, err := openFile(path, nil, s.opts)
	if err != nil {
		return nil, err
	}
	s.file.Store(f)
	s.writer.due, s.writer.last, s.info = f.due, f, f.info
	return s, nil
}

// Create implements [keystore.Store].
func (s *Store) Create(ctx context.Context, job *keystore.Job) (*keystore.Job, bool, error) {
	// Nearly every record that is there already is asked for by a replay, which
	// needn't wait for the writer. Only that there is none is for it to say.
	switch present, err := s.Get(ctx, job.Name); {
	case errors.Is(err, keystore.ErrCorrupt):
		return nil, false, notApplied(err)
	case err != nil || present == nil:
	case present.WriteID == job.WriteID:
		return nil, true, nil
	default:
		return present, false, nil
	}
	return s.put(ctx, "create", job, func(b *batch, v value) (value, bool, error) {
		return b.create(job.Name, job.WriteID, v)
	})
}

// Swap implements [keystore.Store].
func (s *Store) Swap(ctx context.Context, expected keystore.WriteID, job *keystore.Job) (*keystore.Job, bool, error) {
	return s.put(ctx, "swap", job, func(b *batch, v value) (value, bool, error) {
		return b.swap(job.Name, expected, job.WriteID, v)
	})
}

// put hands the write of a job's record to the writer. Encoding and decoding
// stay with the caller, since there is only one writer.
func (s *Store) put(ctx context.Context, what string, job *keystore.Job,
	apply func(*batch, value) (present value, done bool, err error),
) (*keystore.Job, bool, error) {
	v, err := encodeValue(job)
	if err != nil {
		return nil, false, fmt.Errorf("%s in %s: %w: %w", what, s.path, keystore.ErrNotApplied, err)
	}
	var present value
	var done bool
	err = s.submit(ctx, &operation{size: len(v), apply: func(b *batch) (err error) {
		present, done, err = apply(b, v)
		return err
	}})
	if err != nil { // then the writer may still be at it
		return s.tell(what, job.Name, nil, false, err)
	}
	return s.tell(what, job.Name, present, done, nil)
}

// tell returns what a write has to say, once it is no longer in the writer's hands.
func (s *Store) tell(what string, name keystore.Name, present value, done bool, err error) (*keystore.Job, bool, error) {
	if err != nil {
		return nil, false, fmt.Errorf("%s in %s: %w", what, s.path, err)
	}
	if done || present == nil {
		return nil, done, nil
	}
	found, err := keystore.DecodeRecord(name, present.record())
	if err != nil {
		return nil, false, fmt.Errorf("%s in %s: %w: record %s: %w", what, s.path, keystore.ErrNotApplied, name, err)
	}
	return found, false, nil
}

// Get implements [keystore.Store].
func (s *Store) Get(ctx context.Context, name keystore.Name) (*keystore.Job, error) {
	var v value
	err := s.read(ctx, func(tx *bbolt.Tx) (err error) {
		r := recordsOf(tx)
		if v, err = r.lookUp(name, s.now()); err == nil {
			v, err = r.whole(v)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get from %s: %w", s.path, err)
	}
	if v == nil {
		return nil, nil
	}
	job, err := keystore.DecodeRecord(name, v.record())
	if err != nil {
		return nil, fmt.Errorf("get from %s: record %s: %w", s.path, name, err)
	}
	return job, nil
}

// Now returns the present instant of the store's clock: the system's time, which
// never goes back while the store is open. Where the system's time is set back,
// the store's goes on from where it was, ahead of it, until the store is opened
// again; so what has expired stays so. Where it is set forward, the store's
// follows, and what has expired by then is forgotten.
//
// A clock given in [Options] is taken as it is.
func (s *Store) Now() keystore.Time { return s.now() }

// Close finishes the operations that the writer has in hand, and releases the
// file. It can be called again.
func (s *Store) Close() error {
	s.endOnce.Do(func() { close(s.closing) })
	<-s.closed
	return s.closeErr
}
