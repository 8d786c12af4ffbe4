package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	defaultScan = 100
	// maxScan bounds how many keys the server looks at in one go, while everybody
	// else waits, and how much comes back.
	maxScan = 500
)

// Scan implements [keystore.Store]. It takes two round trips. A limit that is not
// positive stands for 100, and 500 is the largest; how much a page holds is up to
// the server, which finds little in a database that is full of something else.
//
// A cursor is the server's own. Where another server has taken its place, a scan
// can miss jobs.
func (s *Store) Scan(ctx context.Context, cursor string, limit int) (page []*keystore.Job, next string, err error) {
	const what = "scan jobs"
	var from uint64
	if cursor != "" {
		if from, err = strconv.ParseUint(cursor, 10, 64); err != nil || from == 0 {
			return nil, "", fmt.Errorf("%s: the cursor is not one of this store", what)
		}
	}
	if limit <= 0 {
		limit = defaultScan
	}
	prefix := s.prefix + "j:"
	type scanned struct {
		keys []string
		next uint64
	}
	found, err := call(ctx, s, what, reads, func(ctx context.Context) (found scanned, err error) {
		found.keys, found.next, err = s.client.Scan(ctx, from, escapeGlob(prefix)+"*", int64(min(limit, maxScan))).Result()
		return found, err
	})
	if err != nil {
		return nil, "", err
	}
	if found.next != 0 {
		next = strconv.FormatUint(found.next, 10)
	}
	var names []keystore.Name
	var keys []string
	for _, key := range found.keys {
		// The name has to be spelled as this store does it: what stands under
		// another spelling is not the record that a read of that name finds.
		member, ours := strings.CutPrefix(key, prefix)
		if name, err := nameOf(member); ours && err == nil && name.String() == member {
			names = append(names, name)
			keys = append(keys, key)
		}
	}
	records, err := s.getMany(ctx, what, keys)
	if err != nil {
		return nil, "", err
	}
	for i, r := range records {
		if r.missing() {
			continue // expired since
		}
		if job, err := r.decode(names[i]); err == nil {
			page = append(page, job)
		}
	}
	return page, next, nil
}

// escapeGlob returns the pattern that matches s alone.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// read is what was found under a key: a record, nothing, or something else.
type read struct {
	record []byte
	err    error // it is no string
}

func (r read) missing() bool { return r.record == nil && r.err == nil }

// decode returns the job without a body that is kept apart.
func (r read) decode(name keystore.Name) (*keystore.Job, error) {
	if r.err != nil {
		return nil, r.err
	}
	return keystore.DecodeRecord(name, r.record)
}

// getMany reads the values of keys in one round trip.
func (s *Store) getMany(ctx context.Context, what string, keys []string) ([]read, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	return call(ctx, s, what, reads, func(ctx context.Context) ([]read, error) {
		pipe := s.client.Pipeline()
		cmds := make([]*redis.StringCmd, len(keys))
		for i, key := range keys {
			cmds[i] = pipe.Get(ctx, key)
		}
		if _, err := pipe.Exec(ctx); err != nil && !errors.As(err, new(redis.Error)) {
			return nil, err
		}
		found := make([]read, len(keys))
		for i, cmd := range cmds {
			record, err := bytesOf(cmd)
			if err != nil && !fateOf(err).corrupt {
				return nil, err
			}
			found[i] = read{record, err}
		}
		return found, nil
	})
}
