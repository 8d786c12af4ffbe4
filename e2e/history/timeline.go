package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Timeline tells what has happened under one key, and to the store meanwhile.
func (h *History) Timeline(key string) string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	add := func(at time.Duration, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf(format, args...)})
	}
	jobs := make(map[string]bool)
	for _, r := range h.Requests {
		if r.Key != key {
			continue
		}
		jobs[r.Job] = r.Job != ""
		what := "nothing was heard"
		if r.Heard {
			what = fmt.Sprintf("%d %s %s job %s, replayed %v, unrecorded %v", r.Status, r.Code, r.Answer, r.Job, r.Replayed, r.Unrecorded)
		}
		add(r.Began, "request for %s until %s: %s", r.Asked, r.Ended, what)
	}
	for _, e := range h.Executions {
		if e.Key == key {
			jobs[e.Job] = true
			add(e.At, "execution of attempt %d of job %s, refused %v: %s", e.Attempt, e.Job, e.Refused, e.Answer)
		}
	}
	for _, d := range h.Decisions {
		if jobs[d.Job] {
			add(d.Began, "attempt %d of job %s resolved as %s until %s: %s", d.Attempt, d.Job, d.As, d.Ended, d.Answer)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	if len(lines) == 0 {
		return ""
	}
	from, to := lines[0].at-time.Minute, lines[len(lines)-1].at
	for name, spans := range map[string][]Span{"failover": h.Failovers, "memory full": h.Full} {
		for _, s := range spans {
			if s.To >= from && s.From <= to {
				add(s.From, "%s until %s", name, s.To)
			}
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%12s  %s\n", l.at.Round(time.Millisecond), l.text)
	}
	return b.String()
}
