package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// effect says what a call may change on the server.
type effect int

const (
	reads  effect = iota
	writes        // something that must not be lost
	hints         // something that may be lost: it is sent once
)

// call sends one command, or one script, to the server that has the key, and
// sends it again where no definite answer comes.
func call[T any](ctx context.Context, s *Store, what, key string, e effect, send func(context.Context, *node) (T, error)) (T, error) {
	return callAt(ctx, s, what, target{key: key}, e, send)
}

// callSized is call for the write of a record, which shares its round trip if the
// record is small and nothing has to be waited for on the same connection.
func callSized[T any](ctx context.Context, s *Store, what, key string, record []byte, send func(context.Context, *node) (T, error)) (T, error) {
	if len(record) > maxShared || s.durability.on() {
		return call(ctx, s, what, key, writes, send)
	}
	return callShared(ctx, s, what, key, writes, send)
}

// callShared is call for what may share its round trip with others, if all that it
// sends is small. Where the server needn't be looked for first, it is the
// caller's own goroutine that waits.
//
// What is sent again goes alone: whatever keeps one command from being answered is
// not to keep others from it time and again.
func callShared[T any](ctx context.Context, s *Store, what, key string, e effect, send func(context.Context, *node) (T, error)) (T, error) {
	t := target{key: key, shared: true}
	if !s.direct(t) {
		return callAt(ctx, s, what, t, e, send)
	}
	var none T
	if err := s.enter(); err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	generation := s.dialer.generation.Load()
	value, f, err := tryOnce(ctx, s, t, hop{}, send)
	if err == nil {
		s.calls.Done()
		return value, nil
	}
	if givenUp := ctx.Err(); givenUp != nil {
		s.calls.Done()
		return none, s.leave(what, givenUp, f.notApplied && s.clientRetries == 0)
	}
	return aside(ctx, s, what, func() (T, error) {
		return try(ctx, s, what, target{key: key}, e, send, &lastTry{f, generation})
	})
}

func callAt[T any](ctx context.Context, s *Store, what string, t target, e effect, send func(context.Context, *node) (T, error)) (T, error) {
	return apart(ctx, s, what, func() (T, error) { return try(ctx, s, what, t, e, send, nil) })
}

// apart runs f apart from the caller's context, whose end only ends the waiting:
// a command that is cut short costs its connection, and many short patiences
// would make the client do little else than connect.
func apart[T any](ctx context.Context, s *Store, what string, f func() (T, error)) (T, error) {
	var none T
	if err := s.enter(); err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	if err := ctx.Err(); err != nil {
		s.calls.Done()
		return none, fmt.Errorf("%s: %w, %w: %w", what, keystore.ErrUnavailable, keystore.ErrNotApplied, err)
	}
	return aside(ctx, s, what, f)
}

// aside is apart for a call that was admitted.
func aside[T any](ctx context.Context, s *Store, what string, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		defer s.calls.Done()
		return f()
	}
	var none T
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer s.calls.Done()
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w: %w", what, keystore.ErrUnavailable, ctx.Err())
	}
}

// lastTry is what became of a try that failed.
type lastTry struct {
	fate
	generation uint64 // of the connections when it began
}

// try sends a command until there is a definite answer or no sense in it any more. It
// begins after a first try, where there was one.
func try[T any](ctx context.Context, s *Store, what string, t target, e effect, send func(context.Context, *node) (T, error), last *lastTry) (T, error) {
	var none T
	unsent := s.clientRetries == 0 // as far as is known after all tries up to now
	retired, hops := 0, 0
	var to hop
	for tries := 0; ; {
		if last == nil {
			generation := s.dialer.generation.Load()
			value, f, err := tryOnce(ctx, s, t, to, send)
			if err == nil {
				return value, nil
			}
			last = &lastTry{f, generation}
			t.shared = false
		}
		f := last.fate
		if f.readOnly {
			s.dialer.retire(last.generation)
		}
		last = nil
		unsent = unsent && f.notApplied
		to = f.to
		switch {
		case f.retired && retired < maxRetired:
			retired++ // it never left: that was no try
			continue
		case f.redirected() && hops < maxHops:
			hops++
			continue
		}
		tries++
		if f.again && e != hints && tries <= s.resends && s.pause(ctx, tries) {
			continue
		}
		return none, s.giveUp(what, f, e == writes && unsent)
	}
}

