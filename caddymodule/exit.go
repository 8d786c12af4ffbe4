package caddymodule

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// exit is what is known of the end of the process.
var exit struct {
	sync.Mutex
	deadline time.Time // when attempts that still run are cut; zero: not known
}

// closeTime bounds how long the process waits for its stores to be closed.
const closeTime = 2 * time.Second

// beginDraining prepares for the end of the process: after the delay, during
// which servers serve as before, duplicates stop waiting and no attempt starts.
// It does not wait for that.
func beginDraining(delay, grace time.Duration) {
	deadline := time.Now().Add(delay + grace)
	exit.Lock()
	exit.deadline = deadline
	exit.Unlock()
	time.AfterFunc(delay, func() {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		drain(ctx)
	})
}

// finishDraining returns when all attempts have come to their end or have been
// cut, and their stores are closed.
func finishDraining(ctx context.Context) {
	exit.Lock()
	deadline := exit.deadline
	exit.Unlock()
	if deadline.IsZero() { // no configuration was running
		deadline = time.Now().Add(proxy.DefaultTimeout + exitMargin)
	}
	draining, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	drain(draining)
	closing, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	held.wait(closing)
}

// drain drains all gateways at once.
func drain(ctx context.Context) {
	var draining sync.WaitGroup
	sharedStores.Range(func(_, value any) bool {
		draining.Go(func() { value.(*sharedStore).gateway.Drain(ctx) })
		return true
	})
	draining.Wait()
}
