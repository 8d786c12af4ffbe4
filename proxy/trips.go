package proxy

import (
	"fmt"
	"net/http"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Progress is how far a provider's chain has come.
type Progress struct {
	// Status is that of the latest answer of an upstream; zero if none has come.
	Status int
	// RetryAfter says that this answer tells when to come again.
	RetryAfter bool
}

// telling is a [Provider] that tells of its progress while it runs.
type telling interface{ Progress() Progress }

// progressOf returns what tells of a provider's progress; nil where nobody does.
func progressOf(p Provider) func() Progress {
	switch p := p.(type) {
	case introduced:
		return progressOf(p.Provider)
	case telling:
		return p.Progress
	}
	return nil
}

// trips are the round trips of a chain's proxies, but for the last one, whose answer
// says nothing of what became of the others. The trace's mutex guards them.
type trips struct {
	progress func() Progress // nil: nobody tells
	begun    int
	answers  []earlier
	lost     bool // one had a connection, and no answer by the time the next one began
	hidden   bool // one was of a transport that tells nothing, and had no answer by then
}

// earlier is an answer that was not the last one, or not the one that was given.
type earlier struct {
	Progress
	asked bool // it answered no more than a question about the request
}

// beginTrip is called when a proxy begins a round trip.
func (t *trace) beginTrip() {
	if t.trips.progress == nil {
		return
	}
	now, asked := t.trips.progress(), t.askedOnly()
	t.read.Store(false)
	t.inquired.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trips.begun++
	switch {
	case t.trips.begun == 1:
	case now.Status != 0:
		t.trips.answers = append(t.trips.answers, earlier{now, asked})
	case t.connected.Load() > 0:
		t.trips.lost = true
	case t.unseen() > 0:
		t.trips.hidden = true
	}
}

// askedOnly reports whether the latest round trip was no more than a question about
// the request, as forward_auth asks: without its body, or, where it has none, with a
// header that only a question has.
func (t *trace) askedOnly() bool {
	if t.bodyless {
		return t.inquired.Load()
	}
	return !t.read.Load()
}

// over returns the round trips of a chain that has ended, those included whose answer
// is not the given one.
func (t *trace) over(given int) trips {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.trips
	if all.begun > 0 {
		if last := all.progress(); last.Status != 0 && last.Status != given {
			all.answers = append(all.answers, earlier{last, t.askedOnly()})
		}
	}
	return all
}

// among returns what an answer proves that says that nothing has happened, where it was
// not the only thing that came of the attempt: a chain that asks a second upstream, or
// answers itself, where the first one has failed, gives the second one's word, which is
// no word about the first.
func (v verdict) among(seen observation, overrides map[int]keystore.Outcome) verdict {
	if v.outcome != keystore.OutcomeFailed || seen.answer == nil {
		return v
	}
	if why := seen.refuted(overrides); why != "" {
		v.outcome = keystore.OutcomeUnknown
		v.reason += ", but " + why
	}
	return v
}

// refuted says what else came of the attempt that may have been carried out; empty if
// nothing did.
func (o *observation) refuted(overrides map[int]keystore.Outcome) string {
	all := o.trace.over(o.answer.Status)
	if o.failure.Replaced.Status != 0 {
		all.answers = append(all.answers, earlier{Progress: o.failure.Replaced})
	}
	// That a proxy has tried again says that there was no connection before.
	if o.trace.headers.Load() > o.trace.firstByte.Load() || all.lost || all.hidden && !o.failure.Retried {
		return "an upstream that was asked before had not answered"
	}
	for _, e := range all.answers {
		if !e.denies(overrides) {
			return fmt.Sprintf("there was an answer with status %d before that", e.Status)
		}
	}
	return ""
}

// denies reports whether an answer says as well that nothing has happened, or that
// there was nobody who could have done it. One to a question about the request is of
// 200 to 299 where the request may go on. Of the others' statuses the route's word
// decides.
func (e earlier) denies(overrides map[int]keystore.Outcome) bool {
	header := make(http.Header)
	if e.RetryAfter {
		header.Set("Retry-After", "1")
	}
	outcome, overridden := overrides[e.Status]
	switch {
	case e.asked && e.Status >= 200 && e.Status < 300:
		return true
	case overridden:
		return outcome == keystore.OutcomeFailed
	case e.Status == http.StatusNotFound, e.Status == http.StatusMethodNotAllowed:
		return true
	}
	return outcomeOfStatus(e.Status, header) == keystore.OutcomeFailed
}
