package boltstore

import (
	"context"
	"fmt"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// SwapMany implements [keystore.Store]. As many swaps as the writer takes at once
// are handed to it as one operation, and so share a transaction.
func (s *Store) SwapMany(ctx context.Context, swaps []keystore.Swap) []keystore.SwapResult {
	results := make([]keystore.SwapResult, len(swaps))
	var portion []*swapping
	bytes := 0
	hand := func() {
		s.swapPortion(ctx, portion, results)
		portion, bytes = nil, 0
	}
	for i, swap := range swaps {
		v, err := encodeValue(swap.Job)
		if err != nil {
			results[i].Err = fmt.Errorf("swap in %s: %w: %w", s.path, keystore.ErrNotApplied, err)
			continue
		}
		if len(portion) == maxBatch || (len(portion) > 0 && bytes+len(v) > maxBatchBytes) {
			hand()
		}
		portion = append(portion, &swapping{at: i, expected: swap.Expected, job: swap.Job, v: v})
		bytes += len(v)
	}
	if len(portion) > 0 {
		hand()
	}
	return results
}

// swapping is one of several swaps, and what the writer has left of it.
type swapping struct {
	at       int // its place among the results
	expected keystore.WriteID
	job      *keystore.Job
	v        value

	present value
	done    bool
	err     error // its own
}

func (s *Store) swapPortion(ctx context.Context, portion []*swapping, results []keystore.SwapResult) {
	op := &operation{apply: func(b *batch) error {
		for _, w := range portion {
			w.present, w.done, w.err = b.swap(w.job.Name, w.expected, w.job.WriteID, w.v)
		}
		return b.failed
	}}
	for _, w := range portion {
		op.size += len(w.v)
	}
	err := s.submit(ctx, op)
	for _, w := range portion {
		r := &results[w.at]
		if err != nil { // what the writer has left can't be read
			r.Err = fmt.Errorf("swap in %s: %w", s.path, err)
			continue
		}
		r.Present, r.Swapped, r.Err = s.tell("swap", w.job.Name, w.present, w.done, w.err)
	}
}
