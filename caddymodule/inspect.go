package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// inspectEvery is how often a store is inspected, give or take a tenth, so that
	// gateways don't all come at once.
	inspectEvery = time.Minute
	// inspectSoon is how soon that is done again where it failed, or where requests
	// are refused for what it found.
	inspectSoon = 2 * time.Second
	// inspectFresh is how long an inspection is fresh enough for whoever asks.
	inspectFresh = time.Second
	// inspectTime bounds one.
	inspectTime = 10 * time.Second
)

// inspection is what is known of an open store by looking at what it runs on, again
// and again. Requests only read what was found last.
type inspection struct {
	store keystore.Inspector // nil: one that can't say
	kind  string             // the store module's name
	log   *slog.Logger

	turn chan struct{} // has a value while the store is inspected
	soon chan struct{} // has a value when somebody was refused for what is known

	mu   sync.Mutex
	ran  time.Time           // when the last inspection has ended, however it did
	err  error               // of that
	last keystore.Inspection // the last that succeeded; its At is zero before that

	// unfit are the reasons why the store is not durable: nothing that is of this
	// severity or a worse one may be against it.
	unfit [keystore.Danger + 1]atomic.Pointer[error]

	stop context.CancelFunc
	done chan struct{}
}

var errNotInspected = errors.New("it is not known yet whether the store is durable")

// inspected begins to look at a store.
func inspected(key storeKey, store keystore.Store) *inspection {
	i := &inspection{
		kind: caddy.ModuleID(key.module).Name(), log: slog.New(currentLog{}),
		turn: make(chan struct{}, 1), soon: make(chan struct{}, 1), done: make(chan struct{}),
	}
	i.store, _ = store.(keystore.Inspector)
	for n := range i.unfit {
		i.unfit[n].Store(&errNotInspected)
	}
	var ctx context.Context
	ctx, i.stop = context.WithCancel(context.Background())
	if i.store == nil {
		close(i.done)
		return i
	}
	inspections.add(i)
	go i.repeat(ctx)
	return i
}

// end returns when the store is not looked at any more.
func (i *inspection) end() {
	i.stop()
	<-i.done
	inspections.remove(i)
}

func (i *inspection) repeat(ctx context.Context) {
	defer close(i.done)
	for {
		i.run(ctx)
		pause := inspectEvery*9/10 + rand.N(inspectEvery/5)
		soon := inspectSoon + rand.N(inspectSoon/2)
		if i.unsure() {
			pause = soon
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-i.soon:
			timer.Reset(soon)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			select { // those who were refused meanwhile
			case <-i.soon:
			default:
			}
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// unsure reports whether the last inspection did not see all.
func (i *inspection) unsure() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err != nil || slices.ContainsFunc(i.last.Findings, func(f keystore.Finding) bool { return f.Code == keystore.FindingUnreachable })
}

// run inspects the store, unless that has just been done.
func (i *inspection) run(ctx context.Context) {
	if i.store == nil {
		return
	}
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return
	}
	i.mu.Lock()
	fresh := !i.ran.IsZero() && time.Since(i.ran) < inspectFresh
	i.mu.Unlock()
	if fresh {
		return
	}
	limited, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	found, err := i.store.Inspect(limited)
	if ctx.Err() != nil {
		return // nobody wants to know any more
	}
	i.learn(found, err)
}

// learn keeps what was found, and logs what is new in it.
func (i *inspection) learn(found keystore.Inspection, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before, failed := i.last, i.err
	i.ran, i.err = time.Now(), err
	if err != nil { // what was known stands
		if failed == nil {
			i.log.Warn("a store can't be inspected", slog.String("store", i.kind), slog.Any("error", err))
		}
		return
	}
	if failed != nil {
		i.log.Info("a store can be inspected again", slog.String("store", i.kind))
	}
	found.Findings = append(slices.Clone(found.Findings), unseen(before.Findings, found.Findings)...)
	slices.SortStableFunc(found.Findings, func(x, y keystore.Finding) int { return int(y.Severity - x.Severity) })
	i.last = found
	for n := range i.unfit {
		i.unfit[n].Store(unfitness(found.Findings, keystore.Severity(n)))
	}
	i.tell(before.Findings, found.Findings)
}

// unseen are the findings from before of servers that can't be looked at now. They
// may come back as they were.
func unseen(before, now []keystore.Finding) (kept []keystore.Finding) {
	for _, f := range before {
		if f.Code != keystore.FindingUnreachable && slices.ContainsFunc(now, func(other keystore.Finding) bool {
			return other.Code == keystore.FindingUnreachable && other.Server == f.Server
		}) {
			kept = append(kept, f)
		}
	}
	return kept
}

// unfitness returns the first reason why a store is not durable, at least this
// severe.
func unfitness(findings []keystore.Finding, least keystore.Severity) *error {
	var err error
	for _, f := range findings {
		if f.Loses && f.Severity >= least {
			err = fmt.Errorf("the store is not durable (%s): %s", f.Code, f)
			break
		}
	}
	return &err
}

// tell logs the findings that have come, changed or gone.
func (i *inspection) tell(before, now []keystore.Finding) {
	same := func(f keystore.Finding) func(keystore.Finding) bool {
		return func(other keystore.Finding) bool { return f.Code == other.Code && f.Server == other.Server }
	}
	for _, f := range now {
		if n := slices.IndexFunc(before, same(f)); n >= 0 && f.SameAs(before[n]) {
			continue
		}
		level := [...]slog.Level{keystore.Note: slog.LevelInfo, keystore.Warning: slog.LevelWarn, keystore.Danger: slog.LevelError}[f.Severity]
		i.log.Log(context.Background(), level, "the store was inspected: "+f.Found, //nolint:sloglint // in words, for who reads it at night
			slog.String("store", i.kind), slog.String("code", f.Code), slog.String("severity", f.Severity.String()),
			slog.String("server", f.Server), slog.String("risk", f.Risk), slog.String("remedy", f.Remedy))
	}
	for _, f := range before {
		if !slices.ContainsFunc(now, same(f)) {
			i.log.Info("the store was inspected: no longer so: "+f.Found, //nolint:sloglint // as it was found
				slog.String("store", i.kind), slog.String("code", f.Code), slog.String("server", f.Server))
		}
	}
}

// known returns what is known, and why the last inspection failed, if it did.
func (i *inspection) known() (keystore.Inspection, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.last, i.err
}

// durable says why the store does not count as durable, at this severity.
func (i *inspection) durable(least keystore.Severity) error { return *i.unfit[least].Load() }
