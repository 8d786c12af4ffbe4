package keystore

import (
	"bytes"
	"reflect"
	"slices"
)

// truth is what really became of one attempt, whatever the records say.
type truth struct {
	token    Token
	key      *simKey
	applied  bool         // a write that lists it got into the store
	state    AttemptState // in the last record that listed it
	begun    bool         // it reached the upstream
	effects  int          // how often the upstream did it
	silent   bool         // its gateway is gone, or said that it does not know
	aborted  bool         // its claim was given up; definite: for good
	definite bool
	faulted  bool // the store lost or rolled back a record that listed it
	erased   bool // and so there is no trace of it now
	gone     bool // its job expired or was forgotten
	sibling  bool // it was drawn to run beside others of its own request
}

func (tr *truth) response() *Response { return answer("of " + tr.token.String()) }

// broken is an answer of it that breaks the contract.
func (tr *truth) broken() *Response { return answer("odd, of " + tr.token.String()) }

// story is what clients were told of one job.
type story struct {
	input     string
	slot      Token   // in the last record
	createdBy WriteID // the write that its first record had
	told      Token   // the attempt whose client was told that it won
	replayed  *Response
	seen      bool // a record of it got into the store
	lost      bool // the store lost a record of it
	forgotten bool // an operator had it forgotten
}

func (s *sim) truth(t Token) *truth { return s.truths[t] }

// applies checks one change of a record against the rules, and notes it.
func (s *sim) applies(old, next *Job) {
	if next == nil {
		// Forgotten; or settled by a write that was longer on its way than the job
		// is kept, so that it settled and expired at once.
		if s.forgetting && (old.CompletedBy.IsZero() || old.MayReport(s.store.now)) {
			s.fail("a job was forgotten that is %s", old.State(s.store.now))
		}
		s.stories[old.ID].forgotten = true
		s.forget(old)
		return
	}
	st := s.stories[next.ID]
	if old == nil && st.seen && !st.lost {
		s.comesBack(st, next)
	}
	if old != nil {
		s.checkTransition(old, next)
	}
	if !st.seen {
		st.createdBy = next.WriteID
	}
	st.seen, st.slot = true, next.CompletedBy
	for i := range next.Attempts {
		s.checkAttempt(old, next, &next.Attempts[i])
	}
	s.broke(s.store.broken)
}

// comesBack notes that a job exists again that had come to its end. That can have
// three causes besides a loss, and all end safely: a claim that is sent once more
// after all that, which is a new claim in effect; its abort, which writes again
// that nothing was sent; or an operator who has the job forgotten between a report
// whose reply is lost and its repetition, which looks like a loss to the gateway.
func (s *sim) comesBack(st *story, j *Job) {
	repeated := j.WriteID == st.createdBy
	if harmless := j.State(s.store.now) == JobOpen && s.truth(j.Attempts[0].Token).aborted; harmless {
		st.told, st.replayed = Token{}, nil
		return
	}
	if !repeated && !st.forgotten {
		s.fail("job %s was created twice, and the store had not lost it", j.ID)
	}
	st.told, st.replayed = Token{}, nil
	for i := range j.Attempts {
		tr := s.truth(j.Attempts[i].Token)
		tr.gone, tr.applied, tr.faulted = false, !repeated, tr.faulted || !repeated
	}
}

func (s *sim) checkAttempt(old, j *Job, a *Attempt) {
	tr := s.truth(a.Token)
	if tr.gone { // its job was forgotten, and a gateway that knew nothing of that brought it back
		tr.gone, tr.faulted = false, true
	}
	if !tr.applied && a.State == AttemptStarting {
		s.checkStart(old, j, tr)
	}
	if tr.erased && old != nil {
		s.checkBroughtBack(old, j, a)
	}
	tr.applied, tr.state, tr.erased = true, a.State, false
	switch {
	case a.State == AttemptFailed && a.Resolution == nil && tr.effects > 0:
		s.fail("attempt %s is written down as failed, but was executed", a.Token)
	case tr.definite && a.Unresolved() && !tr.faulted && !s.stories[j.ID].lost:
		// After a loss an earlier send of a claim can put the same record there
		// again, and then the aborted swap that expects it lands too.
		s.fail("attempt %s is %s, after its claim was aborted", a.Token, a.State)
	case a.State == AttemptSucceeded && byCommit(j):
		if tr.effects == 0 || !reflect.DeepEqual(j.Result, tr.response()) {
			s.fail("attempt %s won with what is not its answer", a.Token)
		}
	case a.State == AttemptSucceeded && a.Resolution.Kept && !reflect.DeepEqual(j.Result, tr.broken()):
		s.fail("attempt %s was resolved with an answer that it has not kept", a.Token)
	}
}

