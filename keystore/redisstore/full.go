package redisstore

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// isFull reports whether a server refuses a write because it has no memory left.
func isFull(err error) bool {
	if err == nil {
		return false
	}
	var server redis.Error
	return errors.As(err, &server) && fateOf(err).full
}

// toldInstead returns the record that is there, where a server that refuses to create it,
// with why, can still be asked: its memory is full, it can't write to its disk, or it has
// fewer replicas than it has to have. A replica is none of these: what it has may be of a
// past that was lost.
//
// Of the last two, nobody takes the record for the reply to an earlier send: that lets an
// attempt start, and the server may be about to lose it.
func (n *node) toldInstead(ctx context.Context, key string, id keystore.WriteID, why error) ([]byte, error) {
	noWrites := takesNoWrites(why)
	if !noWrites && !isFull(why) {
		return nil, why
	}
	present, _ := n.get(ctx, key)
	if present == nil || (noWrites && bears(present, id)) {
		return nil, why
	}
	return present, nil
}

func takesNoWrites(err error) bool {
	var server redis.Error
	return errors.As(err, &server) && fateOf(err).noWrites
}

// settlesLean reports whether a write ends what a job has under way, and takes about
// as much memory as what it replaces. It is let in where memory is full: each can only
// come after a claim that was let in before, and a limit that kept it out would make
// unknown what is known.
func settlesLean(job *keystore.Job) bool {
	return !slices.ContainsFunc(job.Attempts, func(a keystore.Attempt) bool {
		return a.State == keystore.AttemptStarting || inline(a.Kept)
	}) && !inline(job.Result)
}

// inline reports whether a body stands in the record itself.
func inline(resp *keystore.Response) bool { return size(resp) > 0 && size(resp) <= maxInline }
