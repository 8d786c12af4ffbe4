package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Kinds of violations.
const (
	// Twice: a job was executed more than once, without a reason that permits it.
	Twice = "executed twice"
	// Resent: one attempt has reached the upstream more than once.
	Resent = "attempt sent twice"
	// Unclaimed: an execution names no attempt of a job, or nobody's request can
	// have led to it.
	Unclaimed = "executed without a claim"
	// Differ: one job has been given two answers.
	Differ = "two answers for one job"
	// Contradicted: what was answered as recorded was not the answer later.
	Contradicted = "answer contradicted"
	// Foreign: an answer is one that the request's own job never had.
	Foreign = "answer of something else"
	// Stuck: with all faults over, a key gets no answer, though nothing is unknown.
	Stuck = "key stuck"
)

// What permits an execution besides the one whose answer counts, or takes back an
// answer. They are counted.
const (
	// Failed: an execution before it had certainly had no effect.
	Failed = "proven failed"
	// Decided: an unknown attempt was resolved as failed or cancelled.
	Decided = "resolved"
	// Racing: the route lets attempts race.
	Racing = "racing"
	// Expired: the job was kept for as long as it was to be.
	Expired = "expired"
	// ClaimLost: a failover lost the claim, on a store without the durability that
	// would have kept it.
	ClaimLost = "claim lost in a failover"
	// BeyondCopies: the same on a store with durability, in a failover that no number of
	// copies protects from.
	BeyondCopies = "claim lost beyond copies"
	// CommitLost: a failover lost an answer, and the job is unknown, or was until
	// somebody decided.
	CommitLost = "commit lost in a failover"
	// Unrecorded: an answer marked as not recorded is not the job's in the end.
	Unrecorded = "unrecorded answer not kept"
	// NotKept: the result no longer fitted into the store, which kept that it was
	// there.
	NotKept = "result not kept"
)

// Violation is a promise that was broken.
type Violation struct{ Kind, Key, Text string }

func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Kind, v.Key, v.Text) }

// Report is what a check has found.
type Report struct {
	Requests, Answered, Keys, Executions int
	// Permitted counts what was excused, by its reason.
	Permitted  map[string]int
	Violations []Violation
}

// Check judges a history.
func Check(h *History) *Report {
	c := &checker{h: h, keys: make(map[string]*key), r: &Report{Permitted: make(map[string]int)}}
	c.sort()
	c.r.Requests, c.r.Executions, c.r.Keys = len(h.Requests), len(h.Executions), len(c.keys)
	for _, name := range slices.Sorted(maps.Keys(c.keys)) {
		k := c.keys[name]
		c.claims(k)
		c.executions(k)
		c.answers(k)
		c.forgotten(k)
		c.end(k)
	}
	return c.r
}

// attempt names an attempt of a job.
type attempt struct {
	job    string
	number int
}

// key is what has happened under one key.
type key struct {
	name       string
	requests   []*Request
	executions []*Execution
}

type checker struct {
	h         *History
	keys      map[string]*key
	decisions map[attempt][]*Decision
	given     map[string]map[string]bool // the answers that were given by decisions, by job
	r         *Report
}

func (c *checker) sort() {
	of := func(name string) *key {
		if c.keys[name] == nil {
			c.keys[name] = &key{name: name}
		}
		return c.keys[name]
	}
	for i := range c.h.Requests {
		r := &c.h.Requests[i]
		of(r.Key).requests = append(of(r.Key).requests, r)
		if r.answered() {
			c.r.Answered++
		}
	}
	for i := range c.h.Executions {
		e := &c.h.Executions[i]
		of(e.Key).executions = append(of(e.Key).executions, e)
	}
	for _, k := range c.keys {
		slices.SortFunc(k.requests, func(a, b *Request) int { return cmp.Compare(a.Began, b.Began) })
		slices.SortFunc(k.executions, func(a, b *Execution) int { return cmp.Compare(a.At, b.At) })
	}
	c.decisions, c.given = make(map[attempt][]*Decision), make(map[string]map[string]bool)
	for i := range c.h.Decisions {
		d := &c.h.Decisions[i]
		at := attempt{d.Job, d.Attempt}
		c.decisions[at] = append(c.decisions[at], d)
		if d.As == "succeeded" {
			if c.given[d.Job] == nil {
				c.given[d.Job] = make(map[string]bool)
			}
			c.given[d.Job][d.Answer] = true
		}
	}
}

func (c *checker) violated(k *key, kind, format string, args ...any) {
	c.r.Violations = append(c.r.Violations, Violation{kind, k.name, fmt.Sprintf(format, args...)})
}

// nothingSent are the refusals that say that their request has sent nothing.
var nothingSent = []string{"store-unavailable", "key-reused", "too-many-waiters", "key-invalid", "owner-missing"}

