package boltstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// What waits for the writer shares one commit, and an operation in it sees the
// earlier ones. An unreadable record is the trouble of those who want it only.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jobs.db")
	s := openStore(t, path, Options{})
	mustCreate(t, s, claimed("9", s.Now()))
	garble(t, s, keystore.NameOf("main", "alice", "9"), []byte("nonsense"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := open(path, Options{}) // this test is its writer
	if err != nil {
		t.Fatal(err)
	}

	const names, clients = 10, 50
	type answer struct {
		job, present *keystore.Job
		created      bool
		err          error
	}
	answers := make(chan answer, clients)
	for i := range clients {
		go func() {
			a := answer{job: claimed(fmt.Sprint(i%names), s.Now())}
			if a.job.KeySent == "9" { // a claim would meet it before the writer does
				_, _, a.err = s.Swap(t.Context(), a.job.WriteID, failed(a.job, s.Now()))
			} else {
				a.present, a.created, a.err = s.Create(t.Context(), a.job)
			}
			answers <- a
		}()
	}
	var ops []*operation
	for range clients {
		ops = append(ops, <-s.ops)
	}
	s.commit(ops)
	if got := s.commits.Load(); got != 1 {
		t.Errorf("%d commits, want 1", got)
	}
	winners := make(map[keystore.Name]keystore.WriteID)
	var losers []answer
	for range clients {
		a := <-answers
		switch {
		case a.job.KeySent == "9":
			if !errors.Is(a.err, keystore.ErrCorrupt) || !errors.Is(a.err, keystore.ErrNotApplied) {
				t.Errorf("swap of the unreadable record: %v", a.err)
			}
		case a.err != nil:
			t.Errorf("claim of %s: %v", a.job.KeySent, a.err)
		case a.created:
			if _, twice := winners[a.job.Name]; twice {
				t.Errorf("%s was created twice", a.job.KeySent)
			}
			winners[a.job.Name] = a.job.WriteID
			wantRecord(t, s, a.job.Name, a.job)
		default:
			losers = append(losers, a)
		}
	}
	if len(winners) != names-1 {
		t.Errorf("%d names were created, want %d", len(winners), names-1)
	}
	for _, a := range losers {
		if a.present == nil || a.present.WriteID != winners[a.job.Name] {
			t.Errorf("a loser of %s was shown %v", a.job.KeySent, a.present)
		}
	}
	go s.write()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A batch is bounded in number and in bytes; what is over waits for the next.
func TestGatherIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ size, want int }{{1, maxBatch}, {maxBatchBytes / 4, 4}, {maxBatchBytes, 1}} {
		s := &Store{ops: make(chan *operation, 2*maxBatch)}
		for range cap(s.ops) {
			s.ops <- &operation{size: c.size}
		}
		if got := len(s.gather(<-s.ops)); got != c.want {
			t.Errorf("operations of %d bytes: a batch of %d, want %d", c.size, got, c.want)
		}
	}
	s := &Store{ops: make(chan *operation)}
	if got := len(s.gather(&operation{})); got != 1 {
		t.Errorf("a lone operation is in a batch of %d", got)
	}
}

// Whoever only learns that another one was first costs no commit.
func TestNothingChangedTakesNoCommit(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	before := s.commits.Load()
	mustCreate(t, s, j) // a repeat
	other := claimed("k", s.Now())
	if present, created, err := s.Create(t.Context(), other); err != nil || created || sameJob(present, j) != nil {
		t.Fatalf("create: %v, %v, %v", present, created, err)
	}
	if present, swapped, err := s.Swap(t.Context(), other.WriteID, failed(other, s.Now())); err != nil || swapped || sameJob(present, j) != nil {
		t.Fatalf("swap: %v, %v, %v", present, swapped, err)
	}
	none := claimed("none", s.Now())
	if present, swapped, err := s.Swap(t.Context(), none.WriteID, failed(none, s.Now())); err != nil || swapped || present != nil {
		t.Fatalf("swap of no record: %v, %v, %v", present, swapped, err)
	}
	if got := s.commits.Load(); got != before {
		t.Errorf("%d commits, want none", got-before)
	}
}

