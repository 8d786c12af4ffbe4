package proxy

import (
	"context"
	"net/http"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// LookupError is an error of a lookup that says, in words that may be kept with
// the attempt, why no answer came. It names no key, owner or secret.
type LookupError string

// Error implements error.
func (n LookupError) Error() string { return string(n) }

// ErrNotAskable says that the upstream could not be asked yet. It counts neither
// as a lookup nor for the time for which a gateway goes on asking.
const ErrNotAskable = LookupError("no request of the route has come by since the start, so that it is not known how to reach its upstream")

// Notes of lookups that had no whole answer.
const (
	ErrLookupSilent = LookupError("nobody answered the lookup")
	ErrLookupCut    = LookupError("the answer to the lookup broke off")
	ErrLookupLarge  = LookupError("the answer to the lookup is larger than an answer may be to be kept")
	ErrLookupSealed = LookupError("the key is encrypted, and this gateway can't decrypt it")
)

// AskOnce is Ask with a request that may do something: what is below doesn't send it
// again by itself when its connection dies, as net/http does with one that has a key
// and no body.
func AskOnce(handle func(http.ResponseWriter, *http.Request) error, r *http.Request, limit int64) (*keystore.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	t := &trace{tooLate: func() bool { return false }, abandon: cancel}
	return Ask(handle, r.WithContext(t.with(ctx)), limit)
}

// Ask runs a handler with a request of the gateway's own and returns its answer,
// which is whole and has at most limit bytes; otherwise there is an error. A
// handler that returns without having written anything has not answered: nothing
// may be concluded from a chain in which nobody felt responsible.
func Ask(handle func(http.ResponseWriter, *http.Request) error, r *http.Request, limit int64) (answer *keystore.Response, err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	c := newCapture(r.Method, limit)
	c.passOn = func(*keystore.Response) *feed {
		if c.over {
			cancel(ErrLookupLarge)
		}
		return nil
	}
	// In a goroutine of its own, which is left behind if it does not care for the
	// end of its context: whoever asks must not be kept for ever.
	returned := make(chan error, 1)
	go func() {
		err := error(ErrLookupCut) // unless it returns, and neither panics nor ends its goroutine
		defer func() {
			_ = recover()
			returned <- err
		}()
		err = handle(c, r.WithContext(ctx))
	}()
	select {
	case err = <-returned:
	case <-ctx.Done():
		select {
		case err = <-returned:
		case <-time.After(answerTime):
		}
	}
	if cause := context.Cause(ctx); cause != nil { // many a handler takes the end of its context for that of the answer
		c.abandon()
		return nil, cause
	}
	if err != nil {
		c.abandon()
		return nil, err
	}
	if !c.begun() {
		return nil, ErrLookupSilent
	}
	answer, whole := c.finish(true)
	switch {
	case answer.NotKept:
		return nil, ErrLookupLarge
	case !whole:
		return nil, ErrLookupCut
	}
	return answer, nil
}
