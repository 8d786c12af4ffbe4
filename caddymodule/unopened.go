package caddymodule

import (
	"context"
	"fmt"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// unopened stands for a store that could not be opened: it keeps nothing and
// says so, so that nothing is dispatched.
type unopened struct{ why error }

func (u unopened) err() error {
	return fmt.Errorf("%w, %w: %w", keystore.ErrUnavailable, keystore.ErrNotApplied, u.why)
}

// Create implements keystore.Store.
func (u unopened) Create(context.Context, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, false, u.err()
}

// Swap implements keystore.Store.
func (u unopened) Swap(context.Context, keystore.WriteID, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, false, u.err()
}

// SwapMany implements keystore.Store.
func (u unopened) SwapMany(_ context.Context, swaps []keystore.Swap) []keystore.SwapResult {
	results := make([]keystore.SwapResult, len(swaps))
	for i := range results {
		results[i].Err = u.err()
	}
	return results
}

// Get implements keystore.Store.
func (u unopened) Get(context.Context, keystore.Name) (*keystore.Job, error) { return nil, u.err() }

// Index implements keystore.Store.
func (u unopened) Index(context.Context, ...keystore.IndexEntry) error { return u.err() }

// List implements keystore.Store.
func (u unopened) List(context.Context, string, int) ([]*keystore.Job, string, error) {
	return nil, "", u.err()
}

// Scan implements keystore.Store.
func (u unopened) Scan(context.Context, string, int) ([]*keystore.Job, string, error) {
	return nil, "", u.err()
}

// Watch implements keystore.Store.
func (u unopened) Watch(context.Context, keystore.Name, keystore.WriteID) (<-chan struct{}, func()) {
	return nil, func() {}
}

// Now implements keystore.Store.
func (u unopened) Now() keystore.Time { return keystore.TimeOf(time.Now()) }

// Close implements keystore.Store.
func (u unopened) Close() error { return nil }

var _ keystore.Store = unopened{}
