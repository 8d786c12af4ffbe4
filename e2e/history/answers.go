package history

import (
	"cmp"
	"slices"
)

// answers checks that every answer is that of an execution of what was asked for,
// or one that was decided on, and that all which count are the same.
func (c *checker) answers(k *key) {
	byText := make(map[string]*Execution, len(k.executions))
	for _, e := range k.executions {
		byText[e.Answer] = e
	}
	var told []*Request // the first to be told each answer of each job
	for _, r := range k.requests {
		if !r.answered() {
			continue
		}
		e := byText[r.Answer]
		switch {
		case e == nil && !c.given[r.Job][r.Answer]:
			c.violated(k, Foreign, "job %s was never answered like that: %.80q", r.Job, r.Answer)
			continue
		case e != nil && e.Asked != r.Asked:
			c.violated(k, Foreign, "asked for %s, and given the answer to %s", r.Asked, e.Asked)
			continue
		case e != nil && e.Job != r.Job:
			c.violated(k, Foreign, "an answer of job %s, and it is that of job %s", r.Job, e.Job)
			continue
		}
		same := slices.IndexFunc(told, func(t *Request) bool { return t.Job == r.Job && t.Answer == r.Answer && t.Status == r.Status })
		switch {
		case same < 0:
			first := *r
			told = append(told, &first)
		case told[same].Unrecorded && !r.Unrecorded:
			told[same].Unrecorded = false
		}
	}
	c.contradictions(k, told, byText)
}

// contradictions checks that answers which differ may.
func (c *checker) contradictions(k *key, told []*Request, byText map[string]*Execution) {
	var recorded []*Request
	for _, t := range told {
		if !t.Unrecorded {
			recorded = append(recorded, t)
		} else if len(told) > 1 {
			c.r.Permitted[Unrecorded]++
		}
	}
	for i := 1; i < len(recorded); i++ {
		a, b := recorded[i-1], recorded[i]
		if why := cmp.Or(c.takenBack(a, b, byText), c.takenBack(b, a, byText)); why != "" {
			c.r.Permitted[why]++
		} else if a.Job == b.Job {
			c.violated(k, Differ, "job %s: %d %.80q at %s, %d %.80q at %s", a.Job, a.Status, a.Answer, a.Ended, b.Status, b.Answer, b.Ended)
		} else {
			c.violated(k, Contradicted, "%d %.80q of job %s at %s, %d %.80q of job %s at %s",
				a.Status, a.Answer, a.Job, a.Ended, b.Status, b.Answer, b.Job, b.Ended)
		}
	}
}

// takenBack returns why one answer could take another one's place.
func (c *checker) takenBack(a, b *Request, byText map[string]*Execution) string {
	e, from := byText[a.Answer], a.Began
	if e != nil {
		from = e.At
		// What was lost is unknown again, and somebody may have decided otherwise.
		decided := slices.ContainsFunc(c.decisions[attempt{e.Job, e.Attempt}], func(d *Decision) bool {
			return d.Began <= b.Ended && c.failedOver(e.At, d.Ended)
		})
		switch {
		case decided, e.Racing && c.failedOver(e.At, b.Ended): // a race goes on beside what is unknown
			return CommitLost
		case a.Job != b.Job && c.expired(e, b.Ended):
			return Expired
		}
	}
	return c.claimLost(from, b.Ended)
}

// forgotten checks that nobody is refused who repeats what was answered before.
func (c *checker) forgotten(k *key) {
	byText := make(map[string]*Execution, len(k.executions))
	for _, e := range k.executions {
		byText[e.Answer] = e
	}
	var known *Request // the answer that was told first, of those that count
	lost := false
	for _, r := range byEnd(k.requests) {
		if r.answered() && !r.Unrecorded && known == nil {
			known = r
		}
	}
	if known == nil {
		return
	}
	e, since := byText[known.Answer], known.Began
	if e != nil {
		since = e.At
	}
	for _, r := range k.requests {
		if r.Began < known.Ended || !r.Heard || r.Asked != known.Asked || r.answered() {
			continue
		}
		switch {
		case r.Code == "store-unavailable" || r.Code == "too-many-waiters":
		case r.Code == "result-not-kept" && overlaps(c.h.Full, since, r.Ended):
			c.r.Permitted[NotKept]++
		case e != nil && c.expired(e, r.Ended):
			return // it is another job by now, if that
		case c.failedOver(since, r.Ended):
			if !lost {
				c.r.Permitted[CommitLost]++
			}
			lost = true
		default:
			c.violated(k, Contradicted, "answered %d %.80q of job %s at %s, and at %s refused: %d %s %s",
				known.Status, known.Answer, known.Job, known.Ended, r.Ended, r.Status, r.Code, r.Job)
			return
		}
	}
}

// byEnd returns requests in the order in which they ended.
func byEnd(requests []*Request) []*Request {
	return slices.SortedFunc(slices.Values(requests), func(a, b *Request) int { return cmp.Compare(a.Ended, b.Ended) })
}
