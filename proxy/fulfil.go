package proxy

import (
	"slices"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// fulfilment is what a request does about its job: the attempt that it has
// claimed, and those that follow, because one certainly had no effect, or
// because the route races.
type fulfilment struct {
	*call
	told  chan reply // what comes of the attempts, each once
	hints chan hint  // what may be told the client before that

	running int              // attempts that have yet to tell
	tokens  []keystore.Token // of the attempts
	job     *keystore.Job    // as the last of them was started
	unknown *reply           // of an attempt of which it is unknown whether it was executed
	failed  *reply           // of the last attempt that certainly had no effect, with an answer if one had

	mu    sync.Mutex
	tried []string // providers that were chosen; attempts choose their followers themselves
	over  bool     // the request has its answer, and starts nothing any more
}

// run runs the attempt that this request has claimed, and answers with what
// comes of it. It does not ask whether the client is still there: one that has
// closed only its sending side looks just like one that has left.
func (c *call) run(job *keystore.Job, sent time.Time) error {
	f := &fulfilment{call: c, told: make(chan reply, max(1, min(c.MaxAttempts, len(c.Providers)))), hints: make(chan hint, hintsHeld)}
	return c.answer(f.fulfil(claimed{job, c.claim.Token, sent}), sent)
}

// fulfil starts the first attempt and returns what comes of it and its followers.
func (f *fulfilment) fulfil(first claimed) reply {
	defer f.end() // also where a hint to the client panics
	f.start(first)
	return f.await()
}

// tell takes what comes of an attempt. It reports whether anybody will hear it.
func (f *fulfilment) tell(rep reply) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	f.told <- rep // there is room for what every attempt tells once
	return true
}

// end lets no attempt follow any more. One that was claimed for this request in
// the last moment is never dispatched.
func (f *fulfilment) end() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	for {
		select {
		case rep := <-f.told:
			if rep.next != nil {
				f.g.abort(keystore.AbortedClaim{Token: rep.next.token, Written: rep.next.job}, false)
			}
		default:
			return
		}
	}
}

// start starts the attempt whose claim was written.
func (f *fulfilment) start(n claimed) {
	provider := n.job.Attempt(n.token).Provider
	f.mu.Lock()
	f.try(provider)
	f.mu.Unlock()
	f.tokens = append(f.tokens, n.token)
	f.job = n.job
	f.running++
	f.dispatch(dispatch{
		claimed: n, request: f.r, traced: f.traced, keySent: f.keySent, deadline: f.began.Add(f.Timeout),
		body: f.body, provider: introduced{f.providerOf(n, provider), f.w.Header()["Server"]},
		tell: f.tell, hints: f.hints, follow: f.follow,
	})
}

// providerOf returns what runs the attempt, which is never dispatched if asking for
// that panics.
func (f *fulfilment) providerOf(n claimed, name string) Provider {
	returned := false
	defer func() {
		if !returned {
			f.g.abort(keystore.AbortedClaim{Token: n.token, Written: n.job}, false)
		}
	}()
	p := f.x.Provider(name)
	returned = true
	return p
}

// try notes that a provider was chosen. The caller holds mu.
func (f *fulfilment) try(provider string) {
	if !slices.Contains(f.tried, provider) {
		f.tried = append(f.tried, provider)
	}
}

// untry takes that back, where nothing was written of it.
func (f *fulfilment) untry(provider string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried = slices.DeleteFunc(f.tried, func(tried string) bool { return tried == provider })
}

// choose returns the provider of one more attempt, after another one; empty if
// there is none, or no room for it.
func (f *fulfilment) choose(j *keystore.Job, after string) string {
	for {
		tried, room := f.triedUpTo(f.MaxAttempts)
		if !room {
			return ""
		}
		// Without the lock, since whether a provider may be used is asked of the
		// store: an answer that has come in the meantime must not wait for that.
		provider := f.otherProvider(j, after, slices.Concat(tried, j.Busy()))
		if provider == "" || f.take(provider) {
			return provider
		}
	}
}

