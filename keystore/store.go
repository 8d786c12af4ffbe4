package keystore

import (
	"context"
	"crypto/sha256"
	"errors"
)

// Sentinel errors of stores.
var (
	// ErrUnavailable: the store did not answer, or refused. For a write it does
	// not say whether it was applied, unless [ErrNotApplied] is in the chain too.
	ErrUnavailable = errors.New("store unavailable")
	// ErrNotApplied: the write was certainly not applied, and will not be.
	ErrNotApplied = errors.New("write not applied")
	// ErrNotDurable: the write was applied, but fewer copies have acknowledged it
	// than the store was told to wait for, so that it can still be lost. It comes
	// together with [ErrUnavailable], and with the result of a write that was done.
	ErrNotDurable = errors.New("write not durable")
	// ErrFull: the store has no room for the write. It comes together with
	// [ErrUnavailable].
	ErrFull = errors.New("store full")
	// ErrCorrupt: there is something under the record's name, but it is not a
	// record that this version can read. That is never the same as no record.
	ErrCorrupt = errors.New("record can't be read")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
)

// Store keeps the records of jobs. It knows no rules: the state machine decides
// what is written, and the store's atomic steps make sure that it replaces what
// the decision was based on.
//
// Every write carries the job's WriteID, which the caller draws once per logical
// write. Repeating a write with the same write id is safe, and answers as the
// first one did as long as nobody has written since.
//
// A body that an attempt has kept can be gone before its unresolved job is
// settled, but not within 30 days, nor the job's retention; it is NotKept then.
//
// A store can be told to wait until writes are durable. Then Create and Swap do so
// before they say that a write was done, now or by an earlier send, and fail with
// [ErrNotDurable] if that takes too long. Sending the write again waits again; so
// does swapping a record for itself, whoever has written it: Swap with no write id
// expected answers that it was already done. SwapMany, and writes that drop a
// record, don't wait. What Get returns may not be durable yet.
//
// A store that is full takes no new jobs and no new attempts. It should still take
// the swap that settles a job, if that brings no body.
//
// A record whose Expires has passed is no record. Methods can be called
// concurrently. An error is, or wraps, one of this package's sentinel errors, or
// is the context's.
type Store interface {
	// Create puts the job's record into the store if there is none under its
	// name. Otherwise, in the same step, it returns the record that is there.
	// The record that this write, or an earlier send of it, has put there is
	// returned as created, with a nil job. A job whose Expires is not in the
	// future creates nothing, and is returned as created if nothing was there.
	Create(ctx context.Context, job *Job) (present *Job, created bool, err error)

	// Swap replaces the record under the job's name if its write id is the
	// expected one. Otherwise it returns the record that is there, nil for none.
	// That the stored write id is the job's own means that it was already done.
	// A job whose Expires is not in the future is dropped instead of stored. Sent
	// again, such a write finds nothing: it answers nil, and either bool.
	//
	// If an earlier send of this write was applied and somebody wrote after it,
	// the answer is their record: whether this write had taken effect stands in
	// that record, not in the answer.
	Swap(ctx context.Context, expected WriteID, job *Job) (present *Job, swapped bool, err error)

	// SwapMany does each of these swaps as Swap would, and returns what that would
	// have returned, in their order. They have nothing to do with each other: one
	// that fails, or is refused, leaves the others alone, and of two under the same
	// name either can come first. What they save is round trips and commits.
	SwapMany(ctx context.Context, swaps []Swap) []SwapResult

	// Get returns the record under this name, nil for none.
	Get(ctx context.Context, name Name) (*Job, error)

	// Index enters jobs into the index of unresolved ones, before or after the
	// write that makes them so. Entries that are no longer true do no harm.
	Index(ctx context.Context, entries ...IndexEntry) error

	// List returns a page of the jobs in the index that are unresolved, in the
	// order of their lease ends, and the cursor of the next page: empty at the
	// end. The first page has the cursor "". Entries whose job is no longer
	// unresolved are dropped from the index on the way. Bodies are as in Scan.
	List(ctx context.Context, cursor string, limit int) (page []*Job, next string, err error)

	// Scan returns a page of all the jobs in the store, in no particular order, and
	// the cursor of the next page: empty at the end. The first page has the cursor
	// "". A page can hold more or less than the limit, and even nothing where it is
	// not the last. A job that is there from the first page to the last is returned
	// at least once, but can be returned again; one that comes or goes meanwhile is
	// returned or not. Records that can't be read are left out.
	//
	// The jobs are the records as they stand, but bodies kept apart are not
	// fetched: where the result, or what an attempt has kept, has Apart set, its Body
	// is nil, and nobody has looked whether that body is still there. All else is as
	// in Get. A swap that writes such a job back leaves its bodies where they are.
	Scan(ctx context.Context, cursor string, limit int) (page []*Job, next string, err error)

	// Watch returns a channel that gets a hint when the record under this name
	// may no longer be the one with the write id seen, written by whatever
	// gateway. A hint can be lost, so that the caller looks again by itself from
	// time to time, and can be wrong. Stop ends it.
	Watch(ctx context.Context, name Name, seen WriteID) (hint <-chan struct{}, stop func())

	// Now returns the present instant of the store's clock.
	Now() Time

	// Close releases what the store holds. Calls after it fail with ErrClosed.
	Close() error
}

// DurableStore is a store that can be told to wait until writes are durable.
type DurableStore interface {
	// Durable reports whether it was told to.
	Durable() bool
}

// Swap is one of the swaps that [Store.SwapMany] is asked for.
type Swap struct {
	Expected WriteID
	Job      *Job
}

// SwapResult is what [Store.Swap] would have returned for one of them.
type SwapResult struct {
	Present *Job
	Swapped bool
	Err     error
}

// IndexEntry names an unresolved job and when its lease ends.
type IndexEntry struct {
	Name     Name
	LeaseEnd Time
}

// IndexEntryOf returns the entry of a job.
func IndexEntryOf(j *Job) IndexEntry { return IndexEntry{Name: j.Name, LeaseEnd: j.LeaseEnd()} }

// DigestOf returns the digest of an answer's body.
func DigestOf(body []byte) Digest { return sha256.Sum256(body) }