// checkBroughtBack: what the store has lost comes back only to an open job, or to
// one that is open with the failures that were lost with it. Its
// claim alone, if the store went back to before that, can be applied a second
// time, or be aborted then; it starts as it would have the first time.
func (s *sim) checkBroughtBack(old, j *Job, a *Attempt) {
	tr := s.truth(a.Token)
	if tr.aborted {
		return
	}
	from := old
	if a.State == AttemptStarting {
		if from = j; tr.key.max > 0 {
			return
		}
	}
	for i := range from.Attempts {
		if b := &from.Attempts[i]; b.Token != a.Token && b.Unresolved() && !j.Attempt(b.Token).proved() {
			s.fail("%s attempt %s was brought back beside %s attempt %s", a.State, a.Token, b.State, b.Token)
		}
	}
	if !old.CompletedBy.IsZero() {
		s.fail("%s attempt %s was brought back to a completed job", a.State, a.Token)
	}
}

// checkStart is the first invariant: a new attempt starts only where no other one
// is starting or unknown, unless the route races. Attempts that the record does
// not list count too, but for those that the store itself has lost.
func (s *sim) checkStart(old, j *Job, starts *truth) {
	if !j.CompletedBy.IsZero() {
		s.fail("attempt %s starts on a completed job", starts.token)
	}
	for _, tr := range s.order {
		if tr.key != starts.key || tr == starts || !tr.applied || tr.gone || tr.erased {
			continue
		}
		state := tr.state
		if a := j.Attempt(tr.token); a != nil {
			state = a.State
		}
		racing := j.AttemptCount() <= tr.key.max
		if (state == AttemptStarting && (!racing || !starts.sibling)) || (state == AttemptUnknown && !racing) || state == AttemptSucceeded {
			s.fail("attempt %s starts, and attempt %s is %s", starts.token, tr.token, state)
		}
	}
	a := j.Attempt(starts.token)
	if a.Version != j.Version {
		s.fail("attempt %s starts with version %d, the job has %d", a.Token, a.Version, j.Version)
	}
	shares := slices.ContainsFunc(j.Attempts, func(b Attempt) bool { return b.Token != a.Token && b.Unresolved() })
	if old != nil && (j.Version == old.Version) != shares {
		s.fail("attempt %s starts, sharing is %v, and the version went from %d to %d", a.Token, shares, old.Version, j.Version)
	}
}

// byCommit reports whether the winner took the slot by its own answer.
func byCommit(j *Job) bool {
	res := j.Attempt(j.CompletedBy).Resolution
	return res == nil || res.State != AttemptSucceeded
}

// leads says which states an attempt can go to from each.
var leads = map[AttemptState][]AttemptState{
	AttemptStarting:  {AttemptSucceeded, AttemptFailed, AttemptUnknown, AttemptCancelled, AttemptDiscarded},
	AttemptUnknown:   {AttemptSucceeded, AttemptFailed, AttemptCancelled, AttemptDiscarded},
	AttemptFailed:    {AttemptSucceeded, AttemptDiscarded}, // after a resolution only
	AttemptCancelled: {AttemptDiscarded},
}

func (s *sim) checkTransition(old, next *Job) {
	if old.Name != next.Name || old.ID != next.ID || old.Space != next.Space || old.Owner != next.Owner || old.KeySent != next.KeySent ||
		old.Fingerprint != next.Fingerprint || old.Request != next.Request || old.Created != next.Created || old.Retention != next.Retention {
		s.fail("the identity changed from %+v to %+v", old, next)
	}
	completes := next.CompletedBy != old.CompletedBy
	switch {
	case completes && !old.CompletedBy.IsZero():
		s.fail("the slot went from %s to %s", old.CompletedBy, next.CompletedBy)
	case completes && byCommit(next) && next.Attempt(next.CompletedBy).Version != old.Version:
		s.fail("attempt %s took the slot of a job that had moved on", next.CompletedBy)
	case !completes && !reflect.DeepEqual(old.Result, next.Result):
		s.fail("the result changed from %+v to %+v", old.Result, next.Result)
	case next.Version < old.Version, completes && next.Version != old.Version+1:
		s.fail("the version went from %d to %d", old.Version, next.Version)
	case next.AttemptCount() < old.AttemptCount():
		s.fail("%d attempts became %d", old.AttemptCount(), next.AttemptCount())
	case !completes && !old.Expires.IsZero() && !next.Expires.IsZero() && old.Expires != next.Expires:
		s.fail("the expiry went from %d to %d", old.Expires, next.Expires)
	case next.Unresolved() != next.Expires.IsZero():
		s.fail("the job is %s and expires at %d", next.State(s.store.now), next.Expires)
	}
	for i := range old.Attempts {
		was := &old.Attempts[i]
		is := next.Attempt(was.Token)
		if is == nil {
			if was.Unresolved() || was.Token == next.CompletedBy || i == 0 {
				s.fail("%s attempt %s was dropped", was.State, was.Token)
			}
			continue
		}
		s.checkMove(next, was, is)
	}
}

