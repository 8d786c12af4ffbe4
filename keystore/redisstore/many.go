package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

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
	for i, swap := range swaps {
		if errors.Is(results[i].Err, keystore.ErrFull) && settlesLean(swap.Job) {
			alone = append(alone, i)
		}
	}
	for _, i := range alone {
		r := &results[i]
		r.Present, r.Swapped, r.Err = s.Swap(ctx, swaps[i].Expected, swaps[i].Job)
	}
	return results
}

// outgoing is a swap that goes out together with others, and what is known of it.
type outgoing struct {
	at       int // its place among the results
	name     keystore.Name
	key      string
	expected string
	record   []byte
	ttl      int64

	// doubt says that a try up to now may have applied it.
	doubt bool
	// reply is the answer, unless there is an error: that of the last try, with
	// its fate, and in the end what is to be said of all of them.
	reply swapped
	err   error
	fate  fate
	hops  int // how often it was redirected since the last try
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
		at: at, name: name, key: s.recordKey(name), expected: swap.Expected.String(), record: record, ttl: ttl,
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
		neverLeft, redirected := true, true
		for _, o := range batch {
			if o.err == nil {
				continue
			}
			// A batch is written in several pieces, and the connection can have
			// become too old between two of them.
			o.doubt = o.doubt || !o.fate.notApplied || o.fate.retired
			if o.fate.readOnly {
				s.dialer.retire(generation)
			}
			if !o.fate.again && !isNoScript(o.err) {
				o.err = s.giveUpSwap(what, o)
				continue
			}
			again = append(again, o)
			neverLeft = neverLeft && o.fate.retired
			redirected = redirected && o.fate.redirected() && o.hops < maxHops
			o.hops++
		}
		batch = again
		switch {
		case len(batch) == 0:
			return
		case neverLeft && retired < maxRetired:
			retired++
			continue
		case redirected:
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

// sendSwaps sends a batch once, to each server those whose keys it has. Each of them
// has its error and its fate then.
func (s *Store) sendSwaps(ctx context.Context, batch []*outgoing) {
	type share struct {
		n    *node
		some []*outgoing
	}
	type place struct {
		c      *redis.Client
		asking bool
	}
	var shares []*share
	of := make(map[place]*share)
	for _, o := range batch {
		n, err := s.servers.find(ctx, target{key: o.key}, o.fate.to)
		if err == nil {
			err = n.admit()
		}
		if err != nil {
			o.err, o.fate = err, fateOf(err)
			continue
		}
		at := of[place{n.Client, n.asking}]
		if at == nil {
			at = &share{n: n}
			of[place{n.Client, n.asking}] = at
			shares = append(shares, at)
		}
		at.some = append(at.some, o)
	}
	if len(shares) == 1 {
		s.sendShare(ctx, shares[0].n, shares[0].some)
		return
	}
	var all sync.WaitGroup
	for _, at := range shares {
		all.Go(func() { s.sendShare(ctx, at.n, at.some) })
	}
	all.Wait()
}

// sendShare sends what is for one server. A server that does not know the script is
// told it in a second round, by the first of those that it has refused for that.
func (s *Store) sendShare(ctx context.Context, n *node, some []*outgoing) {
	began := time.Now()
	pipeSwaps(ctx, s, n, some, "evalsha", swapScript.Hash())
	var refused []*outgoing
	for _, o := range some {
		if isNoScript(o.err) {
			refused = append(refused, o)
		}
	}
	if len(refused) > 0 {
		pipeSwaps(ctx, s, n, refused, "eval", swapLua)
	}
	s.noteShare(ctx, n, began, some)
}

// noteShare draws the conclusions about a server from what it made of its share.
// That the connection broke is one failure, however many it was in the way of.
func (s *Store) noteShare(ctx context.Context, n *node, began time.Time, some []*outgoing) {
	var worst error
	for _, o := range some {
		o.fate = fate{}
		if o.err == nil {
			continue
		}
		if o.fate = fateOf(o.err); worst == nil || o.fate.down {
			worst = o.err
		}
	}
	s.note(ctx, n, began, worst)
}

// errNoReply: a command was never answered, and does not say why. That must not
// be taken for a record that is gone.
var errNoReply = errors.New("no reply")

// pipeSwaps sends them in one pipeline; the first of them as told.
func pipeSwaps(ctx context.Context, s *Store, n *node, some []*outgoing, command, script string) {
	pipe := n.via.Pipeline()
	cmds := make([]*redis.Cmd, len(some))
	for i, o := range some {
		if n.asking { // for the one command after it
			pipe.Do(ctx, "asking")
		}
		args := []any{o.expected, o.record, o.ttl, s.channel(), o.name.String()}
		cmds[i] = pipe.Do(ctx, scriptArgs(command, script, o.key, args)...)
		command, script = "evalsha", swapScript.Hash()
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i, o := range some {
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
