package redisstore

import (
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
