package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// StoreOpener is what a module in the namespace
// http.handlers.idempotency.stores has to be. Its Provision must not open
// anything, since configurations are also provisioned just to be validated.
type StoreOpener interface {
	caddy.Module
	// Settings returns everything that decides what Open opens. Modules with
	// the same id and settings share one store. It is never logged.
	Settings() string
	// Open opens the store. A server that is not reachable is no error: the
	// store's calls say so until it is.
	Open(*slog.Logger) (keystore.Store, error)
}

// openerOf loads the store module in a handler's field StoreRaw. By default it is
// the file in Caddy's data directory.
func openerOf(ctx caddy.Context, handler any, raw *json.RawMessage) (StoreOpener, error) {
	if len(*raw) == 0 {
		*raw = json.RawMessage(`{"module":"bolt"}`)
	}
	store, err := ctx.LoadModule(handler, "StoreRaw")
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	opener, ok := store.(StoreOpener)
	if !ok {
		return nil, fmt.Errorf("store: module %T opens no stores", store)
	}
	return opener, nil
}

// storeKey names a store in the pool.
type storeKey struct{ module, settings string }

func keyOf(o StoreOpener) storeKey {
	return storeKey{string(o.CaddyModule().ID), o.Settings()}
}

// sharedStores are the stores of this process, each with its gateway. An app
// refers to those of its configuration from Start to Cleanup; so does every
// request that is being served, and every attempt and write in the background.
// That matters on a reload, when Caddy cleans up a configuration whose requests
// are still running: the last of them closes the store.
var sharedStores = caddy.NewUsagePool()

// sharedStore is a store and its gateway, which live and die together.
type sharedStore struct {
	key     storeKey
	store   keystore.Store
	gateway *proxy.Gateway
	proofs  *proofs

	inspection *inspection
}

// acquire returns the store, which it opens if nobody has it open. The caller
// has to release it.
func acquire(o StoreOpener) (*sharedStore, error) {
	key := keyOf(o)
	s, _, err := sharedStores.LoadOrNew(key, func() (caddy.Destructor, error) {
		held.take(key)
		store, err := o.Open(slog.New(currentLog{}))
		if err != nil {
			held.leave(key)
			return nil, err
		}
		s := &sharedStore{key: key, store: store}
		s.gateway = proxy.NewGateway(measured(store, s.kind(), slog.New(currentLog{})), proxy.GatewayOptions{
			Logger:   slog.New(currentLog{}),
			Observer: metrics,
			Retain:   s.retain,
		})
		s.proofs = proofsOf(s.gateway)
		s.inspection = inspected(key, store)
		metrics.stores.begin(s)
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return s.(*sharedStore), nil
}

// retain adds a reference. The caller has one already, so that the store is in
// the pool.
func (s *sharedStore) retain() (release func()) {
	sharedStores.LoadOrStore(s.key, s)
	return s.release
}

func (s *sharedStore) release() {
	if _, err := sharedStores.Delete(s.key); err != nil {
		slog.New(currentLog{}).Error("a store could not be closed properly", slog.Any("error", err))
	}
}

// Destruct implements caddy.Destructor.
func (s *sharedStore) Destruct() error {
	defer held.leave(s.key)
	metrics.stores.end(s)
	s.inspection.end()
	s.gateway.Close()
	if err := s.store.Close(); err != nil {
		return fmt.Errorf("close %s store: %w", s.kind(), err)
	}
	return nil
}

// holders knows which stores are open, or are just being opened or closed. The
// pool forgets a store before it closes it; the same file can't be opened again
// in between.
type holders struct {
	mu   sync.Mutex
	gone map[storeKey]chan struct{}
}

var held = holders{gone: make(map[storeKey]chan struct{})}

// take waits until nobody holds the store any more.
func (h *holders) take(key storeKey) {
	for {
		h.mu.Lock()
		gone, taken := h.gone[key]
		if !taken {
			h.gone[key] = make(chan struct{})
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		<-gone
	}
}

func (h *holders) leave(key storeKey) {
	h.mu.Lock()
	close(h.gone[key])
	delete(h.gone, key)
	h.mu.Unlock()
}

// wait returns when all stores are closed, or ctx ends.
func (h *holders) wait(ctx context.Context) {
	h.mu.Lock()
	var all []chan struct{}
	for _, gone := range h.gone {
		all = append(all, gone)
	}
	h.mu.Unlock()
	for _, gone := range all {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
}