// What a commit has written can be seen in the file before it is on the disk.
// A reader must wait for that, and must not be told what then fails.
func TestReadersSeeOnlyWhatIsDurable(t *testing.T) {
	t.Parallel()
	visible, proceed := make(chan struct{}), make(chan error)
	var hold func(tx *bbolt.Tx) error
	var mu sync.Mutex
	s := newStore(t, Options{commit: func(tx *bbolt.Tx) error {
		mu.Lock()
		defer mu.Unlock()
		if hold != nil {
			return hold(tx)
		}
		return tx.Commit()
	}})
	j := claimed("k", s.Now())
	for _, outcome := range []error{errInjected, nil} {
		once := false
		mu.Lock()
		hold = func(tx *bbolt.Tx) error {
			if once { // opening again after the failure
				return tx.Commit()
			}
			once = true
			err := tx.Commit()
			visible <- struct{}{}
			return errors.Join(err, <-proceed)
		}
		mu.Unlock()
		answer := make(chan error, 1)
		next := claimed("k", s.Now())
		if outcome == nil {
			next = failed(j, s.Now())
		}
		go func() {
			var err error
			if outcome == nil {
				_, _, err = s.Swap(t.Context(), j.WriteID, next)
			} else {
				_, _, err = s.Create(t.Context(), next)
			}
			answer <- err
		}()
		<-visible
		ended, cancel := context.WithCancel(t.Context())
		ctx := waitingContext{Context: ended, waits: make(chan struct{}, 1)}
		impatient := make(chan error, 1)
		go func() {
			_, err := s.Get(ctx, j.Name)
			impatient <- err
		}()
		select {
		case <-ctx.waits:
		case err := <-impatient:
			cancel()
			proceed <- nil
			t.Fatalf("a reader was answered before the commit was: error %v", err)
		}
		cancel()
		if err := <-impatient; !errors.Is(err, context.Canceled) || !errors.Is(err, keystore.ErrUnavailable) {
			t.Errorf("a reader that gives up: %v", err)
		}
		patient := make(chan error, 1)
		go func() {
			got, err := s.Get(t.Context(), j.Name)
			if err == nil {
				err = sameJob(got, next)
			}
			patient <- err
		}()
		proceed <- outcome
		if err := <-answer; (err == nil) != (outcome == nil) {
			t.Errorf("the writer of it: %v", err)
		}
		// It may have come after the file was opened again, which has made the
		// commit durable.
		if err := <-patient; err != nil && (outcome == nil || !errors.Is(err, keystore.ErrUnavailable)) {
			t.Errorf("a reader that waits: %v", err)
		}
		wantRecord(t, s, j.Name, next)
		j = next
	}
}

// waitingContext says when somebody begins to wait for its end.
type waitingContext struct {
	context.Context
	waits chan struct{}
}

func (c waitingContext) Done() <-chan struct{} {
	select {
	case c.waits <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

// A reader that begins after a commit has failed, and sees what that had made
// visible, doesn't wait for an end that has come already: the file would wait for
// the reader in turn.
func TestReaderAfterAFailedCommitDoesNotWait(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	f := s.file.Load()
	durable := f.durable.Load()
	f.durable.Store(durable - 1) // as if the last commit had never become durable
	f.failed.Store(true)
	f.settle()
	if _, err := s.Get(t.Context(), j.Name); !errors.Is(err, keystore.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	f.durable.Store(durable)
	f.failed.Store(false)
	wantRecord(t, s, j.Name, j)
}

// So does one that has come by the file just before it was to be closed, and sees
// what closing has written.
func TestReaderOfAFileThatIsBeingClosedDoesNotWait(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	if err := s.file.Load().list(); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctx := waitingContext{Context: ended, waits: make(chan struct{}, 1)}
	answer := make(chan error, 1)
	go func() {
		got, err := s.Get(ctx, j.Name)
		answer <- errors.Join(err, sameJob(got, j))
	}()
	select {
	case <-ctx.waits:
		t.Error("it waits")
		cancel()
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case err := <-answer:
		if err != nil {
			t.Error(err)
		}
	}
}
