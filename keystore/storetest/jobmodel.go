package storetest

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// jobInput is an operation on a job: claim, commit, fail, lose, resolve, abort
// or read, by the attempt with this token; a resolution is to that state.
type jobInput struct {
	kind, key string
	token     keystore.Token
	to        keystore.AttemptState
}

// jobOutput is what a client was told.
type jobOutput struct {
	// verdict is "unknown" after an error: then the operation may take effect at
	// any time, or never.
	verdict string
	// token is that of the winner or of the attempt resolved.
	token keystore.Token
	// maybe says that a write had been refused before: an earlier send of it may
	// have taken effect, and been overtaken.
	maybe bool
}

// jobState is a job as far as clients can tell. Routes that race are left out:
// at most one attempt is starting or unknown.
type jobState struct {
	kind string // absent, running, unknown, open, completed
	// token is that of the attempt that is running or unknown, of the winner, or
	// of the last one of an open job.
	token keystore.Token
	// resolved says that an open job's last attempt was resolved as failed, so
	// that a late success of its own still counts.
	resolved bool
}

// jobModel says what one store that does one thing at a time would answer.
func jobModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: byKey(func(input any) string { return input.(jobInput).key }),
		Init:      func() []any { return []any{jobState{kind: "absent"}} },
		Step: func(state, input, output any) []any {
			s, in, out := state.(jobState), input.(jobInput), output.(jobOutput)
			after := s.after(in)
			next, fits := s.told(in, out)
			switch {
			case out.verdict == "unknown":
				return []any{s, after}
			case out.maybe && fits:
				return []any{next, after}
			case out.maybe: // not here, but perhaps later: here is where it took effect
				return []any{after}
			case fits:
				return []any{next}
			}
			return nil
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v: %v", input, output) },
	}
	return m.ToModel()
}

// holds reports whether this attempt is the running or unknown one.
func (s jobState) holds(t keystore.Token) bool {
	return (s.kind == "running" || s.kind == "unknown") && s.token == t
}

// mayCommit reports whether an answer of this attempt would win the slot.
func (s jobState) mayCommit(t keystore.Token) bool {
	return s.holds(t) || (s.kind == "open" && s.resolved && s.token == t)
}

// after returns the state after an operation that takes effect.
func (s jobState) after(in jobInput) jobState {
	switch {
	case in.kind == "claim" && (s.kind == "absent" || s.kind == "open"):
		return jobState{kind: "running", token: in.token}
	case in.kind == "commit" && s.mayCommit(in.token):
		return jobState{kind: "completed", token: in.token}
	case in.kind == "fail" && s.holds(in.token):
		return jobState{kind: "open", token: in.token}
	case in.kind == "lose" && s.holds(in.token):
		return jobState{kind: "unknown", token: in.token}
	case in.kind == "resolve" && s.kind == "unknown":
		return jobState{kind: "open", token: s.token, resolved: in.to == keystore.AttemptFailed}
	case in.kind == "abort" && (s.holds(in.token) || s.kind == "absent" || s.kind == "open"):
		return jobState{kind: "open", token: in.token} // an open job is rewritten to shut the claim out
	}
	return s
}

// told returns the state after an operation whose client was told this, and
// whether that fits.
func (s jobState) told(in jobInput, out jobOutput) (next jobState, fits bool) {
	after := s.after(in)
	switch in.kind {
	case "claim":
		switch {
		case out.verdict == keystore.NotExecuted.String(): // to one who only reads
			return s, s.kind == "open"
		case s.kind == "absent" || s.kind == "open":
			return after, out.verdict == "run"
		case s.token == in.token: // an earlier send of its own
			return s, (out.verdict == "run" && s.kind == "running") || out.verdict == keystore.OwnNotLive.String()
		case s.kind == "running":
			return s, out.verdict == keystore.Wait.String()
		case s.kind == "unknown":
			return s, out.verdict == keystore.Blocked.String()
		}
		return s, out.verdict == "replay" && out.token == s.token
	case "commit":
		won := s.mayCommit(in.token) || (s.kind == "completed" && s.token == in.token)
		return after, won == (out.verdict == keystore.EffectWon.String())
	case "fail":
		return after, s.holds(in.token) == (out.verdict == keystore.EffectFailed.String())
	case "lose":
		running := s.kind == "running" && s.token == in.token
		return after, running == (out.verdict == keystore.EffectUnknown.String())
	case "resolve":
		switch out.verdict {
		case "nothing":
			return s, s.kind != "unknown"
		case "too late": // of an attempt that was unknown before; by now another one may be
			return s, true
		}
		return after, out.verdict == "resolved" && s.kind == "unknown" && s.token == out.token
	case "abort":
		if out.verdict == "nothing" { // it says so already, or can't come to say otherwise
			return s, true
		}
		return after, true // if nothing follows, it has only added a last word
	case "read":
		return s, out.verdict == s.kind && (s.kind == "absent" || s.token == out.token)
	}
	return s, false
}

func byKey(keyOf func(input any) string) func([]porcupine.Operation) [][]porcupine.Operation {
	return func(all []porcupine.Operation) [][]porcupine.Operation {
		parts := make(map[string][]porcupine.Operation)
		for _, op := range all {
			key := keyOf(op.Input)
			parts[key] = append(parts[key], op)
		}
		list := make([][]porcupine.Operation, 0, len(parts))
		for _, part := range parts {
			list = append(list, part)
		}
		return list
	}
}
