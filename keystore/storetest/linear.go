package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func (l Load) withDefaults() Load {
	if l.Clients == 0 {
		l.Clients = 8
	}
	if l.Keys == 0 {
		l.Keys = 12
	}
	if l.Operations == 0 {
		l.Operations = 120
	}
	if l.Seed == 0 {
		l.Seed = 1
	}
	if l.Timeout == 0 {
		l.Timeout = 5 * time.Second
	}
	return l
}

// forever is the return time of an operation that may still take effect.
const forever = math.MaxInt64

// history is what happened in one run, seen at two heights: what clients did to
// jobs, and what the store was asked to do to records.
type history struct {
	start time.Time

	mu     sync.Mutex
	jobs   []porcupine.Operation // of jobInput and jobOutput
	writes []porcupine.Operation // of writeInput and writeOutput
	runs   map[string]map[keystore.Token]bool
}

func (h *history) now() int64 { return int64(time.Since(h.start)) }

// record lets clients fight for jobs on this backend.
func record(t *testing.T, b Backend, load Load) *history {
	t.Helper()
	h := &history{start: time.Now(), runs: make(map[string]map[keystore.Token]bool)}
	var wg sync.WaitGroup
	for i := range load.Clients {
		c := &client{
			history: h, load: load, id: i,
			store: &recorder{Store: b.Open(t), history: h, client: i},
			rnd:   rand.New(rand.NewPCG(load.Seed, uint64(i))),
			held:  make(map[string][]keystore.Token),
		}
		wg.Go(c.work)
	}
	wg.Wait()
	return h
}

// check reports what one store that does one thing at a time could not have
// answered.
func check(h *history) error {
	const limit = time.Minute
	if r := porcupine.CheckOperationsTimeout(writeModel(), seen(h.writes), limit); r != porcupine.Ok {
		return fmt.Errorf("history of %d writes and reads of records: linearizable: %s", len(h.writes), r)
	}
	if r := porcupine.CheckOperationsTimeout(jobModel(), h.jobs, limit); r != porcupine.Ok {
		return fmt.Errorf("history of %d operations on jobs: linearizable: %s", len(h.jobs), r)
	}
	for key, runs := range h.runs {
		alive := 0
		for _, ended := range runs {
			if !ended {
				alive++
			}
		}
		if alive > 1 {
			return fmt.Errorf("job %s: %d claims were told to run, and none of them had failed or was cancelled", key, alive)
		}
	}
	return nil
}

// client claims jobs and says what became of them.
type client struct {
	*history
	load  Load
	id    int
	store keystore.Store
	rnd   *rand.Rand
	held  map[string][]keystore.Token // attempts it was told to run, by key
}

func (c *client) work() {
	for range c.load.Operations {
		key := fmt.Sprintf("k%02d", c.rnd.IntN(c.load.Keys))
		held := c.held[key]
		p := c.rnd.IntN(100)
		if len(held) == 0 {
			switch {
			case p < 60:
				c.claim(key)
			case p < 85:
				c.resolve(key)
			default:
				c.read(key)
			}
			continue
		}
		token := held[c.rnd.IntN(len(held))]
		switch {
		case p < 12:
			c.report(key, token, keystore.OutcomeFinal)
		case p < 50:
			c.report(key, token, keystore.OutcomeFailed)
		case p < 80:
			c.report(key, token, keystore.OutcomeUnknown)
		case p < 90:
			c.claim(key)
		default:
			c.resolve(key)
		}
	}
}

