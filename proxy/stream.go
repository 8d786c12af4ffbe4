package proxy

import (
	"errors"
	"io"
	"net/http"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// passOn hands an answer that is an event stream, or too large to be kept, to
// the client that waits for it, from its head on. It returns what takes the body
// there, or nil if nobody waits, or if the answer may not be passed on since it
// proves nothing.
//
// From then on, silence of the upstream replaces the timeouts: such an answer
// takes as long as it takes.
func (a *attempt) passOn(head *keystore.Response) *feed {
	switch outcome := classifyAnswer(head, a.route.Outcomes).outcome; {
	case outcome == keystore.OutcomeUnknown, a.route.commitsFirst():
		return nil
	case outcome == keystore.OutcomeFailed && len(a.route.Providers) > 1:
		return nil // another provider's answer may take its place
	}
	a.phase.Lock()
	defer a.phase.Unlock()
	if a.gaveUp {
		return nil
	}
	// Nobody would know of it any more after that, and one without an end would
	// be held for ever.
	f := newFeed(a.route.StreamIdle, a.began.Add(a.route.Retention), a.end)
	passed := a.replyWith(reply{
		job: a.snapshot(), answer: head, recorded: true, body: f,
		trailer: func() http.Header {
			a.capture.mu.Lock()
			defer a.capture.mu.Unlock()
			return a.capture.trailer()
		},
	})
	if !passed {
		return nil
	}
	a.passing = f
	a.stopTimeout()
	f.alive()
	return f
}

// endPassing ends what is passed on: as it should (io.EOF), or with an error that
// makes the client see a broken transfer.
func (a *attempt) endPassing(how error) {
	a.phase.Lock()
	defer a.phase.Unlock()
	if a.passing != nil {
		a.passing.end(how)
	}
}

// passOn gives the client an answer as it comes.
func (c *call) passOn(rep reply) error {
	defer rep.body.leave()
	writeHead(c.w, rep.answer, -1)
	flush := http.NewResponseController(c.w)
	_ = flush.Flush() // the first byte may take its time
	buf := make([]byte, 32<<10)
	for {
		n, err := rep.body.Read(buf)
		if n > 0 {
			if _, err := c.w.Write(buf[:n]); err != nil {
				return c.deliver(err)
			}
			_ = flush.Flush()
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			writeTrailer(c.w, rep.trailer())
			return nil
		default:
			c.breakOff()
		}
	}
}
