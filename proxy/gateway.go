package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// GatewayOptions are what a [Gateway] gets besides its store. All are optional.
type GatewayOptions struct {
	Logger   *slog.Logger
	Observer Observer
	// Retain is called when a request, an attempt or a background write begins
	// to need the store, and the function that it returns when that ends. The
	// store must not be closed in between.
	Retain func() (release func())
}

// Gateway is what all requests of one process share about one store: the
// attempts that it runs, the renewal of their leases, the duplicates that wait,
// and the writes that have yet to become definite.
type Gateway struct {
	store    keystore.Store
	log      *slog.Logger
	observer Observer
	retain   func() func()

	ctx       context.Context // ends with Close; background work stops then
	stop      context.CancelFunc
	draining  chan struct{} // closed when no new attempt may start
	drainOnce sync.Once
	slots     chan struct{} // bounds background writes under way at once
	doubted   doubts
	confirmed confirmed
	census    atomic.Pointer[Census]
	sampled   samplers
	workers   workers
	calls     deadlines     // of requests and operators
	ends      deadlines     // of attempts that have ended
	forgets   atomic.Uint64 // how often jobs were forgotten here

	mu       sync.Mutex
	attempts map[*attempt]struct{}
	rooms    map[keystore.Name]*room
	waiters  int
}

// backgroundWrites bounds how many background writes are under way at once, so
// that the end of an outage is not a stampede.
const backgroundWrites = 16