func (s *sim) checkMove(next *Job, was, is *Attempt) {
	if !next.CompletedBy.IsZero() && is.Unresolved() {
		s.fail("attempt %s is %s beside a taken slot", is.Token, is.State)
	}
	if was.State == is.State {
		return
	}
	allowed := was.State != AttemptFailed || was.Resolution != nil
	found := false
	for _, to := range leads[was.State] {
		found = found || to == is.State
	}
	if !allowed || !found {
		s.fail("attempt %s went from %s to %s", is.Token, was.State, is.State)
	}
}

// begins notes that an attempt reaches its upstream, and checks that it may.
func (s *sim) begins(t Token) *truth {
	tr := s.truth(t)
	switch {
	case !tr.applied:
		s.fail("attempt %s is dispatched without a claim", t)
	case tr.aborted:
		s.fail("attempt %s is dispatched, but its claim was aborted", t)
	case tr.begun:
		s.fail("attempt %s is dispatched twice", t)
	case tr.state != AttemptStarting && !tr.faulted:
		s.fail("attempt %s is dispatched, but the record says %s", t, tr.state)
	}
	tr.begun = true
	return tr
}

func (s *sim) effect(t Token) {
	tr := s.truth(t)
	tr.effects++
	j, _ := s.store.get(tr.key.name)
	if j == nil {
		return
	}
	if a := j.Attempt(t); a != nil && a.State == AttemptFailed && a.Resolution == nil {
		s.fail("attempt %s executes, and the record says that it had failed for certain", t)
	}
}

// replays checks an answer that somebody gets from the record.
func (s *sim) replays(j *Job) {
	st := s.stories[j.ID]
	if st.replayed != nil && !reflect.DeepEqual(st.replayed, j.Result) {
		s.fail("job %s was replayed as %q, and now as %q", j.ID, st.replayed.Body, j.Result.Body)
	}
	if !st.told.IsZero() && st.told != j.CompletedBy {
		s.fail("the client of %s was told that it won, and the answer of %s is replayed", st.told, j.CompletedBy)
	}
	st.replayed = j.Result
}

// tellsWon checks what the client of an attempt is told by itself.
func (s *sim) tellsWon(t Token, j *Job) {
	st, tr := s.stories[j.ID], s.truth(t)
	if !st.told.IsZero() && st.told != t {
		s.fail("%s and %s were both told that they won", st.told, t)
	}
	if st.slot != t && !tr.faulted {
		s.fail("%s was told that it won, and the slot has %s", t, st.slot)
	}
	if st.replayed != nil && !bytes.Equal(st.replayed.Body, tr.response().Body) {
		s.fail("%s was told that it won, and %q had been replayed", t, st.replayed.Body)
	}
	if st.slot == t {
		st.told = t
	}
}

// contradictionSeen checks that a success against a resolution did not pass unseen.
func (s *sim) contradictionSeen(t Token, j *Job, flagged bool) {
	if j == nil || flagged {
		return
	}
	a := j.Attempt(t)
	if a == nil || a.Resolution == nil {
		return
	}
	if a.Resolution.State != AttemptSucceeded || !reflect.DeepEqual(j.Result, s.truth(t).response()) {
		s.fail("attempt %s answered, it had been resolved as %s, and nobody is told", t, a.Resolution.State)
	}
}

// checkAborted: whatever the ambiguous write would have said of other attempts,
// and is true, is in the record.
func (s *sim) checkAborted(c AbortedClaim) {
	j, _ := s.store.get(c.Written.Name)
	if j == nil {
		return
	}
	for i := range c.Written.Attempts {
		w := &c.Written.Attempts[i]
		if w.State != AttemptFailed || w.Resolution != nil || s.truth(w.Token).faulted {
			continue
		}
		if a := j.Attempt(w.Token); a != nil && a.Unresolved() {
			s.fail("attempt %s failed, and the aborted failover left it %s", w.Token, a.State)
		}
	}
	if a := j.Attempt(c.Token); a != nil && a.Unresolved() && !s.truth(c.Token).faulted {
		s.fail("attempt %s is %s, after its claim was aborted", c.Token, a.State)
	}
}

// expires notes that a record's time was up.
func (s *sim) expires(j *Job) {
	if j.Unresolved() {
		s.fail("an unresolved job expired")
	}
	s.forget(j)
}

func (s *sim) forget(j *Job) {
	st := s.stories[j.ID]
	st.told, st.replayed = Token{}, nil
	for _, tr := range s.order {
		if tr.key.name == j.Name && tr.applied {
			tr.gone = true
		}
	}
}

// faults notes that the store now has this record (nil: none) where it had another.
func (s *sim) faults(before, now *Job) {
	st := s.stories[before.ID]
	st.lost = true
	if now == nil || now.CompletedBy.IsZero() {
		st.told, st.replayed = Token{}, nil // another attempt may win now
	}
	for _, tr := range s.order {
		var a *Attempt
		if now != nil {
			a = now.Attempt(tr.token)
		}
		if tr.key.name != before.Name || (tr.gone && a == nil) {
			continue
		}
		tr.faulted, tr.gone = true, false
		if a == nil {
			tr.erased = tr.applied
		} else {
			tr.state, tr.erased = a.State, false
		}
	}
}
