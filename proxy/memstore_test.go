package proxy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// memStore is a store in memory, for tests of what a request does when its store
// is slow, lies or fails. Records go through the codec, as in a real one.
type memStore struct {
	mu       sync.Mutex
	records  map[keystore.Name][]byte
	index    map[keystore.Name]keystore.Time
	watchers map[keystore.Name][]chan struct{}

	// before is called with the name of each operation. An error makes the
	// operation fail without having been applied.
	before func(op string) error
	// after is called once a write has been applied, and can lose its reply.
	after func(op string) error
	// reading is called once a record was read, before it is returned.
	reading func()
	// deaf drops the hints to watchers.
	deaf bool
	ops  []string
}

var errInjected = errors.Join(keystore.ErrUnavailable, errors.New("injected"))

func newMemStore() *memStore {
	return &memStore{
		records:  make(map[keystore.Name][]byte),
		index:    make(map[keystore.Name]keystore.Time),
		watchers: make(map[keystore.Name][]chan struct{}),
	}
}

// fail sets the hooks while the store is in use.
func (s *memStore) fail(before, after func(op string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

func (s *memStore) call(op string) (after func(string) error, err error) {
	s.mu.Lock()
	before := s.before
	after = s.after
	s.ops = append(s.ops, op)
	s.mu.Unlock()
	if before != nil {
		err = before(op)
	}
	if after == nil {
		after = func(string) error { return nil }
	}
	return after, err
}

func (s *memStore) get(name keystore.Name) (*keystore.Job, error) {
	record, ok := s.records[name]
	if !ok {
		return nil, nil
	}
	j, err := keystore.DecodeRecord(name, record)
	if err != nil {
		return nil, err
	}
	if !j.Expires.IsZero() && j.Expires <= s.Now() {
		delete(s.records, name)
		return nil, nil
	}
	return j, nil
}

func (s *memStore) put(j *keystore.Job) error {
	record, err := keystore.EncodeRecord(j)
	if err != nil {
		return err
	}
	if _, err := keystore.DecodeRecord(j.Name, record); err != nil {
		return err
	}
	if !j.Expires.IsZero() && j.Expires <= s.Now() {
		delete(s.records, j.Name)
	} else {
		s.records[j.Name] = record
	}
	if !s.deaf {
		for _, hint := range s.watchers[j.Name] {
			select {
			case hint <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

func (s *memStore) Create(_ context.Context, j *keystore.Job) (*keystore.Job, bool, error) {
	after, err := s.call("create")
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	present, err := s.get(j.Name)
	switch {
	case err != nil:
	case present == nil:
		err = s.put(j)
	case present.WriteID == j.WriteID:
	default:
		s.mu.Unlock()
		return present, false, nil
	}
	s.mu.Unlock()
	if err == nil {
		err = after("create")
	}
	return nil, err == nil, err
}

func (s *memStore) Swap(_ context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	after, err := s.call("swap")
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	present, err := s.get(j.Name)
	switch {
	case err != nil:
	case present != nil && present.WriteID == expected:
		err = s.put(j)
	case present != nil && present.WriteID == j.WriteID:
	default:
		s.mu.Unlock()
		return present, false, nil
	}
	s.mu.Unlock()
	if err == nil {
		err = after("swap")
	}
	return nil, err == nil, err
}

func (s *memStore) SwapMany(ctx context.Context, swaps []keystore.Swap) []keystore.SwapResult {
	results := make([]keystore.SwapResult, len(swaps))
	for i, swap := range swaps {
		r := &results[i]
		r.Present, r.Swapped, r.Err = s.Swap(ctx, swap.Expected, swap.Job)
	}
	return results
}

func (s *memStore) Get(_ context.Context, name keystore.Name) (*keystore.Job, error) {
	if _, err := s.call("get"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	j, err := s.get(name)
	reading := s.reading
	s.mu.Unlock()
	if reading != nil {
		reading()
	}
	return j, err
}

func (s *memStore) Index(_ context.Context, entries ...keystore.IndexEntry) error {
	if _, err := s.call("index"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		s.index[e.Name] = e.LeaseEnd
	}
	return nil
}

func (s *memStore) List(context.Context, string, int) ([]*keystore.Job, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page []*keystore.Job
	for name := range s.index {
		if j, err := s.get(name); err == nil && j != nil && j.Unresolved() {
			page = append(page, j)
		}
	}
	return page, "", nil
}

// Scan gives everything on one page.
func (s *memStore) Scan(context.Context, string, int) ([]*keystore.Job, string, error) {
	if _, err := s.call("scan"); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var page []*keystore.Job
	for name := range s.records {
		if j, err := s.get(name); err == nil && j != nil {
			page = append(page, j)
		}
	}
	return page, "", nil
}

func (s *memStore) Watch(_ context.Context, name keystore.Name, seen keystore.WriteID) (<-chan struct{}, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hint := make(chan struct{}, 1)
	s.watchers[name] = append(s.watchers[name], hint)
	if j, err := s.get(name); !s.deaf && (err != nil || j == nil || j.WriteID != seen) {
		hint <- struct{}{}
	}
	return hint, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watchers[name] = slices.DeleteFunc(s.watchers[name], func(c chan struct{}) bool { return c == hint })
	}
}

func (s *memStore) Now() keystore.Time { return keystore.TimeOf(time.Now()) }

func (s *memStore) Close() error { return nil }

// job returns the only job in the store.
func (s *memStore) job() *keystore.Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.records {
		if j, err := s.get(name); err == nil {
			return j
		}
	}
	return nil
}

// slowReading sets what is called once a record was read.
func (s *memStore) slowReading(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading = f
}

// turnDeaf drops the hints to watchers from now on.
func (s *memStore) turnDeaf() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = true
}

// garble puts something that is no record under the name of the only job.
func (s *memStore) garble(garbage string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.records {
		s.records[name] = []byte(garbage)
	}
}

// wipe makes the store forget everything.
func (s *memStore) wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.records)
	clear(s.index)
}

// calls counts the operations with this name.
func (s *memStore) calls(op string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.ops {
		if o == op {
			n++
		}
	}
	return n
}
