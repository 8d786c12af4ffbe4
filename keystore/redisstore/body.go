package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// maxInline is the size in bytes above which a body is kept apart. A script
	// copies its arguments several times, and everybody waits meanwhile.
	maxInline = 32 << 10
	// bodyMargin is how much longer than its record a body is kept, so that
	// whoever has just read the record still finds it.
	bodyMargin = time.Hour
)

// bodies says what to do with a body that is to be kept apart.
type bodies int

const (
	bodyAnew    bodies = iota // write it, whatever the job says of an earlier one
	bodyReused                // write it, unless the job says that it is there
	bodyLeftOut               // the record is about to go
)

// encode returns the record of a job, after it has written a large body under
// its own name. An error means that the record itself was not written.
func (s *Store) encode(ctx context.Context, what string, job *keystore.Job, b bodies) ([]byte, error) {
	apart, err := s.setApart(ctx, job, b)
	if err != nil {
		if errors.Is(err, keystore.ErrNotApplied) {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		return nil, fmt.Errorf("%s: %w: %w", what, keystore.ErrNotApplied, err)
	}
	record, err := keystore.EncodeRecord(apart)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", what, keystore.ErrNotApplied, err)
	}
	return record, nil
}

// setApart returns the job as its record shows it.
func (s *Store) setApart(ctx context.Context, job *keystore.Job, b bodies) (*keystore.Job, error) {
	if job.Result == nil {
		return job, nil
	}
	record, result := *job, *job.Result
	record.Result = &result
	switch {
	case len(result.Body) == 0 && result.Apart != nil:
		// A page of Scan shows a job so. Its body is where it was; only a new
		// record can't count on that.
		if b == bodyAnew {
			result.Apart, result.NotKept = nil, true
		}
		return &record, nil
	case len(result.Body) <= maxInline:
		result.Apart = nil
		return &record, nil
	}
	result.Body = nil
	switch {
	case b == bodyLeftOut:
		result.Apart = nil
		return &record, nil
	case b == bodyReused && result.Apart != nil && matches(job.Result.Body, result.Apart):
		return &record, nil // it outlives this record too: the expiry is never moved
	}
	// The token is that of the write, so that a repeated write repeats this too.
	result.Apart = &keystore.BodyRef{
		Token: keystore.Token(job.WriteID),
		Size:  int64(len(job.Result.Body)),
		Sum:   keystore.DigestOf(job.Result.Body),
	}
	return &record, s.putBody(ctx, result.Apart.Token, job.Result.Body, job.Expires.Sub(s.Now())+bodyMargin)
}

func (s *Store) putBody(ctx context.Context, token keystore.Token, body []byte, ttl time.Duration) error {
	key := s.bodyKey(token)
	_, err := call(ctx, s, "write body", writes, func(ctx context.Context) (struct{}, error) {
		cmd := redis.NewStatusCmd(ctx, "set", key, body, "px", max(ttl, bodyMargin).Milliseconds())
		return struct{}{}, s.client.Process(ctx, cmd)
	})
	return err
}

func (s *Store) bodyKey(t keystore.Token) string { return s.prefix + "r:" + t.String() }

func matches(body []byte, ref *keystore.BodyRef) bool {
	return int64(len(body)) == ref.Size && keystore.DigestOf(body) == ref.Sum
}

// decode returns the job in a record, with its body from wherever that is. A
// body that is missing or not the one that was written is not kept, no more and
// no less: the job was executed all the same.
func (s *Store) decode(ctx context.Context, what string, name keystore.Name, record []byte) (*keystore.Job, error) {
	job, err := keystore.DecodeRecord(name, record)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if job.Result == nil || job.Result.Apart == nil {
		return job, nil
	}
	body, err := s.get(ctx, what+": read body", s.bodyKey(job.Result.Apart.Token))
	if err != nil && !errors.Is(err, keystore.ErrCorrupt) {
		return nil, err
	}
	if matches(body, job.Result.Apart) {
		job.Result.Body = body
	} else {
		job.Result.Apart, job.Result.NotKept = nil, true
	}
	return job, nil
}