// tryOnce sends a command once.
func tryOnce[T any](ctx context.Context, s *Store, t target, to hop, send func(context.Context, *node) (T, error)) (value T, f fate, err error) {
	direct := s.direct(t)
	if !direct { // otherwise the lane has its own timeout, and the caller may leave it
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		defer cancel()
	}
	n, err := s.servers.find(ctx, t, to)
	if err == nil {
		err = n.admit()
	}
	if err == nil && t.shared && n.sharing != nil {
		n = n.sharing
	}
	if err != nil {
		return value, fateOf(err), err
	}
	began := time.Now()
	value, err = send(ctx, n)
	if direct && err != nil && ctx.Err() != nil { // a short patience says nothing of the server
		return value, fateOf(err), err
	}
	return value, s.note(ctx, n, began, err), err
}

// direct reports whether the caller's own goroutine sends what is for a target, and
// waits for it no longer than its context says.
func (s *Store) direct(t target) bool {
	return t.shared && s.servers.one != nil && s.servers.one.sharing != nil
}

// note draws the conclusions about a server from the error of a command that began
// then, and returns its fate.
func (s *Store) note(ctx context.Context, n *node, began time.Time, err error) (f fate) {
	if err == nil {
		n.answered()
		return f
	}
	f = fateOf(err)
	switch {
	case f.retired:
		f.again = true
	case errors.Is(err, redis.ErrClosed) && !s.closing():
		s.servers.forget(n)
		f.again = true
	case f.down:
		n.failed(began, f.text)
	case errors.As(err, new(redis.Error)), errors.Is(err, errShort):
		n.answered()
	}
	if f.redirected() || f.down {
		s.servers.stale(ctx)
	}
	return f
}

// leave returns the error of a command that the caller no longer waits for.
func (s *Store) leave(what string, why error, notApplied bool) error {
	if notApplied {
		return fmt.Errorf("%s: %w, %w: %w", what, keystore.ErrUnavailable, keystore.ErrNotApplied, why)
	}
	return fmt.Errorf("%s: %w: %w", what, keystore.ErrUnavailable, why)
}

// giveUp returns the error of a command that has met this fate in its last try.
func (s *Store) giveUp(what string, f fate, notApplied bool) error {
	switch {
	case f.corrupt:
		return fmt.Errorf("%s: %w: %s", what, keystore.ErrCorrupt, f.text)
	case f.notDurable:
		return fmt.Errorf("%s: %w, %w: %s", what, keystore.ErrUnavailable, keystore.ErrNotDurable, f.text)
	case s.closing():
		return fmt.Errorf("%s: %w: %w", what, keystore.ErrClosed, keystore.ErrUnavailable)
	case f.full && notApplied:
		return fmt.Errorf("%s: %w, %w, %w: %s", what, keystore.ErrUnavailable, keystore.ErrFull, keystore.ErrNotApplied, f.text)
	case f.full:
		return fmt.Errorf("%s: %w, %w: %s", what, keystore.ErrUnavailable, keystore.ErrFull, f.text)
	case notApplied:
		return fmt.Errorf("%s: %w, %w: %s", what, keystore.ErrUnavailable, keystore.ErrNotApplied, f.text)
	}
	return fmt.Errorf("%s: %w: %s", what, keystore.ErrUnavailable, f.text)
}

const (
	// maxRetired bounds how many retired connections one call may come across, and
	// maxHops how often it is redirected before that counts as a try.
	maxRetired = 1000
	maxHops    = 5
)

// pause waits before a command is sent again. It reports whether there is still
// somebody to send it for.
func (s *Store) pause(ctx context.Context, tries int) bool {
	d := time.Duration(tries) * (10*time.Millisecond + rand.N(20*time.Millisecond))
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.done:
	}
	return false
}
