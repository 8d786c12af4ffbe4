package keystore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sim is one store, the requests of a few gateways on it, operators, and a
// ledger of what is true. A run is a list of actions; each is interpreted against
// what is there, so that a list can be cut down to the ones that matter.
type sim struct {
	store      *simStore
	keys       []*simKey
	actors     []*actor
	parked     []write
	truths     map[Token]*truth
	order      []*truth // the same, in the order in which they were drawn
	stories    map[string]*story
	drawn      uint64
	forgetting bool // an operator's write is being applied that forgets a job
	broken     string
}

// simKey is a key of some owner with the settings of its route.
type simKey struct {
	name      Name
	key       string
	max       int // attempts of a racing route; zero: it does not race
	failsOver bool
}

type action struct{ Kind, Which, How int }

const (
	actStep = iota
	actRequest
	actAdvance
	actLand
	actResolve
	actCrash
	actForget
	actLose
	actRollBack
)

const gateways = 3

func drawActions(t *rapid.T, faults bool) []action {
	kinds := []int{
		actStep, actStep, actStep, actStep, actStep, actStep, actStep, actStep, actRequest, actRequest,
		actRequest, actAdvance, actAdvance, actLand, actResolve, actResolve, actCrash, actForget,
	}
	if faults {
		kinds = append(kinds, actLose, actLose, actRollBack, actRollBack)
	}
	one := rapid.Custom(func(t *rapid.T) action {
		return action{
			Kind:  rapid.SampledFrom(kinds).Draw(t, "kind"),
			Which: rapid.IntRange(0, 7).Draw(t, "which"),
			How:   rapid.IntRange(0, modes-1).Draw(t, "how"),
		}
	})
	// Left to itself, a list has some five elements. Lists of lists of lists are
	// long enough, and can still be cut down to nothing.
	lists := rapid.SliceOf(rapid.SliceOf(rapid.SliceOf(one))).Draw(t, "actions")
	return slices.Concat(slices.Concat(lists...)...)
}

func newSim(max int, failsOver bool) *sim {
	s := &sim{store: newSimStore(), truths: map[Token]*truth{}, stories: map[string]*story{}}
	s.store.now, s.store.applied, s.store.gone = epoch, s.applies, s.expires
	for _, key := range []string{"k1", "k2"} {
		s.keys = append(s.keys, &simKey{name: NameOf("main", "alice", key), key: key, max: max, failsOver: failsOver})
	}
	return s
}

func (s *sim) fail(format string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf(format, args...)
	}
}

func (s *sim) broke(err error) {
	if err != nil {
		s.fail("%v", err)
	}
}

// Tokens, write ids and job ids are counted, so that a run repeats exactly.

func (s *sim) newToken(key *simKey) (t Token) {
	s.drawn++
	binary.BigEndian.PutUint64(t[:], s.drawn)
	s.truths[t] = &truth{token: t, key: key}
	s.order = append(s.order, s.truths[t])
	return t
}

func (s *sim) newWrite(j *Job) *Job {
	s.drawn++
	c := *j
	binary.BigEndian.PutUint64(c.WriteID[:], s.drawn)
	return &c
}

func (s *sim) identity(key *simKey, input string) Job {
	s.drawn++
	j := identity()
	j.Name, j.ID, j.KeySent = key.name, fmt.Sprintf("%s.%08x", key.name, s.drawn), key.key
	j.Fingerprint, j.Created = fingerprint(1, input), s.store.now
	s.stories[j.ID] = &story{input: input}
	return j
}

func (s *sim) inputOf(id string) string { return s.stories[id].input }

func (s *sim) do(a action) {
	s.store.now++
	switch a.Kind {
	case actStep:
		if i := s.alive(a.Which); i >= 0 {
			s.actors[i].step(a.How)
		}
	case actRequest:
		input := "pay 10"
		if a.How == modes-1 {
			input = "pay 99"
		}
		s.request(a.How%gateways, s.keys[(a.Which/4)%len(s.keys)], input)
	case actAdvance:
		steps := []time.Duration{time.Second, lease/2 + time.Second, lease, lease / 3, listen, retention}
		d := steps[a.Which%len(steps)]
		if d == retention {
			s.parked = nil // nothing stays on its way as long as that
		}
		s.store.now = s.store.now.Add(d)
	case actLand:
		if len(s.parked) > 0 {
			i := a.Which % len(s.parked)
			w := s.parked[i]
			s.parked = slices.Delete(s.parked, i, i+1)
			s.store.apply(w)
		}
	case actResolve:
		s.resolve(s.keys[a.Which%len(s.keys)], a.How)
	case actCrash:
		for _, r := range s.actors {
			if r.gateway == a.How%gateways && !r.done {
				r.crash()
			}
		}
	case actForget:
		s.forgets(s.keys[a.Which%len(s.keys)])
	case actLose, actRollBack:
		s.fault(s.keys[a.Which%len(s.keys)], a)
	}
}

