package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// pollEvery is how often watched records are looked at besides waiting for
// hints: a connection that is dead without saying so delivers none.
const pollEvery = time.Second

func (s *Store) channel() string { return s.prefix + "wake" }

// watchers are those who wait on this gateway, by name. However many they are,
// one subscription and one poller serve them.
type watchers struct {
	store *Store
	every time.Duration // pollEvery, but in tests

	mu         sync.Mutex
	names      map[keystore.Name]*watched
	subscribed bool
	polling    bool
}

// watched is a record that somebody waits for.
type watched struct {
	all map[*watcher]struct{}
	// flagged is the write id of the record that was, or is being, marked as
	// waited for.
	flagged keystore.WriteID
}

// wake gives a hint to all who wait. The record may be another one by now, so
// that the next watcher has to mark it again.
func (n *watched) wake() {
	n.flagged = keystore.WriteID{}
	for w := range n.all {
		w.wake()
	}
}

type watcher struct {
	seen keystore.WriteID
	hint chan struct{}
}

func (w *watcher) wake() {
	select {
	case w.hint <- struct{}{}:
	default: // one hint is as good as two
	}
}

func (ws *watchers) init(s *Store) {
	ws.store, ws.every = s, pollEvery
	ws.names = make(map[keystore.Name]*watched)
}

// Watch implements [keystore.Store]. The context bounds the call, which takes a
// round trip, and not the watch. Hints go on coming, about once per second, as
// long as the record is not the one seen.
func (s *Store) Watch(ctx context.Context, name keystore.Name, seen keystore.WriteID) (hint <-chan struct{}, stop func()) {
	w := &watcher{seen: seen, hint: make(chan struct{}, 1)}
	if s.closing() {
		w.wake()
		return w.hint, func() {}
	}
	if s.watchers.add(name, w) {
		// Registered here first, so that whoever writes after the record was
		// marked finds somebody to wake.
		s.watchers.flag(ctx, name, seen)
	}
	if s.closing() {
		w.wake()
	}
	return w.hint, func() { s.watchers.remove(name, w) }
}

// add registers a watcher. It reports whether the record has to be marked.
func (ws *watchers) add(name keystore.Name, w *watcher) (flag bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !ws.subscribed {
		ws.subscribed = ws.store.goBackground(ws.subscribe)
	}
	if !ws.polling {
		ws.polling = ws.store.goBackground(ws.poll)
	}
	n := ws.names[name]
	if n == nil {
		n = &watched{all: make(map[*watcher]struct{})}
		ws.names[name] = n
	}
	n.all[w] = struct{}{}
	if w.seen.IsZero() || w.seen == n.flagged {
		return false // there is nothing to mark, or somebody did or does it
	}
	n.flagged = w.seen
	return true
}

func (ws *watchers) remove(name keystore.Name, w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n := ws.names[name]; n != nil {
		delete(n.all, w)
		if len(n.all) == 0 {
			delete(ws.names, name)
		}
	}
}

// flag marks a record, so that its next writer publishes a hint.
func (ws *watchers) flag(ctx context.Context, name keystore.Name, seen keystore.WriteID) {
	s := ws.store
	marked, err := callShared(ctx, s, "watch job", s.recordKey(name), hints, func(ctx context.Context, n *node) (bool, error) {
		reply, err := n.run(ctx, flagScript, s.recordKey(name), seen.String())
		return reply == int64(1), err
	})
	switch {
	case errors.Is(err, keystore.ErrCorrupt), err == nil && !marked:
		ws.wake(name)
	case err != nil: // the poller is there for that; and the next one may try again
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if n := ws.names[name]; n != nil && n.flagged == seen {
			n.flagged = keystore.WriteID{}
		}
	}
}

// wake gives a hint to all who wait for a record.
func (ws *watchers) wake(name keystore.Name) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n := ws.names[name]; n != nil {
		n.wake()
	}
}

// wakeAll gives a hint to everybody.
func (ws *watchers) wakeAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, n := range ws.names {
		n.wake()
	}
}

// subscribe passes hints on until the store is closed. The client connects
// again by itself; since hints may have been lost until then, that is a hint to
// everybody.
func (ws *watchers) subscribe() {
	s := ws.store
	subscription := s.client.Subscribe(context.Background(), s.channel())
	defer func() { _ = subscription.Close() }()
	messages := subscription.ChannelWithSubscriptions()
	for {
		select {
		case <-s.done:
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			switch m := m.(type) {
			case *redis.Subscription:
				ws.wakeAll()
			case *redis.Message:
				if name, err := nameOf(m.Payload); err == nil {
					ws.wake(name)
				}
			}
		}
	}
}

// poll looks at all watched records once per interval, as long as there are any.
func (ws *watchers) poll() {
	ticker := time.NewTicker(ws.every)
	defer ticker.Stop()
	for {
		select {
		case <-ws.store.done:
			return
		case <-ticker.C:
		}
		names := ws.watchedNames()
		if names == nil {
			return
		}
		for len(names) > 0 {
			n := min(len(names), pollBatch)
			ws.look(names[:n])
			names = names[n:]
		}
	}
}

// pollBatch is how many records are looked at in one pipeline.
const pollBatch = 500

// watchedNames returns the names to look at; nil, and polling ends, if there is
// none.
func (ws *watchers) watchedNames() []keystore.Name {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.names) == 0 {
		ws.polling = false
		return nil
	}
	names := make([]keystore.Name, 0, len(ws.names))
	for name := range ws.names {
		names = append(names, name)
	}
	return names
}

// look wakes those who wait for one of these records and have seen another one.
// Of those whose server does not answer the next round will tell.
func (ws *watchers) look(names []keystore.Name) {
	s := ws.store
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = s.recordKey(name)
	}
	s.servers.spread(ctx, keys, func(n *node, some []int) {
		pipe := n.via.Pipeline()
		heads := make([]*redis.StringCmd, len(some))
		for i, k := range some {
			heads[i] = pipe.GetRange(ctx, keys[k], keystore.WriteIDOffset, keystore.WaiterOffset-1)
		}
		began := time.Now()
		_, err := pipe.Exec(ctx)
		s.note(ctx, n, began, err)
		for i, k := range some {
			found, err := heads[i].Result()
			if err == nil || fateOf(err).corrupt {
				ws.compare(names[k], found)
			}
		}
	})
}

func (ws *watchers) compare(name keystore.Name, found string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := ws.names[name]
	if n == nil {
		return
	}
	for w := range n.all {
		if w.seen.IsZero() && found == "" {
			continue
		}
		if found != w.seen.String() {
			w.wake()
		}
	}
}
