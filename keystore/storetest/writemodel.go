package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// writeInput is what a store was asked to do to the record of a name. The zero
// write id stands for no record.
type writeInput struct {
	kind          string // write, or read
	name          keystore.Name
	expected, new keystore.WriteID
}

// writeOutput is what it answered.
type writeOutput struct {
	found  keystore.WriteID // read: the record that is there
	unsure bool             // write: it may have taken effect, or not
}

// writeModel is the whole of a store's contract, as far as it is about one
// record: a register of write ids with a compare-and-swap.
func writeModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: byKey(func(input any) string { return input.(writeInput).name.String() }),
		Init:      func() []any { return []any{keystore.WriteID{}} },
		Step: func(state, input, output any) []any {
			s, in, out := state.(keystore.WriteID), input.(writeInput), output.(writeOutput)
			if in.kind == "read" {
				if s != out.found {
					return nil
				}
				return []any{s}
			}
			switch {
			case s == in.new: // an earlier send
				return []any{s}
			case s == in.expected && out.unsure:
				return []any{s, in.new}
			case s == in.expected:
				return []any{in.new}
			case out.unsure:
				return []any{s}
			}
			return nil
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v: %v", input, output) },
	}
	return m.ToModel()
}

// seen leaves out the writes of which it is not known whether they took effect,
// and of which nobody has seen anything: then it can be that they did not.
func seen(all []porcupine.Operation) (ops []porcupine.Operation) {
	witnessed := make(map[keystore.WriteID]bool)
	for _, op := range all {
		in, out := op.Input.(writeInput), op.Output.(writeOutput)
		witnessed[in.expected] = true
		witnessed[out.found] = true
	}
	for _, op := range all {
		if op.Output.(writeOutput).unsure && !witnessed[op.Input.(writeInput).new] {
			continue
		}
		ops = append(ops, op)
	}
	return ops
}

// recorder writes down what a store is asked and what it answers.
type recorder struct {
	keystore.Store
	history *history
	client  int
}

func (r *recorder) note(in writeInput, out writeOutput, call, end int64) {
	r.history.mu.Lock()
	defer r.history.mu.Unlock()
	r.history.writes = append(r.history.writes, porcupine.Operation{
		ClientId: r.client, Input: in, Output: out, Call: call, Return: end,
	})
}

// noteWrite records a create or swap. A refused one counts twice: as a read of
// what was there, and as a write that an earlier send may have done before it
// was overtaken.
func (r *recorder) noteWrite(in writeInput, present *keystore.Job, done bool, err error, call int64) {
	end := r.history.now()
	switch {
	case errors.Is(err, keystore.ErrNotApplied): // and so it is as if it had never been asked
	case err != nil:
		r.note(in, writeOutput{unsure: true}, call, forever)
	case done:
		r.note(in, writeOutput{}, call, end)
	default:
		r.note(in, writeOutput{unsure: true}, call, end)
		r.noteRead(in.name, present, call, end)
		if present != nil && present.WriteID == in.new {
			// Refused because of itself: no order of events explains that.
			r.note(writeInput{kind: "read", name: in.name}, writeOutput{found: keystore.NewWriteID()}, call, end)
		}
	}
}

func (r *recorder) noteRead(name keystore.Name, found *keystore.Job, call, end int64) {
	var out writeOutput
	if found != nil {
		out.found = found.WriteID
	}
	r.note(writeInput{kind: "read", name: name}, out, call, end)
}

func (r *recorder) Create(ctx context.Context, job *keystore.Job) (*keystore.Job, bool, error) {
	call := r.history.now()
	present, created, err := r.Store.Create(ctx, job)
	r.noteWrite(writeInput{kind: "write", name: job.Name, new: job.WriteID}, present, created, err, call)
	return present, created, err
}

func (r *recorder) Swap(ctx context.Context, expected keystore.WriteID, job *keystore.Job) (*keystore.Job, bool, error) {
	call := r.history.now()
	present, swapped, err := r.Store.Swap(ctx, expected, job)
	r.noteWrite(writeInput{kind: "write", name: job.Name, expected: expected, new: job.WriteID}, present, swapped, err, call)
	return present, swapped, err
}

func (r *recorder) Get(ctx context.Context, name keystore.Name) (*keystore.Job, error) {
	call := r.history.now()
	found, err := r.Store.Get(ctx, name)
	if err == nil {
		r.noteRead(name, found, call, r.history.now())
	}
	return found, err
}
