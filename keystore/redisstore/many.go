package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// manySwaps and manyBytes bound what is sent in one go: how long its last
	// swap waits for the first, and what is in doubt when the connection breaks.
	manySwaps = 1000
	manyBytes = 1 << 20
)

// SwapMany implements [keystore.Store]. Up to 1000 swaps share a round trip. Those
// with a body that is to be kept apart come last, one by one.
func (s *Store) SwapMany(ctx context.Context, swaps []keystore.Swap) []keystore.SwapResult {
	const what = "swap jobs"
	results := make([]keystore.SwapResult, len(swaps))
	var alone []int
	var batch []*outgoing
	bytes := 0
	send := func() {
		s.swapBatch(ctx, what, batch, results)
		batch, bytes = nil, 0
	}
	for i, swap := range swaps {
		if large(swap.Job) {
			alone = append(alone, i)
			continue
		}
		o, err := s.outgoing(ctx, what, i, swap)
		if err != nil {
			results[i].Err = err
			continue
		}
		if len(batch) == manySwaps || (len(batch) > 0 && bytes+len(o.record) > manyBytes) {
			send()
		}
		batch = append(batch, o)
		bytes += len(o.record)
	}
	if len(batch) > 0 {
		send()
	}
	for _, i := range alone {
		r := &results[i]
		r.Present, r.Swapped, r.Err = s.Swap(ctx, swaps[i].Expected, swaps[i].Job)
	}
	return results
}

// outgoing is a swap that goes out together with others, and what is known of it.
type outgoing struct {
	at        int // its place among the results
	name      keystore.Name
	key, head string
	record    []byte
	ttl       int64

	// doubt says that a try up to now may have applied it.
	doubt bool
	// reply is the answer, unless there is an error: that of the last try, with
	// its fate, and in the end what is to be said of all of them.
	reply swapped
	err   error
	fate  fate
}

func (s *Store) outgoing(ctx context.Context, what string, at int, swap keystore.Swap) (*outgoing, error) {
	ttl := s.ttl(swap.Job)
	bodies := bodyReused
	if ttl < 0 {
		bodies = bodyLeftOut
	}
	record, err := s.encode(ctx, what, swap.Job, bodies)
	if err != nil {
		return nil, err
	}
	name := swap.Job.Name
	return &outgoing{
		at: at, name: name, key: s.recordKey(name), head: head(swap.Expected), record: record, ttl: ttl,
	}, nil
}

// swapBatch sends a batch and fills in the results.
func (s *Store) swapBatch(ctx context.Context, what string, batch []*outgoing, results []keystore.SwapResult) {
	// Whoever stops waiting leaves the batch to the one who sends it.
	done, err := apart(ctx, s, what, func() ([]*outgoing, error) {
		s.trySwaps(ctx, what, batch)
		return batch, nil
	})
	if err != nil {
		for _, o := range batch {
			results[o.at].Err = err
		}
		return
	}
	for _, o := range done {
		r := &results[o.at]
		if r.Err = o.err; r.Err == nil {
			r.Present, r.Swapped, r.Err = s.tell(ctx, what, o.name, o.reply)
		}
	}
}

// trySwaps sends a batch, and those of it again to which no definite answer
// comes. It does for each of them what [try] does for one command.
func (s *Store) trySwaps(ctx context.Context, what string, batch []*outgoing) {
	retired := 0
	for tries := 0; ; {
		generation := s.dialer.generation.Load()
		tryCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		s.sendSwaps(tryCtx, batch)
		cancel()

		var again []*outgoing
		neverLeft := true
		for _, o := range batch {
			if o.err == nil {
				continue
			}
			o.fate = fateOf(o.err)
			// A batch is written in several pieces, and the connection can have
			// become too old between two of them.
			o.doubt = o.doubt || !o.fate.notApplied || o.fate.retired
			neverLeft = neverLeft && o.fate.retired
			if o.fate.readOnly {
				s.dialer.retire(generation)
			}
			if o.fate.again || isNoScript(o.err) {
				again = append(again, o)
			} else {
				o.err = s.giveUpSwap(what, o)
			}
		}
		batch = again
		switch {
		case len(batch) == 0:
			return
		case neverLeft && retired < maxRetired:
			retired++
			continue
		}
		tries++
		if tries <= s.resends && s.pause(ctx, tries) {
			continue
		}
		for _, o := range batch {
			o.err = s.giveUpSwap(what, o)
		}
		return
	}
}

func (s *Store) giveUpSwap(what string, o *outgoing) error {
	return s.giveUp(what, o.fate, !o.doubt && s.clientRetries == 0)
}

// sendSwaps sends a batch once. A server that does not know the script is told it
// in a second round, by the first of those that it has refused for that.
func (s *Store) sendSwaps(ctx context.Context, batch []*outgoing) {
	s.pipeSwaps(ctx, batch, swapScript.EvalSha)
	var refused []*outgoing
	for _, o := range batch {
		if isNoScript(o.err) {
			refused = append(refused, o)
		}
	}
	if len(refused) > 0 {
		s.pipeSwaps(ctx, refused, swapScript.Eval)
	}
}

// errNoReply: a command was never answered, and does not say why. That must not
// be taken for a record that is gone.
var errNoReply = errors.New("no reply")

type evaluate func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

// pipeSwaps sends a batch in one pipeline; the first of it as told.
func (s *Store) pipeSwaps(ctx context.Context, batch []*outgoing, first evaluate) {
	pipe := s.client.Pipeline()
	cmds := make([]*redis.Cmd, len(batch))
	for i, o := range batch {
		cmds[i] = first(ctx, pipe, []string{o.key}, o.head, o.record, o.ttl, s.channel(), o.name.String())
		first = swapScript.EvalSha
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i, o := range batch {
		reply, err := cmds[i].Result()
		switch {
		case err == redis.Nil: //nolint:errorlint // never wrapped
			o.reply, o.err = swappedBy(nil, o.ttl < 0, o.doubt)
		case err != nil:
			o.err = scriptError{err}
		case reply == nil:
			o.err = errNoReply
		default:
			o.reply, o.err = swappedBy(reply, o.ttl < 0, o.doubt)
		}
	}
}

func isNoScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }
