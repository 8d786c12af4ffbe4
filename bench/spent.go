package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// part is somebody whom a request's CPU time is spent for.
type part struct {
	name   string
	frames *regexp.Regexp
	// last says that it gets only what none of the others has asked for.
	last bool
}

// parts are asked for by whoever stands nearest to the end of a stack. So what a
// handler allocates is the handler's, and what collecting that takes the collector's.
var parts = []part{
	{name: "collecting garbage", frames: regexp.MustCompile(`^runtime\.(gc|bgsweep|bgscavenge|sweepone)`)},
	{name: "the claim and the commit: records, and Redis's client or bolt", frames: regexp.MustCompile(`caddy-idempotency/keystore|/go-redis/|/bbolt\.`)},
	{name: "`reverse_proxy` and Go's transport", frames: regexp.MustCompile(`/reverseproxy\.|^net/http\.\(\*(persistConn|Transport)\)`)},
	{name: "the rest of this module: fingerprint, attempt, answer", frames: regexp.MustCompile(`caddy-idempotency/`)},
	{name: "Go's server, and Caddy's routes", frames: regexp.MustCompile(`^net/http\.|/caddyhttp\.`), last: true},
	{name: "scheduling goroutines, and what belongs to nobody"},
}

// spent says where the CPU time of a target's requests goes.
type spent struct {
	target     string
	perRequest time.Duration
	parts      map[string]time.Duration // of that
}

// spentRound is how long a target is profiled.
const spentRound = 4 * time.Second

// measureSpent profiles a target while it serves fresh requests.
func (l *lab) measureSpent(ctx context.Context, name string) (*spent, error) {
	l.stop(name)
	if err := l.empty(name); err != nil {
		return nil, err
	}
	p, err := l.target(ctx, name)
	if err != nil {
		return nil, err
	}
	c := &cell{kind: kindFresh, size: small, conns: 64}
	if _, err := send(ctx, l.load(c, name, p, newFresh()), warmUp); err != nil {
		return nil, err
	}
	type taken struct {
		profile []byte
		err     error
	}
	profiled := make(chan taken, 1)
	go func() {
		b, err := takeProfile(ctx, l.admins[name], spentRound)
		profiled <- taken{b, err}
	}()
	before := p.cpu()
	m, err := send(ctx, l.load(c, name, p, newFresh()), spentRound)
	used := p.cpu() - before
	got := <-profiled
	switch {
	case err != nil:
		return nil, err
	case got.err != nil:
		return nil, got.err
	case m.wrong > 0:
		return nil, fmt.Errorf("%d wrong: %s", m.wrong, m.why)
	}
	s := &spent{target: name, perRequest: used / time.Duration(max(m.requests, 1))}
	s.parts, err = divide(got.profile, s.perRequest)
	return s, err
}

// divide divides an amount of time as a CPU profile says.
func divide(taken []byte, whole time.Duration) (map[string]time.Duration, error) {
	prof, err := profile.Parse(bytes.NewReader(taken))
	if err != nil {
		return nil, fmt.Errorf("read a CPU profile: %w", err)
	}
	sums := make(map[string]int64)
	all := int64(0)
	for _, sample := range prof.Sample {
		value := sample.Value[len(sample.Value)-1] // nanoseconds
		sums[partOf(sample)] += value
		all += value
	}
	divided := make(map[string]time.Duration)
	for name, sum := range sums {
		divided[name] = time.Duration(float64(whole) * float64(sum) / float64(all))
	}
	return divided, nil
}

func partOf(sample *profile.Sample) string {
	for _, last := range []bool{false, true} {
		for _, location := range sample.Location { // the end of the stack comes first
			for _, line := range location.Line {
				for _, p := range parts {
					if p.last == last && p.frames != nil && line.Function != nil && p.frames.MatchString(line.Function.Name) {
						return p.name
					}
				}
			}
		}
	}
	return parts[len(parts)-1].name
}

// spentTable says it in Markdown, in microseconds per request.
func (r *report) spentTable() string {
	if len(r.spent) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("### Where a fresh request's CPU time goes\n\nBy a CPU profile of each, 1 KiB, 64 connections, in µs per request. What is allocated counts for whoever allocates it.\n\n|")
	for _, s := range r.spent {
		b.WriteString(" | " + s.target)
	}
	b.WriteString(" |\n|---" + strings.Repeat("|---:", len(r.spent)) + "|\n")
	for _, p := range parts {
		b.WriteString("| " + p.name)
		for _, s := range r.spent {
			fmt.Fprintf(&b, " | %.0f", float64(s.parts[p.name])/float64(time.Microsecond))
		}
		b.WriteString(" |\n")
	}
	b.WriteString("| **all**")
	for _, s := range r.spent {
		fmt.Fprintf(&b, " | **%.0f**", float64(s.perRequest)/float64(time.Microsecond))
	}
	b.WriteString(" |\n\n")
	return b.String()
}
