package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var (
	// ErrLocked says that the file is held by another process, or opened already.
	ErrLocked = errors.New("file is in use")
	// ErrForeign says that the file is damaged, or was made by something else or by
	// another version. It is never repaired or overwritten, since that could
	// free keys whose requests have been executed.
	ErrForeign = errors.New("file is not a readable store")

	errReplaced = errors.New("another file is in its place: put the former one back, " +
		"or restart the server to go on with this one and the jobs that it remembers")
)

// The versions of the layout of buckets. A file begins with the first, which older
// versions of this code can read, and gets the second with its first record in pieces.
const (
	formatWhole  = "1"
	formatPieces = "2"
)

// The keys of the bucket that says what the file is.
var (
	formatKey = []byte("format")
	cleanKey  = []byte("clean") // there if the file lists its free pages
)

// file is the opened file.
type file struct {
	db     *bbolt.DB
	handle *os.File      // db's own
	info   os.FileInfo   // which file it is
	metas  int64         // how long the pages are that every transaction begins with
	due    keystore.Time // the first expiry in it when it was opened; zero: none

	// wedged: beginning or undoing a transaction met damage half-way, which has left
	// the library's locks held. Closing the database would wait for ever, so that
	// its handle alone is closed. The file stays locked until the process ends,
	// since it is still mapped.
	wedged atomic.Bool

	// durable is the last transaction that is on the disk for certain. The
	// library lets readers see a transaction shortly before that.
	durable atomic.Int64
	// settled is closed and replaced when a commit has ended, either way.
	settled atomic.Pointer[chan struct{}]
	// failed is set before that when a commit has failed. Nothing becomes durable
	// any more, and the file waits for its readers before it is closed.
	failed atomic.Bool
}

