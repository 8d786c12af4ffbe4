package caddymodule

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// storeOperations are the operations of a store that are measured.
var storeOperations = []string{"create", "swap", "swap_many", "get", "index", "list", "scan"}

// storeErrors are the kinds of errors that are counted.
var storeErrors = []string{"unavailable", "not_applied", "not_durable", "corrupt", "closed", "ended"}

// errorKind says what kind of error a store has returned.
func errorKind(err error) string {
	switch {
	case errors.Is(err, keystore.ErrNotDurable):
		return "not_durable"
	case errors.Is(err, keystore.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, keystore.ErrClosed):
		return "closed"
	case errors.Is(err, keystore.ErrNotApplied):
		return "not_applied"
	case errors.Is(err, keystore.ErrUnavailable):
		return "unavailable"
	}
	return "ended" // its context, which is no fault of the store's
}

// meter measures what a store does for the requests of this process.
type meter struct {
	keystore.Store
	kind   string // the store module's name
	log    *slog.Logger
	silent atomic.Bool // it did not answer when it was last asked

	create, swap, swapMany, get, index, list, scan prometheus.Observer
}

// measured returns the store with a meter before it.
func measured(store keystore.Store, kind string, log *slog.Logger) *meter {
	of := func(operation string) prometheus.Observer {
		return metrics.stores.durations.WithLabelValues(kind, operation)
	}
	return &meter{
		Store: store, kind: kind, log: log,
		create: of("create"), swap: of("swap"), swapMany: of("swap_many"), get: of("get"), index: of("index"), list: of("list"), scan: of("scan"),
	}
}

// note takes down one call that has ended.
func (m *meter) note(operation string, durations prometheus.Observer, began time.Time, err error) {
	durations.Observe(time.Since(began).Seconds())
	switch {
	case err == nil:
		if m.silent.Load() && m.silent.CompareAndSwap(true, false) {
			m.log.Info("the store answers again", slog.String("store", m.kind))
		}
		return
	case errors.Is(err, keystore.ErrUnavailable) && !errors.Is(err, keystore.ErrNotDurable) && m.silent.CompareAndSwap(false, true):
		m.log.Error("the store does not answer; requests with a key are refused until it does", slog.String("store", m.kind), slog.Any("error", err))
	}
	metrics.stores.errors.WithLabelValues(m.kind, operation, errorKind(err)).Inc()
}

// Create implements keystore.Store.
func (m *meter) Create(ctx context.Context, job *keystore.Job) (*keystore.Job, bool, error) {
	began := time.Now()
	present, created, err := m.Store.Create(ctx, job)
	m.note("create", m.create, began, err)
	return present, created, err
}

// Swap implements keystore.Store.
func (m *meter) Swap(ctx context.Context, expected keystore.WriteID, job *keystore.Job) (*keystore.Job, bool, error) {
	began := time.Now()
	present, swapped, err := m.Store.Swap(ctx, expected, job)
	m.note("swap", m.swap, began, err)
	return present, swapped, err
}

// SwapMany implements keystore.Store. Of several errors the first is counted.
func (m *meter) SwapMany(ctx context.Context, swaps []keystore.Swap) []keystore.SwapResult {
	began := time.Now()
	results := m.Store.SwapMany(ctx, swaps)
	var first error
	for i := range results {
		if first = results[i].Err; first != nil {
			break
		}
	}
	m.note("swap_many", m.swapMany, began, first)
	return results
}

// Get implements keystore.Store.
func (m *meter) Get(ctx context.Context, name keystore.Name) (*keystore.Job, error) {
	began := time.Now()
	job, err := m.Store.Get(ctx, name)
	m.note("get", m.get, began, err)
	return job, err
}

// Index implements keystore.Store.
func (m *meter) Index(ctx context.Context, entries ...keystore.IndexEntry) error {
	began := time.Now()
	err := m.Store.Index(ctx, entries...)
	m.note("index", m.index, began, err)
	return err
}

// List implements keystore.Store.
func (m *meter) List(ctx context.Context, cursor string, limit int) ([]*keystore.Job, string, error) {
	began := time.Now()
	page, next, err := m.Store.List(ctx, cursor, limit)
	m.note("list", m.list, began, err)
	return page, next, err
}

// Scan implements keystore.Store.
func (m *meter) Scan(ctx context.Context, cursor string, limit int) ([]*keystore.Job, string, error) {
	began := time.Now()
	page, next, err := m.Store.Scan(ctx, cursor, limit)
	m.note("scan", m.scan, began, err)
	return page, next, err
}

// ClockOffset tells how far a store's clock is ahead of this machine's, where it has
// one of its own.
func (m *meter) ClockOffset() (offset time.Duration, known bool) {
	if s, ok := m.Store.(interface{ ClockOffset() (time.Duration, bool) }); ok {
		return s.ClockOffset()
	}
	return 0, false
}

// Durable implements keystore.DurableStore.
func (m *meter) Durable() bool {
	s, ok := m.Store.(keystore.DurableStore)
	return ok && s.Durable()
}

// Interface guards
var (
	_ keystore.Store        = (*meter)(nil)
	_ keystore.DurableStore = (*meter)(nil)
)