// do runs one operation on a job and records it.
func (c *client) do(in jobInput, op func(ctx context.Context) (jobOutput, error)) jobOutput {
	ctx, cancel := context.WithTimeout(context.Background(), c.load.Timeout)
	defer cancel()
	call := c.now()
	out, err := op(ctx)
	end := c.now()
	if err != nil {
		out, end = jobOutput{verdict: "unknown"}, forever
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = append(c.jobs, porcupine.Operation{ClientId: c.id, Input: in, Output: out, Call: call, Return: end})
	return out
}

func (c *client) claim(key string) {
	j := starting(c.store, key)
	token := j.Attempts[0].Token
	aborted := keystore.AbortedClaim{Token: token, Written: j}
	out := c.do(jobInput{kind: "claim", key: key, token: token}, func(ctx context.Context) (jobOutput, error) {
		present, created, err := c.store.Create(ctx, j)
		if err != nil || created {
			return jobOutput{verdict: "run"}, err
		}
		claim := keystore.Claim{Token: token, Fingerprints: []keystore.Fingerprint{j.Fingerprint}, First: true}
		for {
			// A verdict other than these two says that the record does not list
			// this attempt: no earlier send of the claim has taken effect.
			switch v := keystore.Judge(present, claim, c.store.Now()); v {
			case keystore.Own:
				return jobOutput{verdict: "run"}, nil
			case keystore.OwnNotLive:
				return jobOutput{verdict: v.String(), maybe: true}, nil
			case keystore.Replay:
				return jobOutput{verdict: "replay", token: present.CompletedBy}, nil
			case keystore.Start:
				next := present.Start(keystore.NewAttempt{Token: token, At: c.store.Now(), Lease: time.Minute, Listen: time.Minute})
				next.WriteID = keystore.NewWriteID()
				aborted = keystore.AbortedClaim{Token: token, Written: next, Expected: present.WriteID}
				now, swapped, err := c.store.Swap(ctx, present.WriteID, next)
				if err != nil || swapped {
					return jobOutput{verdict: "run"}, err
				}
				present, claim.First = now, false
			default:
				return jobOutput{verdict: v.String()}, nil
			}
		}
	})
	switch out.verdict {
	case "run":
		c.held[key] = append(c.held[key], token)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.runs[key] == nil {
			c.runs[key] = make(map[keystore.Token]bool)
		}
		c.runs[key][token] = false
	case "unknown", keystore.OwnNotLive.String():
		c.abort(key, aborted)
	}
}

// abort makes an ambiguous claim definite, as a gateway would in the background.
func (c *client) abort(key string, a keystore.AbortedClaim) {
	c.do(jobInput{kind: "abort", key: key, token: a.Token}, func(ctx context.Context) (jobOutput, error) {
		present, err := c.store.Get(ctx, a.Written.Name)
		if err != nil {
			return jobOutput{}, err
		}
		for lost := false; ; lost = true {
			next, create := a.Next(present, c.store.Now())
			if next == nil {
				return jobOutput{verdict: "nothing", maybe: lost}, nil
			}
			next.WriteID = keystore.NewWriteID()
			var done bool
			if create {
				present, done, err = c.store.Create(ctx, next)
			} else {
				present, done, err = c.store.Swap(ctx, present.WriteID, next)
			}
			if err != nil || done {
				return jobOutput{verdict: "done"}, err
			}
		}
	})
}

// report says what became of an attempt.
func (c *client) report(key string, token keystore.Token, outcome keystore.Outcome) {
	kind := map[keystore.Outcome]string{
		keystore.OutcomeFinal: "commit", keystore.OutcomeFailed: "fail", keystore.OutcomeUnknown: "lose",
	}[outcome]
	if outcome == keystore.OutcomeFailed {
		c.ended(key, token) // from here on: it may take effect whatever is answered
	}
	c.do(jobInput{kind: kind, key: key, token: token}, func(ctx context.Context) (jobOutput, error) {
		present, err := c.store.Get(ctx, keystore.NameOf("main", "alice", key))
		for lost := false; ; lost = true {
			if err != nil {
				return jobOutput{}, err
			}
			if present == nil || present.Attempt(token) == nil {
				return jobOutput{verdict: "not there"}, nil
			}
			s := present.Report(keystore.Report{
				Token: token, Outcome: outcome, At: c.store.Now(), Listening: outcome == keystore.OutcomeUnknown,
				Response: &keystore.Response{Status: 200, Body: []byte(token.String()), Size: int64(2 * len(token))},
			})
			effect := s.Effect.String()
			if s.Effect == keystore.EffectAlreadyWon {
				effect = keystore.EffectWon.String()
			}
			if s.Next == nil {
				return jobOutput{verdict: effect, maybe: lost}, nil
			}
			s.Next.WriteID = keystore.NewWriteID()
			now, swapped, swapErr := c.store.Swap(ctx, present.WriteID, s.Next)
			if swapped {
				return jobOutput{verdict: effect}, nil
			}
			present, err = now, swapErr
		}
	})
}

// resolve decides on an unknown attempt, if there is one.
func (c *client) resolve(key string) {
	to := keystore.AttemptFailed
	if c.rnd.IntN(2) == 0 {
		to = keystore.AttemptCancelled
	}
	c.do(jobInput{kind: "resolve", key: key, to: to}, func(ctx context.Context) (jobOutput, error) {
		present, err := c.store.Get(ctx, keystore.NameOf("main", "alice", key))
		if err != nil {
			return jobOutput{}, err
		}
		token, found := unknownAttempt(present)
		if !found {
			return jobOutput{verdict: "nothing"}, nil
		}
		for lost := false; ; lost = true {
			next, err := present.Resolve(token, keystore.Resolution{State: to, Actor: "test", At: c.store.Now()}, nil)
			if errors.Is(err, keystore.ErrNotResolvable) { // somebody was quicker, or it was this very resolution
				return jobOutput{verdict: "too late", maybe: lost}, nil
			}
			if err != nil {
				return jobOutput{}, err
			}
			c.ended(key, token)
			next.WriteID = keystore.NewWriteID()
			now, swapped, err := c.store.Swap(ctx, present.WriteID, next)
			if err != nil {
				return jobOutput{}, err
			}
			if swapped {
				return jobOutput{verdict: "resolved", token: token}, nil
			}
			if now == nil {
				return jobOutput{verdict: "not there"}, nil
			}
			present = now
		}
	})
}

func unknownAttempt(j *keystore.Job) (keystore.Token, bool) {
	if j == nil || !j.CompletedBy.IsZero() {
		return keystore.Token{}, false
	}
	for i := range j.Attempts {
		if j.Attempts[i].State == keystore.AttemptUnknown {
			return j.Attempts[i].Token, true
		}
	}
	return keystore.Token{}, false
}

func (c *client) ended(key string, token keystore.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if runs := c.runs[key]; runs != nil {
		if _, run := runs[token]; run {
			runs[token] = true
		}
	}
}

func (c *client) read(key string) {
	c.do(jobInput{kind: "read", key: key}, func(ctx context.Context) (jobOutput, error) {
		j, err := c.store.Get(ctx, keystore.NameOf("main", "alice", key))
		switch {
		case err != nil:
			return jobOutput{}, err
		case j == nil:
			return jobOutput{verdict: "absent"}, nil
		}
		out := jobOutput{verdict: j.State(c.store.Now()).String(), token: j.LastAttempt().Token}
		if !j.CompletedBy.IsZero() {
			out.token = j.CompletedBy
			if string(j.Result.Body) != out.token.String() {
				out.verdict = "completed with the response of another attempt"
			}
		}
		return out, nil
	})
}
