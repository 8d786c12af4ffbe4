package proxy

import (
	"log/slog"
	"maps"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// deliver drops the error of a client that has left: it is no failure of the
// request, whose answer is stored.
func (c *call) deliver(err error) error {
	if err != nil {
		c.g.log.Debug("client left before the end of its answer", slog.Any("error", err))
	}
	return nil
}

// answer gives the client what has come of the request's attempts.
func (c *call) answer(rep reply, sent time.Time) error {
	if rep.superseded {
		// From here on this request is a reader like any other.
		c.claim.Token, c.claim.First = keystore.Token{}, false
		return c.judge(rep.job, sent)
	}
	c.account.Verdict = VerdictExecuted
	if rep.job != nil {
		c.account.learn(rep.job, c.g.store.Now())
	}
	if rep.attempt != nil { // also where a store that has lost the record does not say so
		c.account.Attempt, c.account.Provider = rep.attempt.number, rep.attempt.provider
	}
	setJobHeaders(c.w.Header(), rep.job)
	if rep.refusal != nil {
		return rep.refusal.about(rep.job, c.g.store.Now())
	}
	if !rep.recorded {
		c.w.Header().Set(HeaderRecorded, "false")
	}
	if rep.err != nil {
		maps.Copy(c.w.Header(), rep.errHeader)
		return rep.err
	}
	if rep.body != nil {
		return c.passOn(rep)
	}
	if rep.answer.NotKept {
		return refuseIncomplete(rep).about(rep.job, c.g.store.Now())
	}
	if rep.recorded {
		c.known.put(rep.job, c.forgets, time.Now().Add(-rep.stored))
	}
	return c.deliver(writeAnswer(c.w, c.r.Method, rep.answer))
}
