package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// forgetful does what it is asked, and now and then does not say so.
type forgetful struct {
	keystore.Store
	calls atomic.Int64
}

func (s *forgetful) forgets() error {
	if s.calls.Add(1)%15 == 0 {
		return fmt.Errorf("reply lost: %w", keystore.ErrUnavailable)
	}
	return nil
}

func (s *forgetful) Create(ctx context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	present, created, err := s.Store.Create(ctx, j)
	if lost := s.forgets(); lost != nil {
		return nil, false, lost
	}
	return present, created, err
}

func (s *forgetful) Swap(ctx context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	present, swapped, err := s.Store.Swap(ctx, expected, j)
	if lost := s.forgets(); lost != nil {
		return nil, false, lost
	}
	return present, swapped, err
}

// looksThenWrites creates in two steps.
type looksThenWrites struct {
	keystore.Store
	*memory
}

func (s *looksThenWrites) Create(ctx context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	if present, err := s.Get(ctx, j.Name); err != nil || present != nil {
		return present, false, err
	}
	time.Sleep(time.Millisecond) // for the others to look too
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	return nil, true, s.write(j)
}

// losesOwnCreate repeats creates by itself, like a client library that retries,
// and takes its own record for somebody else's.
type losesOwnCreate struct{ keystore.Store }

func (s *losesOwnCreate) Create(ctx context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	_, _, _ = s.Store.Create(ctx, j) // the reply is lost
	present, err := s.Get(ctx, j.Name)
	return present, false, err
}

// swapsAnything does not compare.
type swapsAnything struct{ keystore.Store }

func (s *swapsAnything) Swap(ctx context.Context, _ keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	time.Sleep(time.Millisecond) // for others to come in between
	for {
		present, err := s.Get(ctx, j.Name)
		if err != nil || present == nil {
			return present, false, err
		}
		if _, swapped, err := s.Store.Swap(ctx, present.WriteID, j); swapped || err != nil {
			return nil, swapped, err
		}
	}
}

// deniesWrites says that a write was not applied that was.
type deniesWrites struct{ keystore.Store }

func (s *deniesWrites) Create(ctx context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	present, created, err := s.Store.Create(ctx, j)
	if created {
		return nil, false, fmt.Errorf("%w, %w", keystore.ErrUnavailable, keystore.ErrNotApplied)
	}
	return present, created, err
}

// readsStale answers reads with what it has read before.
type readsStale struct {
	keystore.Store
	cache sync.Map
}

func (s *readsStale) Get(ctx context.Context, name keystore.Name) (*keystore.Job, error) {
	if j, ok := s.cache.Load(name); ok {
		return j.(*keystore.Job), nil
	}
	j, err := s.Store.Get(ctx, name)
	if err == nil && j != nil {
		s.cache.Store(name, j)
	}
	return j, err
}

// forgetsRecords loses an acknowledged record now and then, like a server that
// is restarted without persistence.
type forgetsRecords struct {
	keystore.Store
	*memory
	calls atomic.Int64
}

func (s *forgetsRecords) Create(ctx context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	if s.calls.Add(1)%10 == 0 {
		s.memory.mu.Lock()
		delete(s.records, j.Name)
		s.memory.mu.Unlock()
	}
	return s.Store.Create(ctx, j)
}
