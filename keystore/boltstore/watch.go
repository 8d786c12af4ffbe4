package boltstore

import (
	"context"
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// watchers are those who wait for a record to change. There is one process per
// file, so that they are all in this one.
type watchers struct {
	mu     sync.Mutex
	byName map[keystore.Name][]chan struct{}
}

// Watch implements [keystore.Store]. Closing the store gives a hint, too.
func (s *Store) Watch(ctx context.Context, name keystore.Name, seen keystore.WriteID) (hint <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	s.watchers.add(name, ch)
	// Whoever writes from here on finds the channel. Who wrote before is seen in
	// the record, and a record that can't be read is for the caller to look at.
	if id, err := s.writeID(ctx, name); err != nil || id != seen {
		give(ch)
	}
	return ch, sync.OnceFunc(func() { s.watchers.remove(name, ch) })
}

// writeID returns that of the present record, zero for none.
func (s *Store) writeID(ctx context.Context, name keystore.Name) (id keystore.WriteID, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		v, err := recordsOf(tx).lookUp(name, s.now())
		if v != nil && err == nil {
			id, err = keystore.RecordWriteID(v.record())
		}
		return err
	})
	return id, err
}

func (w *watchers) add(name keystore.Name, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byName == nil {
		w.byName = make(map[keystore.Name][]chan struct{})
	}
	w.byName[name] = append(w.byName[name], ch)
}

func (w *watchers) remove(name keystore.Name, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := slices.DeleteFunc(w.byName[name], func(c chan struct{}) bool { return c == ch })
	if len(left) == 0 {
		delete(w.byName, name)
		return
	}
	w.byName[name] = left
}

// hint tells those who watch one of these names.
func (w *watchers) hint(names []keystore.Name) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.byName) == 0 {
		return
	}
	for _, name := range names {
		for _, ch := range w.byName[name] {
			give(ch)
		}
	}
}

func (w *watchers) hintAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, chs := range w.byName {
		for _, ch := range chs {
			give(ch)
		}
	}
}

// give leaves one hint in the channel, unless one is there already.
func give(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
