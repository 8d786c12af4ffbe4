package keystore

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The diagrams in the documentation have an arrow for each way from state to state
// that the state machine permits, and no other.
func TestDiagramsShowTheStateMachine(t *testing.T) {
	t.Parallel()
	want := slices.Sorted(maps.Keys(permitted()))
	arrow := regexp.MustCompile(`(?m)^\s+(\S+) --> ([^\s:]+)`)
	for _, page := range []string{"../docs/design.md", "../docs/concepts.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, diagram, found := strings.Cut(string(text), "```mermaid\nstateDiagram-v2\n")
		if !found {
			t.Fatalf("%s has no diagram", page)
		}
		diagram, _, _ = strings.Cut(diagram, "```")
		var got []string
		for _, m := range arrow.FindAllStringSubmatch(diagram, -1) {
			got = append(got, m[1]+" --> "+m[2])
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s shows\n\t%s\nand the state machine permits\n\t%s", page, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
		}
	}
}

// permitted goes through all that can be done to a job with up to two attempts,
// in every order, and returns the ways between the states of an attempt.
func permitted() map[string]bool {
	edges := map[string]bool{"[*] --> " + AttemptStarting.String(): true}
	final := make(map[AttemptState]bool)
	first := NewJob(identity(), starts(1, epoch))
	seen := map[string]bool{shape(first): true}
	for todo := []*Job{first}; len(todo) > 0; todo = todo[1:] {
		for i := range todo[0].Attempts {
			state := todo[0].Attempts[i].State
			if _, known := final[state]; !known {
				final[state] = true
			}
		}
		for _, next := range moves(todo[0]) {
			for i := range next.Attempts {
				a := &next.Attempts[i]
				before := todo[0].Attempt(a.Token)
				switch {
				case before == nil:
					edges["[*] --> "+a.State.String()] = true
				case before.State != a.State:
					edges[before.State.String()+" --> "+a.State.String()] = true
					final[before.State] = false
				}
			}
			if !seen[shape(next)] {
				seen[shape(next)] = true
				todo = append(todo, next)
			}
		}
	}
	for state, ends := range final {
		if ends {
			edges[state.String()+" --> [*]"] = true
		}
	}
	return edges
}

// shape is all of a job that a transition can depend on.
func shape(j *Job) string {
	var b strings.Builder
	fmt.Fprint(&b, j.Version, j.CompletedBy, j.Expires == 0)
	for i := range j.Attempts {
		a := &j.Attempts[i]
		fmt.Fprint(&b, "|", a.Token, a.State, a.Version, a.Lease, a.Ended == 0)
		if a.Resolution != nil {
			fmt.Fprint(&b, a.Resolution.State)
		}
	}
	return b.String()
}

// moves returns what can become of a job by one write.
func moves(j *Job) (all []*Job) {
	add := func(next *Job) {
		if next != nil {
			all = append(all, next)
		}
	}
	next := starts(2, after(time.Second))
	next.Provider = "fallback"
	for n := byte(1); n <= 2; n++ {
		for _, r := range []Report{renewal(n), final(n, "own"), failed(n), unknown(n), timedOut(n)} {
			add(j.Report(r).Next)
			if j.Attempt(tok(2)) == nil {
				add(j.FailOver(r, next, 2).Next)
			}
		}
		for _, state := range []AttemptState{AttemptStarting, AttemptSucceeded, AttemptFailed, AttemptUnknown, AttemptCancelled, AttemptDiscarded} {
			for _, resp := range []*Response{nil, answer("resolved")} {
				if resolved, err := j.Resolve(tok(n), resolution(state), resp); err == nil {
					add(resolved)
				}
			}
		}
		aborted, _ := AbortedClaim{Token: tok(n), Written: j}.Next(j, after(time.Minute))
		add(aborted)
	}
	add(j.Lapse(after(time.Hour)))
	if forgotten, err := j.Forget(after(time.Hour)); err == nil {
		add(forgotten)
	}
	if j.Attempt(tok(2)) == nil {
		add(j.StartSibling(tok(1), next, 2))
		if state := j.State(after(time.Second)); state == JobOpen || state == JobUnknown {
			add(j.Start(next))
		}
	}
	return all
}