// NewGateway returns a gateway on the store. Close it when it is not needed any
// more; that does not close the store.
func NewGateway(store keystore.Store, opts GatewayOptions) *Gateway {
	ctx, cancel := context.WithCancel(context.Background())
	g := &Gateway{
		store: store, log: opts.Logger, observer: opts.Observer, retain: opts.Retain,
		ctx: ctx, stop: cancel,
		draining: make(chan struct{}),
		slots:    make(chan struct{}, backgroundWrites),
		calls:    deadlines{parent: context.Background()},
		ends:     deadlines{parent: ctx},
		workers:  workers{next: make(chan func()), ended: ctx.Done()},
		attempts: make(map[*attempt]struct{}),
		rooms:    make(map[keystore.Name]*room),
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.observer == nil {
		g.observer = NopObserver{}
	}
	if g.retain == nil {
		g.retain = func() func() { return func() {} }
	}
	go g.renewLeases()
	go g.sweep()
	return g
}

// Store returns the gateway's store.
func (g *Gateway) Store() keystore.Store { return g.store }

// Close stops the gateway's background work. Attempts that are still running
// are not cut; [Gateway.Drain] does that.
func (g *Gateway) Close() { g.stop() }

// Drain prepares for the end of the process. From now on no attempt starts, and
// duplicates stop waiting. Attempts may go on until they are settled, or are
// only lingering, or ctx ends; what is still running then is cut and written
// down as unknown. It returns when that is done.
func (g *Gateway) Drain(ctx context.Context) {
	g.mu.Lock() // an attempt that is registered after this knows that it may not start
	first := false
	g.drainOnce.Do(func() { close(g.draining); first = true })
	running, waiting := len(g.attempts), g.waiters
	g.mu.Unlock()
	if first && running+waiting > 0 {
		g.log.Info("the process is ending: no attempt starts any more, and who waits is sent away",
			slog.Int("attempts", running), slog.Int("waiters", waiting))
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for g.busy() {
		select {
		case <-ctx.Done():
			g.cutAll()
			return
		case <-tick.C:
		}
	}
	g.cutAll()
}

// busy reports whether an attempt runs that is worth waiting for. One that has
// timed out is unknown already.
func (g *Gateway) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a := range g.attempts {
		if !a.onlyListens() {
			return true
		}
	}
	return false
}

// cutTime bounds the last writes of a process that is ending.
const cutTime = 5 * time.Second

func (g *Gateway) cutAll() {
	ctx, cancel := context.WithTimeout(context.Background(), cutTime)
	defer cancel()
	g.mu.Lock()
	var cut sync.WaitGroup
	for a := range g.attempts {
		cut.Go(func() { a.cut(ctx) })
	}
	n := len(g.attempts)
	g.mu.Unlock()
	if n > 0 {
		g.log.Warn("attempts are cut, since the process is ending", slog.Int("attempts", n))
	}
	cut.Wait()
}

// stopping reports whether the gateway takes no new attempts any more.
func (g *Gateway) stopping() bool {
	select {
	case <-g.draining:
		return true
	default:
		return false
	}
}

// background runs a write that has to become definite. It holds the store.
func (g *Gateway) background(write func(ctx context.Context)) {
	release := g.retain()
	go func() {
		defer release()
		write(g.ctx)
	}()
}

// storeContext returns a context for a call to the store. It does not end with
// the client's: a claim or a commit that is cut because somebody hung up would
// leave the record in the dark.
func (g *Gateway) storeContext() context.Context { return g.calls.context() }

// decision says what to write next given the present record, nil for none:
// whether to create next or to put it in place of the present one. A nil next
// ends the update.
type decision func(present *keystore.Job) (next *keystore.Job, create bool)

// update reads, decides and writes until a write was accepted or there is
// nothing to write, and returns the record as it is then. With known the record
// is taken to be base at first, which saves the read if it still is.
//
// A write that was not answered is sent again with the same write id; what has
// become of it is then read from the record. A record that may hold a write of
// which that is not known to be durable is confirmed before it is built on. After
// tries failures in a row it gives up, with zero only when ctx ends.
func (g *Gateway) update(ctx context.Context, name keystore.Name, base *keystore.Job, known bool, tries int, decide decision) (*keystore.Job, error) {
	pause := backoff{}
	for {
		if !known {
			err := pause.retry(ctx, tries, func() (err error) {
				base, err = g.store.Get(ctx, name)
				return err
			})
			if err != nil {
				return base, err
			}
		}
		next, create := decide(base)
		confirms := next == nil
		switch {
		case confirms && (base == nil || !g.doubted.has(name)):
			return base, nil
		case confirms:
			next = base
		default:
			next.WriteID = keystore.NewWriteID()
		}
		var present *keystore.Job
		var written bool
		err := pause.retry(ctx, tries, func() (err error) {
			switch {
			case confirms:
				present, written, err = g.store.Swap(ctx, keystore.WriteID{}, next)
			case create:
				present, written, err = g.store.Create(ctx, next)
			default:
				present, written, err = g.store.Swap(ctx, base.WriteID, next)
			}
			return err
		})
		switch {
		case err != nil:
			if inDoubt(err) {
				g.doubted.add(name)
			}
			return base, err
		case written:
			g.doubted.remove(name)
			if g.waitsForDurability() {
				g.confirmed.add(next.WriteID)
			}
			return next, nil
		}
		base, known = present, true
	}
}

// insist is update without giving up, in the background: the write is made as
// soon as the store lets it, unless the process ends or the record turns out to
// be unreadable.
func (g *Gateway) insist(ctx context.Context, name keystore.Name, decide decision) (*keystore.Job, error) {
	pause := backoff{}
	for {
		select {
		case g.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		j, err := g.update(ctx, name, nil, false, 1, decide)
		<-g.slots
		if err == nil || definite(err) {
			return j, err
		}
		if !pause.wait(ctx) {
			return nil, err
		}
	}
}

// inDoubt reports whether a write that failed may have been applied all the same.
func inDoubt(err error) bool {
	return err != nil && !errors.Is(err, keystore.ErrNotApplied) && !definite(err)
}

// definite reports whether an error will not go away by trying again.
func definite(err error) bool {
	return errors.Is(err, keystore.ErrCorrupt) || errors.Is(err, keystore.ErrClosed)
}

// backoff waits longer from one failure to the next.
type backoff struct{ pause time.Duration }

const (
	firstPause = 20 * time.Millisecond
	lastPause  = 2 * time.Second
)

// retry calls until it succeeds, has failed tries times (zero: any number), or
// ctx has ended.
func (b *backoff) retry(ctx context.Context, tries int, call func() error) error {
	inDoubt := false // whether an earlier try may have been applied
	for n := 1; ; n++ {
		err := call()
		last := err == nil || definite(err) || n == tries
		if !last && !errors.Is(err, keystore.ErrNotApplied) {
			inDoubt = true
		}
		if last || !b.wait(ctx) {
			if inDoubt && errors.Is(err, keystore.ErrNotApplied) {
				return fmt.Errorf("%w: %v", keystore.ErrUnavailable, err) //nolint:errorlint // what it says is true of the last try only
			}
			return err
		}
	}
}

// wait reports whether ctx has not ended meanwhile.
func (b *backoff) wait(ctx context.Context) bool {
	b.pause = min(max(2*b.pause, firstPause), lastPause)
	timer := time.NewTimer(jitter(b.pause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
