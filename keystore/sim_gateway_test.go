package keystore

import "iter"

// An actor is one request on one gateway, from its claim to the last word on its
// attempts. It is a coroutine: between any two of its calls to the store and
// its upstream everything else can happen, its own end included.
type actor struct {
	sim     *sim
	gateway int
	key     *simKey
	input   string
	tokens  []Token // of all attempts that it ever drew
	next    func() (pause, bool)
	stop    func()
	yield   func(pause) bool
	wants   pause
	mode    int
	done    bool

	// Of the attempt at hand: its token, when its claim was first sent, the record
	// that is believed to be in the store, and the last one seen to list it.
	token         Token
	sent          Time
	present, last *Job
}

// pause says what an actor waits for.
type pause int

const (
	forStore pause = iota
	forUpstream
)

// How the store, and the network before it, treat one call.
const (
	lostReply = 6 + iota // applied, but nobody learns of it
	parked               // applied at some later time, if ever
	dropped              // never applied
	resent               // sent again by the client library, whose second reply counts
	modes
)

// What an upstream does with a request.
const (
	answers = iota
	provesFailure
	breaksAfterEffect
	breaksWithoutEffect
	timesOut // and may still answer
	renews
	breaksContract // after the effect
	races          // for so long that a sibling is started
)

type crashed struct{}

func (s *sim) request(gateway int, key *simKey, input string) {
	s.spawn(&actor{sim: s, gateway: gateway, key: key, input: input}, (*actor).run)
}

// spawn starts an actor, which goes on to its first pause.
func (s *sim) spawn(a *actor, run func(*actor)) {
	a.next, a.stop = iter.Pull(func(yield func(pause) bool) {
		defer func() {
			if r := recover(); r != nil && r != any(crashed{}) {
				panic(r)
			}
		}()
		a.yield = yield
		run(a)
	})
	s.actors = append(s.actors, a)
	a.step(0)
}

// step lets the actor go on to its next pause. Mode is what comes of the one it is in.
func (a *actor) step(mode int) {
	a.mode = mode
	wants, more := a.next()
	a.wants, a.done = wants, !more
}

func (a *actor) crash() {
	a.stop()
	a.done = true
	for _, t := range a.tokens {
		a.sim.truth(t).silent = true
	}
}

func (a *actor) pause(p pause) int {
	if !a.yield(p) {
		panic(crashed{})
	}
	return a.mode
}

type reply int

const (
	applied reply = iota
	refused
	ambiguous
	outdated // not sent: it settles the job, and what it would settle has expired by now
)

// send sends a write up to n times, as long as nobody knows what became of it.
func (a *actor) send(w write, n int) (*Job, reply) {
	for range n {
		mode := a.pause(forStore)
		if e := w.job.Expires; !e.IsZero() && e <= a.sim.store.now {
			return nil, outdated
		}
		switch mode {
		case lostReply:
			a.sim.store.apply(w)
			continue
		case parked:
			a.sim.parked = append(a.sim.parked, w)
			continue
		case dropped:
			continue
		case resent:
			a.sim.store.apply(w)
		}
		present, done := a.sim.store.apply(w)
		if done {
			return w.job, applied
		}
		return present, refused
	}
	return nil, ambiguous
}

const untilDefinite = 1 << 30

func (a *actor) get() *Job {
	for a.pause(forStore) >= lostReply {
		continue // the store does not answer
	}
	j, _ := a.sim.store.get(a.key.name)
	return j
}

func (a *actor) draw() NewAttempt {
	a.token, a.sent = a.sim.newToken(a.key), a.sim.store.now
	a.tokens = append(a.tokens, a.token)
	return NewAttempt{Token: a.token, At: a.sent, Lease: lease, Listen: listen}
}

// run goes the road of one request: claim, judge, dispatch or answer.
func (a *actor) run() {
	n := a.draw()
	c := Claim{Token: a.token, Fingerprints: []Fingerprint{fingerprint(1, a.input)}, First: true, MaxAttempts: a.key.max}
	w := write{create: true, job: a.sim.newWrite(NewJob(a.sim.identity(a.key, a.input), n))}
	for {
		present, r := a.send(w, 2)
		claim := AbortedClaim{Token: a.token, Written: w.job, Expected: w.expected}
		if r == ambiguous {
			a.abort(claim)
			return
		}
		if r == refused && !w.create {
			c.First = false
		}
		if r == applied {
			a.dispatch(claim, w.job)
			return
		}
		present, verdict := a.read(&c, present)
		switch verdict {
		case Own:
			a.dispatch(claim, present)
			return
		case OwnNotLive:
			a.abort(claim)
			return
		case Start, StartSibling:
			if !c.First {
				a.sim.fail("one who has waited was told to %s", verdict)
			}
			n.At = a.sim.store.now
			w = write{expected: present.WriteID, job: a.sim.newWrite(present.Start(n))}
		case Create:
			a.sim.fail("a claim that met a record was told to create one")
			return
		default:
			return
		}
	}
}

