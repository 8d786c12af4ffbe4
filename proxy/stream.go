package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var errClientStalled = errors.New("the client takes nothing of the answer")

// passOn hands an answer that is too large to be kept to the client that waits
// for it, from its head on. It returns where the rest goes, or nil if nobody
// waits, or if the answer may not be passed on since it proves nothing.
//
// From the first byte passed on, silence of the upstream replaces the timeouts:
// a large answer takes as long as it takes.
func (a *attempt) passOn(head *keystore.Response) *io.PipeWriter {
	if classifyAnswer(head, a.route.Outcomes).outcome == keystore.OutcomeUnknown {
		return nil
	}
	a.phase.Lock()
	defer a.phase.Unlock()
	if a.gaveUp {
		return nil
	}
	r, w := io.Pipe()
	passed := a.replyWith(reply{
		job: a.snapshot(), answer: head, recorded: true, rest: r,
		trailer: func() http.Header {
			a.capture.mu.Lock()
			defer a.capture.mu.Unlock()
			return a.capture.trailer()
		},
	})
	if !passed {
		return nil
	}
	a.passing = w
	a.stopTimeout()
	a.keepAlive()
	return w
}

// pass writes a part of an answer that is passed on. While the client takes it,
// the clock on the upstream stands still. A client that takes nothing for as
// long is left behind: that the answer's end is seen matters more.
func (a *attempt) pass(w *io.PipeWriter, p []byte) error {
	if w == nil {
		a.phase.Lock()
		defer a.phase.Unlock()
		if a.passing != nil {
			a.keepAlive()
		}
		return nil
	}
	stalled := time.AfterFunc(a.route.StreamIdle, func() { w.CloseWithError(errClientStalled) })
	running := a.end.Stop()
	_, err := w.Write(p)
	stalled.Stop()
	if running {
		a.end.Reset(a.route.StreamIdle)
	}
	return err
}

// keepAlive starts the clock on a silent upstream anew, unless it has run out.
func (a *attempt) keepAlive() {
	if a.end.Stop() {
		a.end.Reset(a.route.StreamIdle)
	}
}

// endPassing ends what is passed on: as it should, or with an error that makes
// the client see a broken transfer.
func (a *attempt) endPassing(err error) {
	a.phase.Lock()
	defer a.phase.Unlock()
	if a.passing != nil {
		a.passing.CloseWithError(err)
	}
}
