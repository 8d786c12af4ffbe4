package proxy

import (
	"log/slog"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// replay gives the job's stored answer.
func (c *call) replay(j *keystore.Job) error {
	c.account.learn(j, c.g.store.Now())
	if may, err := c.mayReplay(); !may {
		return err
	}
	setJobHeaders(c.w.Header(), j)
	if j.Result.NotKept {
		return refuseNotKept(j.Result).about(j, c.g.store.Now())
	}
	answer, err := c.Keyring.OpenResponse(j)
	if err != nil {
		return c.refuseSealed(err, j)
	}
	if !c.recalled {
		c.known.put(j, c.forgets, c.began)
	}
	if c.account.Verdict == "" {
		c.account.Verdict = VerdictReplayed
	}
	defer c.traceReplay(j)()
	h := c.w.Header()
	h[HeaderReplayed] = []string{"true"}
	h[HeaderAnsweredAt] = []string{httpDate(answer.Answered.Std())}
	return c.deliver(writeAnswer(c.w, c.r.Method, answer))
}

// refuseSealed refuses a request whose job is encrypted and can't be read here.
func (c *call) refuseSealed(err error, j *keystore.Job) error {
	c.g.log.Error("a job's record can't be decrypted; requests with its key are refused as long as that is so",
		slog.String("job", j.ID), slog.Any("error", err))
	return refuseStore(err).about(j, c.g.store.Now())
}
