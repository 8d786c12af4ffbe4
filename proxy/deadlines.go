package proxy

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// storeTime bounds one call to the store in a request's way.
	storeTime = 3 * time.Second
	// storeMoment is by how much a call's bound may be later.
	storeMoment = 100 * time.Millisecond
)

// deadlines hands out the contexts that bound calls to the store. Calls that begin
// within a moment share one: of its own, each would need a timer, a channel, and a
// place among its parent's children, twice for every request.
type deadlines struct {
	parent context.Context
	shared atomic.Pointer[bound]
}

// bound is a context that ends by itself.
type bound struct {
	ctx    context.Context
	shared time.Time          // until when it is handed out
	cancel context.CancelFunc // called by nobody: others may hold it
}

// context returns a context that ends storeTime from now, or a moment later.
func (d *deadlines) context() context.Context {
	now := time.Now()
	if b := d.shared.Load(); b != nil && now.Before(b.shared) {
		return b.ctx
	}
	b := &bound{shared: now.Add(storeMoment)}
	b.ctx, b.cancel = context.WithTimeout(d.parent, storeTime+storeMoment) //nolint:gosec // it ends by itself
	d.shared.Store(b)
	return b.ctx
}
