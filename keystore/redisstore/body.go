package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
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
	// keptTime is how long at least the body is kept that an attempt keeps as
	// evidence. Its job is unresolved and so never expires; but no body is written
	// without an expiry, or those whose record never came to be would stay for ever.
	keptTime = 30 * 24 * time.Hour
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
	if !anyAnswer(job, func(resp *keystore.Response) bool { return isLarge(resp) || resp != nil && resp.Apart != nil }) {
		return job, nil
	}
	record := *job
	record.Attempts = slices.Clone(job.Attempts)
	// The token is that of the write, so that a repeated write repeats this too.
	result, err := s.setBodyApart(ctx, job.Name, job.Result, b, keystore.Token(job.WriteID), job.Expires.Sub(s.Now()))
	if err != nil {
		return nil, err
	}
	record.Result = result
	for i := range record.Attempts {
		a := &record.Attempts[i]
		if a.Kept, err = s.setBodyApart(ctx, job.Name, a.Kept, b, keptToken(job.WriteID, a.Token), max(job.Retention, keptTime)); err != nil {
			return nil, err
		}
	}
	return &record, nil
}

// anyAnswer reports whether one of the answers that the job has, or nil, is so.
func anyAnswer(job *keystore.Job, is func(*keystore.Response) bool) bool {
	return is(job.Result) || slices.ContainsFunc(job.Attempts, func(a keystore.Attempt) bool { return is(a.Kept) })
}

// large reports whether a body of the job is to be kept apart.
func large(job *keystore.Job) bool { return anyAnswer(job, isLarge) }

func isLarge(resp *keystore.Response) bool { return size(resp) > maxInline }

func size(resp *keystore.Response) int {
	if resp == nil {
		return 0
	}
	return len(resp.Body)
}

// keptToken names the body that an attempt keeps; one write can have several.
func keptToken(id keystore.WriteID, attempt keystore.Token) (t keystore.Token) {
	sum := keystore.DigestOf(append(id[:], attempt[:]...))
	copy(t[:], sum[:])
	return t
}

// setBodyApart returns the answer as its record shows it. If its body is to be
// written, that is under this token, for as long as said and a margin.
func (s *Store) setBodyApart(ctx context.Context, name keystore.Name, whole *keystore.Response, b bodies, token keystore.Token, ttl time.Duration) (*keystore.Response, error) {
	if whole == nil {
		return nil, nil
	}
	resp := *whole
	switch {
	case len(resp.Body) == 0 && resp.Apart != nil:
		// A page of Scan or List shows a job so. Its body is where it was; only a new
		// record can't count on that.
		if b == bodyAnew {
			resp.Apart, resp.NotKept = nil, true
		}
		return &resp, nil
	case len(resp.Body) <= maxInline:
		resp.Apart = nil
		return &resp, nil
	}
	resp.Body = nil
	switch {
	case b == bodyLeftOut:
		resp.Apart = nil
		return &resp, nil
	case b == bodyReused && resp.Apart != nil && matches(whole.Body, resp.Apart):
		return &resp, nil // it was written to last: a result as long as its record, whose expiry is never moved
	}
	resp.Apart = &keystore.BodyRef{Token: token, Size: int64(len(whole.Body)), Sum: xxhash.Sum64(whole.Body)}
	return &resp, s.putBody(ctx, name, token, whole.Body, ttl+bodyMargin)
}

func (s *Store) putBody(ctx context.Context, name keystore.Name, token keystore.Token, body []byte, ttl time.Duration) error {
	key := s.bodyKey(name, token)
	_, err := call(ctx, s, "write body", key, writes, func(ctx context.Context, n *node) (struct{}, error) {
		cmd := redis.NewStatusCmd(ctx, "set", key, body, "px", max(ttl, bodyMargin).Milliseconds())
		return struct{}{}, n.do(ctx, cmd)
	})
	return err
}

// letGo lets bodies expire that no record points to any more. If that fails, they
// stay as long as they would have done.
func (s *Store) letGo(ctx context.Context, name keystore.Name, refs []keystore.BodyRef, in time.Duration) {
	for _, ref := range refs {
		key := s.bodyKey(name, ref.Token)
		_, _ = call(ctx, s, "let a body go", key, writes, func(ctx context.Context, n *node) (struct{}, error) {
			return struct{}{}, n.do(ctx, redis.NewBoolCmd(ctx, "pexpire", key, in.Milliseconds()))
		})
	}
}

// bodyKey has the record's hash tag: of two servers of a cluster, one could be lost
// without the other, and replicas acknowledge writes of one server.
func (s *Store) bodyKey(n keystore.Name, t keystore.Token) string {
	return s.prefix + "r:{" + n.String() + "}:" + t.String()
}

func matches(body []byte, ref *keystore.BodyRef) bool {
	return int64(len(body)) == ref.Size && xxhash.Sum64(body) == ref.Sum
}

// decode returns the job in a record, with its bodies from wherever they are. A
// body that is missing or not the one that was written is not kept, no more and
// no less: the job was executed all the same.
func (s *Store) decode(ctx context.Context, what string, name keystore.Name, record []byte) (*keystore.Job, error) {
	job, err := keystore.DecodeRecord(name, record)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := s.fetchBody(ctx, what, name, job.Result); err != nil {
		return nil, err
	}
	for i := range job.Attempts {
		if err := s.fetchBody(ctx, what, name, job.Attempts[i].Kept); err != nil {
			return nil, err
		}
	}
	return job, nil
}

func (s *Store) fetchBody(ctx context.Context, what string, name keystore.Name, resp *keystore.Response) error {
	if resp == nil || resp.Apart == nil {
		return nil
	}
	body, err := s.get(ctx, what+": read body", s.bodyKey(name, resp.Apart.Token), call[[]byte])
	if err != nil && !errors.Is(err, keystore.ErrCorrupt) {
		return err
	}
	if matches(body, resp.Apart) {
		resp.Body = body
	} else {
		resp.Apart, resp.NotKept = nil, true
	}
	return nil
}