// claims checks that each execution names its attempt, that no attempt has come
// twice, and that there was a request for it that was not told that nothing is sent.
func (c *checker) claims(k *key) {
	tokens, asked := make(map[string]bool), make(map[string]string)
	for _, e := range k.executions {
		if first, ok := asked[e.Job]; ok && first != e.Asked {
			c.violated(k, Foreign, "job %s was executed as %s and as %s", e.Job, first, e.Asked)
		}
		asked[e.Job] = e.Asked
		if e.Job == "" || e.Attempt == 0 || e.Token == "" {
			c.violated(k, Unclaimed, "the execution at %s names no attempt", e.At)
			continue
		}
		if tokens[e.Token] {
			c.violated(k, Resent, "attempt %d of job %s, again at %s", e.Attempt, e.Job, e.At)
		}
		tokens[e.Token] = true
		// One that had no effect can have been followed by a claim that came to nothing.
		if !e.Refused && !slices.ContainsFunc(k.requests, func(r *Request) bool {
			return r.Began <= e.At && r.Asked == e.Asked && !slices.Contains(nothingSent, r.Code)
		}) {
			c.violated(k, Unclaimed, "whoever had asked by %s was told that nothing is sent", e.At)
		}
	}
}

// executions checks that of all executions with an effect at most one has nothing
// that permits another one beside it.
func (c *checker) executions(k *key) {
	var effective []*Execution
	for _, e := range k.executions {
		if !e.Refused {
			effective = append(effective, e)
		}
	}
	if refused := len(k.executions) - len(effective); len(k.executions) > 1 {
		c.r.Permitted[Failed] += min(refused, len(k.executions)-1)
	}
	excused := make([]string, 0, len(effective))
	var unexcused []string
	for i, e := range effective {
		if why := c.excuse(e, effective); why != "" {
			excused = append(excused, why)
			continue
		}
		unexcused = append(unexcused, describe(effective[i]))
	}
	if len(unexcused) > 1 {
		c.violated(k, Twice, "%s", strings.Join(unexcused, "; "))
	}
	// One execution needs no excuse.
	if len(unexcused) == 0 && len(excused) > 0 {
		excused = excused[:len(excused)-1]
	}
	for _, why := range excused {
		c.r.Permitted[why]++
	}
}

func describe(e *Execution) string {
	return fmt.Sprintf("attempt %d of job %s at %s (%s)", e.Attempt, e.Job, e.At, e.Answer)
}

// excuse returns what permits other executions besides this one.
func (c *checker) excuse(e *Execution, all []*Execution) string {
	for _, other := range all {
		if other == e {
			continue
		}
		switch {
		case e.Racing:
			return Racing
		case c.resolved(e, other.At):
			return Decided
		case c.expired(e, other.At):
			return Expired
		case other.At > e.At:
			if why := c.claimLost(e.At, other.At); why != "" {
				return why
			}
		}
	}
	return ""
}

// claimLost returns how a claim can have been lost that was there at the first instant,
// up to the second one.
func (c *checker) claimLost(there, gone time.Duration) string {
	switch {
	case !c.failedOver(there, gone):
		return ""
	case !c.h.Durable:
		return ClaimLost
	case slices.ContainsFunc(c.h.Failovers, func(s Span) bool { return s.Beyond && s.To >= there && s.From <= gone }):
		return BeyondCopies
	}
	return ""
}

// resolved reports whether an execution's attempt was resolved as one that permits
// another one, before that took place.
func (c *checker) resolved(e *Execution, before time.Duration) bool {
	return slices.ContainsFunc(c.decisions[attempt{e.Job, e.Attempt}], func(d *Decision) bool {
		return d.As != "succeeded" && d.Began <= max(before, e.At)
	})
}

// expired reports whether what was executed then can have been forgotten by time.
func (c *checker) expired(e *Execution, by time.Duration) bool {
	least, most := c.ahead(e.At, by)
	return e.Retention > 0 && by+most >= e.At+least+e.Retention
}

// noticed is how long a gateway can take to notice a step of the store's clock, for
// which it asks every ten seconds, where it reaches it.
const noticed = 30 * time.Second

// ahead is how far the store's clock is ahead between two instants, as far as gateways
// have noticed.
func (c *checker) ahead(from, to time.Duration) (least, most time.Duration) {
	for i, j := range c.h.Jumps {
		switch {
		case j.At > to:
			return least, most
		case j.At <= from:
			least, most = j.Ahead, j.Ahead
			if i > 0 && from-j.At < noticed {
				least, most = min(least, c.h.Jumps[i-1].Ahead), max(most, c.h.Jumps[i-1].Ahead)
			}
		default:
			least, most = min(least, j.Ahead), max(most, j.Ahead)
		}
	}
	return least, most
}

// failedOver reports whether what was there at the first instant can have been lost
// by a failover, up to the second one.
func (c *checker) failedOver(there, gone time.Duration) bool {
	return overlaps(c.h.Failovers, there, gone)
}

func overlaps(spans []Span, from, to time.Duration) bool {
	return slices.ContainsFunc(spans, func(s Span) bool { return s.To >= from && s.From <= to })
}

// end checks what the key's last request was told, when all was over.
func (c *checker) end(k *key) {
	var last *Request
	for _, r := range k.requests {
		if r.Last && r.Code != "key-reused" {
			last = r
		}
	}
	switch {
	case last == nil || last.answered():
	case last.Code == "result-not-kept":
	case last.Code == "outcome-unknown" && c.h.Unknown[last.Job]:
	case !last.Heard:
		c.violated(k, Stuck, "no answer comes")
	default:
		c.violated(k, Stuck, "%d %s %s, and the job is not unknown", last.Status, last.Code, last.Job)
	}
}