// read judges the record until there is something to do or to answer.
func (a *actor) read(c *Claim, j *Job) (*Job, Verdict) {
	for range 4 {
		v := Judge(j, *c, a.sim.store.now)
		if own := v == Own || v == OwnNotLive || j == nil; !own && (v == Conflict) != (a.input != a.sim.inputOf(j.ID)) {
			a.sim.fail("input %q met the job of %q: %s", a.input, a.sim.inputOf(j.ID), v)
		}
		switch v {
		case Wait:
			c.First = false
			j = a.get()
		case Lapsed:
			c.First = false
			next := a.sim.newWrite(j.Lapse(a.sim.store.now))
			present, r := a.send(write{expected: j.WriteID, job: next}, 2)
			if j = present; r == ambiguous {
				j = a.get()
			}
		case Replay:
			a.sim.replays(j)
			return j, v
		default:
			return j, v
		}
	}
	return j, Wait
}

// dispatch is the last statement before the upstream.
func (a *actor) dispatch(claim AbortedClaim, j *Job) {
	if a.sim.store.now.Sub(a.sent) > lease/2 {
		a.abort(claim)
		return
	}
	a.present, a.last = j, j
	a.execute()
}

func (a *actor) execute() {
	truth := a.sim.begins(a.token)
	listening := false
	for {
		switch a.pause(forUpstream) {
		case provesFailure:
			r := Report{Outcome: OutcomeFailed, Reason: "never sent"}
			if a.key.failsOver && len(a.tokens) < 3 {
				a.failover(r)
			} else {
				a.report(r, untilDefinite)
			}
			return
		case breaksAfterEffect:
			a.sim.effect(a.token)
			a.report(Report{Outcome: OutcomeUnknown, Reason: "cut"}, untilDefinite)
			truth.silent = true
			return
		case breaksWithoutEffect:
			a.report(Report{Outcome: OutcomeUnknown, Reason: "cut"}, untilDefinite)
			truth.silent = true
			return
		case timesOut:
			if !listening {
				a.report(Report{Outcome: OutcomeUnknown, Listening: true, Reason: "timeout"}, untilDefinite)
			}
			listening = true
		case renews:
			a.report(Report{Outcome: OutcomeRunning}, 1)
		case breaksContract:
			a.sim.effect(a.token)
			a.report(Report{
				Outcome: OutcomeUnknown, Reason: "breaks the contract", Kept: truth.broken(),
				Violation: &Violation{Path: "/a", Expected: "string", Found: "number"},
			}, untilDefinite)
			truth.silent = true
			return
		case races:
			if a.key.max > 0 {
				of := a.token
				a.sim.spawn(&actor{sim: a.sim, gateway: a.gateway, key: a.key, input: a.input}, func(b *actor) { b.race(of) })
			}
		default:
			a.sim.effect(a.token)
			s := a.report(Report{Outcome: OutcomeFinal, Response: truth.response()}, untilDefinite)
			a.sim.contradictionSeen(a.token, a.present, s.Contradicts)
			switch {
			case listening:
			case s.Effect == EffectWon || s.Effect == EffectAlreadyWon:
				a.sim.tellsWon(a.token, a.present)
			case a.present != nil && !a.present.CompletedBy.IsZero():
				a.sim.replays(a.present)
			}
			return
		}
	}
}

// settle applies a report to the record that is believed to be there.
func (a *actor) settle(r Report) Settlement {
	r.Token, r.At = a.token, a.sim.store.now
	if r.Outcome == OutcomeRunning {
		r.Lease = r.At.Add(lease)
	}
	if a.present != nil && a.present.Attempt(a.token) != nil {
		a.last = a.present
		return a.present.Report(r)
	}
	return Recover(a.present, a.last, r)
}

// report brings a report into the store, up to n sends of each write.
func (a *actor) report(r Report, n int) Settlement {
	contradicts := false
	for {
		if own := a.last.Attempt(a.token); a.sim.store.now > own.ListensUntil {
			a.sim.truth(a.token).silent = true // its gateway gave up on it long ago
			return Settlement{Contradicts: true}
		}
		s := a.settle(r)
		contradicts = contradicts || s.Contradicts
		s.Contradicts = contradicts
		if s.Next == nil {
			return s
		}
		w := write{create: s.Recreates, job: a.sim.newWrite(s.Next)}
		if a.present != nil {
			w.expected = a.present.WriteID
		}
		present, got := a.send(w, n)
		switch got {
		case ambiguous:
			return s
		case outdated:
			a.present = a.get()
		case applied:
			a.present, a.last = present, present
			return s
		default:
			a.present = present
		}
	}
}