// triedUpTo returns the providers that were chosen, and whether there may be one
// more, of so many.
func (f *fulfilment) triedUpTo(most int) (tried []string, room bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tried), !f.over && len(f.tried) < min(most, len(f.Providers))
}

// take chooses a provider, unless somebody has done so by now.
func (f *fulfilment) take(provider string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || slices.Contains(f.tried, provider) || len(f.tried) >= f.MaxAttempts {
		return false
	}
	f.try(provider)
	return true
}

// follow chooses the attempt that is to follow one that certainly had no effect,
// if one is. It is called in that attempt's goroutine.
func (f *fulfilment) follow(failed *attempt) (next keystore.NewAttempt, ok bool) {
	if f.NoFailover || f.g.stopping() || !time.Now().Before(failed.deadline) {
		return next, false
	}
	provider := f.choose(failed.lastSeen(), failed.provider)
	return f.newAttempt(keystore.NewToken(), provider), provider != ""
}

// await returns what comes of the attempts, and passes on the hints that come
// before, unless nothing is to go to the client before its answer has held: where
// several attempts run at once nobody knows whose hints will be true, and under a
// contract not whether they are the job's at all.
func (f *fulfilment) await() reply {
	race, stop := f.startRace()
	defer stop()
	hints := f.hints
	if f.commitsFirst() {
		hints = nil
	}
	for {
		select {
		case h := <-hints:
			f.inform(h)
		case <-race.due:
			race.next(f.startSibling())
		case <-race.changed:
			race.look()
		case rep := <-f.told:
			f.running--
			f.account.Store += rep.stored
			if rep.job == nil {
				rep.job = f.job
			}
			if final, done := f.settle(rep); done {
				f.lastHints(hints)
				return final
			}
		}
	}
}

// settle takes what one attempt tells, and returns what the request is to be
// told if that is clear by now.
func (f *fulfilment) settle(rep reply) (final reply, done bool) {
	switch {
	case rep.next != nil:
		f.keep(rep)
		f.start(*rep.next)
		return rep, false
	case rep.superseded:
		// If the winner is one of our own, it is about to tell.
		return rep, f.running == 0 || !slices.Contains(f.tokens, rep.job.CompletedBy)
	case rep.final():
		return rep, true
	}
	f.keep(rep)
	if f.running > 0 {
		return rep, false
	}
	if f.unknown != nil {
		if started, _ := f.startSibling(); started {
			return rep, false
		}
	}
	switch {
	case f.unknown != nil:
		return *f.unknown, true
	case (f.failed != nil || rep.outcome == keystore.OutcomeFailed) && f.othersUnresolved(rep.job):
		return reply{job: rep.job, refusal: f.refuseUnknown()}, true
	case f.failed != nil: // also where what followed comes to no more than a refusal of ours
		f.failed.job = rep.job
		return *f.failed, true
	}
	return rep, true
}

// othersUnresolved reports whether an attempt of another request may have been
// executed. That this one's have failed is then no answer.
func (f *fulfilment) othersUnresolved(j *keystore.Job) bool {
	return slices.ContainsFunc(j.Attempts, func(a keystore.Attempt) bool {
		return a.Unresolved() && !slices.Contains(f.tokens, a.Token)
	})
}

// keep remembers what one attempt tells that does not settle the request by
// itself: the client gets the last real answer if there is no better one.
func (f *fulfilment) keep(rep reply) {
	rep.next = nil
	switch {
	case rep.unknown():
		f.unknown = &rep
	case rep.refusal == nil && (rep.answer != nil || rep.err != nil) && (rep.answer != nil || f.failed == nil || f.failed.answer == nil):
		f.failed = &rep
	}
}

// lastHints passes on the hints that came before the answer.
func (f *fulfilment) lastHints(hints <-chan hint) {
	for {
		select {
		case h := <-hints:
			f.inform(h)
		default:
			return
		}
	}
}