// alive returns the index of one of the actors that are not done, or -1.
func (s *sim) alive(which int) int {
	var at []int
	for i, a := range s.actors {
		if !a.done {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return -1
	}
	return at[which%len(at)]
}

// resolve is an operator, who may decide wrongly.
func (s *sim) resolve(key *simKey, how int) {
	j, _ := s.store.get(key.name)
	if j == nil {
		return
	}
	if next := j.Lapse(s.store.now); next != nil {
		next = s.newWrite(next)
		s.store.apply(write{expected: j.WriteID, job: next})
		j = next
	}
	states := []AttemptState{AttemptFailed, AttemptCancelled, AttemptSucceeded}
	res := Resolution{State: states[how%3], Actor: "op", At: s.store.now}
	for i := range j.Attempts {
		a := &j.Attempts[i]
		resp := answer("resolved")
		if res.Kept = res.State == AttemptSucceeded && a.Kept != nil; res.Kept {
			resp = nil
		}
		next, err := j.Resolve(a.Token, res, resp)
		if (err == nil) != (a.State == AttemptUnknown && j.CompletedBy.IsZero()) {
			s.fail("attempt %s of a job that is %s was to be resolved, it is %s: %v", a.Token, j.State(s.store.now), a.State, err)
		}
		if err == nil {
			s.store.apply(write{expected: j.WriteID, job: s.newWrite(next)})
			return
		}
	}
}

func (s *sim) forgets(key *simKey) {
	j, _ := s.store.get(key.name)
	if j == nil {
		return
	}
	next, err := j.Forget(s.store.now)
	if err != nil {
		return
	}
	// An operator is slower than a request on its way: nothing of the time before
	// lands after it.
	s.parked = slices.DeleteFunc(s.parked, func(w write) bool { return w.job.Name == key.name })
	s.forgetting = true
	s.store.apply(write{expected: j.WriteID, job: s.newWrite(next)})
	s.forgetting = false
}

// fault makes the store forget what it had acknowledged.
func (s *sim) fault(key *simKey, a action) {
	j, _ := s.store.get(key.name)
	if j == nil {
		return
	}
	if a.Kind == actLose {
		s.store.drop(key.name)
		s.faults(j, nil)
		return
	}
	history := s.store.history[key.name]
	at := len(history) - 2 - a.How
	if at < 0 {
		return
	}
	was := s.store.decode(key.name, history[at])
	if was.ID != j.ID || (!was.Expires.IsZero() && was.Expires <= s.store.now) {
		return
	}
	s.store.records[key.name] = history[at]
	s.store.history[key.name] = history[:at+1]
	s.faults(j, was)
}

// quiesce lets everything come to its end: requests, parked writes, leases.
func (s *sim) quiesce() {
	for steps := 0; ; steps++ {
		i := s.alive(0)
		if i < 0 || s.broken != "" {
			break
		}
		if steps == 5000 {
			s.fail("a request does not come to an end")
			return
		}
		s.store.now++
		s.actors[i].step(0)
	}
	for _, w := range s.parked {
		s.store.apply(w)
	}
	s.store.now = s.store.now.Add(max(lease, listen) + time.Second)
}

// checkNotStuck: each job is completed, open, or unknown for a reason, and what
// is not completed accepts a claim in the end.
func (s *sim) checkNotStuck(key *simKey) {
	j, _ := s.store.get(key.name)
	if j == nil {
		return
	}
	if next := j.Lapse(s.store.now); next != nil {
		next = s.newWrite(next)
		s.store.apply(write{expected: j.WriteID, job: next})
		j = next
	}
	if j.State(s.store.now) == JobCompleted {
		return
	}
	if !j.Expires.IsZero() && j.Unresolved() {
		s.fail("an unresolved job expires at %d", j.Expires)
	}
	for i := range j.Attempts {
		a := &j.Attempts[i]
		if !a.Unresolved() {
			continue
		}
		if tr := s.truth(a.Token); !tr.silent && !tr.faulted && !s.stories[j.ID].lost {
			s.fail("attempt %s is left %s (%s), although its gateway told all", a.Token, a.State, a.Reason)
		}
		next, err := j.Resolve(a.Token, Resolution{State: AttemptFailed, At: s.store.now}, nil)
		if err != nil {
			s.fail("attempt %s can't be resolved: %v", a.Token, err)
			return
		}
		next = s.newWrite(next)
		s.store.apply(write{expected: j.WriteID, job: next})
		j = next
	}
	c := Claim{Token: s.newToken(key), Fingerprints: []Fingerprint{j.Fingerprint}, First: true}
	if v := Judge(j, c, s.store.now); v != Start {
		s.fail("a fresh claim on a settled job is judged %s", v)
		return
	}
	next := s.newWrite(j.Start(NewAttempt{Token: c.Token, At: s.store.now, Lease: lease, Listen: listen}))
	if _, ok := s.store.apply(write{expected: j.WriteID, job: next}); !ok {
		s.fail("a fresh claim on a settled job was refused")
	}
}

func (s *sim) close() {
	for _, a := range s.actors {
		a.stop()
	}
}

// run executes the actions, checking the ledger after each.
func (s *sim) run(t interface{ Fatalf(string, ...any) }, actions []action) {
	defer s.close()
	for i, a := range actions {
		s.do(a)
		s.broke(s.store.broken)
		if s.broken != "" {
			t.Fatalf("action %d: %s", i, s.broken)
		}
	}
	s.quiesce()
	for _, key := range s.keys {
		if s.broken == "" {
			s.checkNotStuck(key)
		}
	}
	if s.broke(s.store.broken); s.broken != "" {
		t.Fatalf("in the end: %s", s.broken)
	}
}

// The invariants, over random interleavings of requests, operators, crashes,
// pauses and lost, late and repeated messages, on a store that keeps its word.
func TestInvariantsUnderRandomInterleavings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "max attempts")
		newSim(max, rapid.Bool().Draw(t, "fails over")).run(t, drawActions(t, false))
	})
}

// The same on a store that loses records and rolls them back. What that excuses is
// only what the loss made impossible to know.
func TestInvariantsUnderStoreLoss(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		max := rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "max attempts")
		newSim(max, rapid.Bool().Draw(t, "fails over")).run(t, drawActions(t, true))
	})
}