// makeDirectory creates the directory of the file. What is created is synced
// to the disk: a file whose directory entry is lost is lost with all it held.
func makeDirectory(path string) error {
	dir := filepath.Dir(path)
	var missing []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) || d == filepath.Dir(d) {
			break
		}
		missing = append(missing, d)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of store file %s: %w", path, err)
	}
	for _, d := range missing {
		if err := syncDirectory(filepath.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

func syncDirectory(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories can't be synced there
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// openFile opens the file, also one that is missing or empty. Where it was open
// before, it must still be that one, since it had records.
func openFile(path string, was *file, opts Options) (*file, error) {
	create := was == nil
	switch info, err := os.Stat(path); {
	case create && errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, openError(path, err)
	case !create && !os.SameFile(was.info, info):
		return nil, openError(path, errReplaced)
	case create && info.Size() == 0:
	default:
		if err := inspect(path, was); err != nil {
			return nil, openError(path, err)
		}
	}
	f := new(file)
	f.settle()
	err := guard(func() (err error) {
		f.db, err = bbolt.Open(path, 0o600, f.options(create))
		if err != nil {
			return err
		}
		f.metas = 2 * int64(f.db.Info().PageSize)
		if f.info, err = f.handle.Stat(); err != nil {
			return err
		}
		if err := f.secure(opts.secure); err != nil {
			return err
		}
		return f.prepare(opts.commit)
	})
	if err != nil {
		_ = f.release() // what it says adds nothing
		return nil, openError(path, err)
	}
	if create {
		if err := syncDirectory(filepath.Dir(path)); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

func (f *file) options(create bool) *bbolt.Options {
	return &bbolt.Options{
		Timeout:        1, // the least there is: try once
		NoFreelistSync: true,
		FreelistType:   bbolt.FreelistMapType,
		NoStatistics:   true,
		OpenFile: func(name string, flag int, perm os.FileMode) (handle *os.File, err error) {
			if !create {
				flag &^= os.O_CREATE
			}
			f.handle, err = os.OpenFile(name, flag, perm)
			return f.handle, err
		},
	}
}

// inspect reports what is wrong with a file before it is opened for writing.
//
// Where [file.close] has not written down which pages are free, the library
// walks through all of them on opening, in a goroutine where a damaged page
// ends the process. So that walk is done here first, where it is an error. Where
// they are written down, it is made sure that this can be read: the library would
// panic, and leave the file locked.
//
// A file that was open before has all that was on the disk then. Otherwise an older copy
// was written over it.
func inspect(path string, was *file) error {
	f := new(file)
	return guard(func() (err error) {
		options := f.options(false)
		options.ReadOnly = true
		if f.db, err = bbolt.Open(path, 0, options); err != nil {
			return err
		}
		defer func() { _ = f.db.Close() }()
		return f.db.View(func(tx *bbolt.Tx) error {
			if first, _ := tx.Cursor().First(); first == nil && was == nil {
				return nil // a crash came between the first two steps of creating it
			}
			if err := checkFormat(tx); err != nil {
				return err
			}
			if was != nil && int64(tx.ID()) < was.durable.Load() {
				return errReplaced
			}
			clean := tx.Bucket(aboutBucket).Get(cleanKey) != nil
			if !clean {
				// The pages are read one by one then, which takes ten times as long as
				// reading them in a row.
				if _, err := io.Copy(io.Discard, io.NewSectionReader(f.handle, 0, tx.Size())); err != nil {
					return err
				}
			}
			return walkPages(f.handle, f.db.Info().PageSize, tx.ID(), clean)
		})
	})
}

func checkFormat(tx *bbolt.Tx) error {
	about := tx.Bucket(aboutBucket)
	if about == nil {
		return fmt.Errorf("%w: another application made it", ErrForeign)
	}
	if have := string(about.Get(formatKey)); have != formatWhole && have != formatPieces {
		return fmt.Errorf("%w: it has format %q, this version reads formats %q and %q", ErrForeign, have, formatWhole, formatPieces)
	}
	return nil
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("open store file %s: %w by another process or configuration: "+
			"stop that one, or give this one a file of its own; to share a store, use Redis", path, ErrLocked)
	case errors.Is(err, ErrForeign), errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch),
		errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, errPanic):
		if !errors.Is(err, ErrForeign) {
			err = fmt.Errorf("%w: %w", ErrForeign, err)
		}
		return fmt.Errorf("open store file %s: %w: restore it, or move it away to begin with an empty store, "+
			"which has forgotten every job", path, err)
	}
	return fmt.Errorf("open store file %s: %w", path, err)
}

// prepare makes sure that the file has its buckets, and commits once.
//
// That commit matters even where it changes nothing. A commit that was cut
// short by a failure or a crash may be visible in the file without being on the
// disk, and a repeated write would take it for done. Another commit on top of
// it settles that.
func (f *file) prepare(commit func(*bbolt.Tx) error) error {
	tx, err := f.begin(true)
	if err != nil {
		return err
	}
	defer f.rollback(tx)
	for _, name := range [][]byte{aboutBucket, jobsBucket, expiryBucket, unresolvedBucket, leaseBucket, piecesBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	about := tx.Bucket(aboutBucket)
	format := formatWhole
	if have := about.Get(formatKey); have != nil {
		format = string(have)
	}
	if err := errors.Join(about.Put(formatKey, []byte(format)), about.Delete(cleanKey)); err != nil {
		return err
	}
	if key, _ := tx.Bucket(expiryBucket).Cursor().First(); len(key) == entryLen {
		f.due = instant(key)
	}
	id := int64(tx.ID())
	if err := commit(tx); err != nil {
		return err
	}
	f.durable.Store(id)
	return nil
}

// settle lets waiting readers look whether the transaction that they see has
// become durable.
func (f *file) settle() {
	next := make(chan struct{})
	if ended := f.settled.Swap(&next); ended != nil {
		close(*ended)
	}
}

// read runs fn in a transaction whose state is on the disk for certain. What fn
// sees can't be used after it has returned.
func (s *Store) read(ctx context.Context, fn func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", keystore.ErrUnavailable, err)
	}
	f := s.file.Load()
	if f == nil {
		return s.noFile()
	}
	err := guard(func() error {
		tx, err := f.begin(false)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // it fails only when it was done already
		// Taken before the two are looked at: whatever ends the commit after that
		// closes it.
		settled := *f.settled.Load()
		if f.durable.Load() < int64(tx.ID()) && !f.failed.Load() {
			select {
			case <-settled:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if f.durable.Load() < int64(tx.ID()) {
			return errors.New("the last commit has failed")
		}
		return fn(tx)
	})
	switch {
	case err == nil, errors.Is(err, keystore.ErrCorrupt):
		return err
	case s.file.Load() != f:
		return s.noFile()
	}
	return fmt.Errorf("%w: %w", keystore.ErrUnavailable, err)
}

// noFile says why there is no file to work with.
func (s *Store) noFile() error {
	select {
	case <-s.closing:
		return keystore.ErrClosed
	default:
		return fmt.Errorf("%w: the last commit has failed and the file is to be opened again", keystore.ErrUnavailable)
	}
}

// close writes down which pages are free, so that the next open needn't look
// for them, and releases the file.
func (f *file) close() error {
	listed := f.list()
	return errors.Join(listed, f.release())
}

// list writes down which pages are free. A reader that has come by the file before it
// was to be closed may see that, and must not wait for it: releasing the file waits
// for readers.
func (f *file) list() error {
	f.db.NoFreelistSync = false
	err := guard(func() error {
		tx, err := f.begin(true)
		if err != nil {
			return err
		}
		defer f.rollback(tx)
		if err := tx.Bucket(aboutBucket).Put(cleanKey, []byte{1}); err != nil {
			return err
		}
		id := int64(tx.ID())
		if err := tx.Commit(); err != nil {
			return err
		}
		f.durable.Store(id)
		return nil
	})
	f.failed.Store(err != nil)
	f.settle()
	return err
}

// errPanic: the library met something in the file that can't be.
var errPanic = errors.New("file is damaged")

// guard turns the panics by which the library reports a damaged file, and the
// faults of reading a mapped file that was cut short or whose disk fails, into
// errors: one bad file must not end the whole server.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanic, p)
		}
	}()
	return fn()
}
