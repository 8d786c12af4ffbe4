package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
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

// call sends one command, or one script, and sends it again where no definite
// answer comes.
func call[T any](ctx context.Context, s *Store, what string, e effect, send func(context.Context) (T, error)) (T, error) {
	return apart(ctx, s, what, func() (T, error) { return try(ctx, s, what, e, send) })
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
	if ctx.Done() == nil {
		defer s.calls.Done()
		return f()
	}
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

func try[T any](ctx context.Context, s *Store, what string, e effect, send func(context.Context) (T, error)) (T, error) {
	var none T
	unsent := s.clientRetries == 0 // as far as is known after all tries up to now
	retired := 0
	for tries := 0; ; {
		generation := s.dialer.generation.Load()
		tryCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		value, err := send(tryCtx)
		cancel()
		if err == nil {
			return value, nil
		}
		f := fateOf(err)
		if f.readOnly {
			s.dialer.retire(generation)
		}
		unsent = unsent && f.notApplied
		if f.retired && retired < maxRetired {
			retired++ // it never left: that was no try
			continue
		}
		tries++
		if f.again && e != hints && tries <= s.resends && s.pause(ctx, tries) {
			continue
		}
		return none, s.giveUp(what, f, e == writes && unsent)
	}
}

// giveUp returns the error of a command that has met this fate in its last try.
func (s *Store) giveUp(what string, f fate, notApplied bool) error {
	switch {
	case f.corrupt:
		return fmt.Errorf("%s: %w: %s", what, keystore.ErrCorrupt, f.text)
	case s.closing():
		return fmt.Errorf("%s: %w: %w", what, keystore.ErrClosed, keystore.ErrUnavailable)
	case notApplied:
		return fmt.Errorf("%s: %w, %w: %s", what, keystore.ErrUnavailable, keystore.ErrNotApplied, f.text)
	}
	return fmt.Errorf("%s: %w: %s", what, keystore.ErrUnavailable, f.text)
}

// maxRetired bounds how many retired connections one call may come across.
const maxRetired = 1000

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

// fate is what an error says of the command it came back for.
type fate struct {
	text       string // of the error, without anything of ours or a client's in it
	notApplied bool   // it was certainly not executed, and will not be
	again      bool   // it is worth sending again
	readOnly   bool   // the server is one that should not be talked to any more
	corrupt    bool   // there is something else under the record's name
	retired    bool   // the connection was too old to send it
}

// scriptError is an error that came back for a script.
type scriptError struct{ error }

func (e scriptError) Unwrap() error { return e.error }

func fateOf(err error) fate {
	if server, ok := errors.AsType[redis.Error](err); ok {
		return fateOfReply(server.Error(), errors.As(err, new(scriptError)))
	}
	f := fate{text: err.Error(), again: true}
	switch {
	case errors.Is(err, errRetired):
		f.retired, f.notApplied = true, true
	case errors.Is(err, redis.ErrClosed):
		f.again, f.notApplied = false, true
	case errors.As(err, new(*dialError)), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		f.notApplied = true
	}
	return f
}

// fateOfReply judges an error that the server replied with. To a native command
// that means that it was refused. A script may have done its work before.
func fateOfReply(reply string, script bool) fate {
	code, _, _ := strings.Cut(reply, " ")
	f := fate{text: printable(reply), notApplied: !script}
	switch code {
	case "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS":
		f.again = true
	case "ERR":
		f.again = strings.HasPrefix(reply, "ERR max number of clients reached")
	}
	// Errors of commands inside a script are told in another form by every
	// generation of servers; the code stands in all of them.
	switch {
	case strings.Contains(reply, "WRONGTYPE"):
		f.corrupt = true
	case strings.Contains(reply, "READONLY"):
		f.readOnly, f.again = true, true
		f.notApplied = true // our scripts do nothing before the one write that this refuses
	case script && strings.Contains(reply, "OOM "):
		f.notApplied = true // likewise
	case script:
		f.notApplied = refusedBeforeRunning(code, reply)
	}
	return f
}

// refusedBeforeRunning reports whether this error can only have come instead of
// a script's run, and not out of it.
func refusedBeforeRunning(code, reply string) bool {
	switch code {
	case "NOSCRIPT", "BUSY", "LOADING":
		return true
	case "NOPERM", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS":
		return !strings.Contains(reply, "script")
	}
	return strings.HasPrefix(reply, "ERR max number of clients reached")
}

// printable cuts a server's error off where it begins to quote what it was sent.
func printable(reply string) string {
	for _, quote := range []string{", with args", " with args", ", sub"} {
		reply, _, _ = strings.Cut(reply, quote)
	}
	if len(reply) > 200 {
		reply = reply[:200]
	}
	return reply
}
