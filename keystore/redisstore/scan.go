package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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
// A cursor is the server's own, and in a cluster names that server too, since one
// is scanned after the other. Where another server has taken its place, or a job has
// moved to another one meanwhile, a scan can miss jobs.
func (s *Store) Scan(ctx context.Context, cursor string, limit int) (page []*keystore.Job, next string, err error) {
	const what = "scan jobs"
	at, from, err := parseScanCursor(cursor)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", what, err)
	}
	if limit <= 0 {
		limit = defaultScan
	}
	masters, err := apart(ctx, s, what, func() ([]*node, error) { return s.masters(ctx, what) })
	if err != nil {
		return nil, "", err
	}
	if len(masters) > 1 {
		// What a server that is no longer there had left to tell is lost.
		for len(masters) > 0 && masters[0].addr() < at {
			masters = masters[1:]
		}
		if len(masters) == 0 {
			return nil, "", nil
		}
		if masters[0].addr() != at {
			at, from = masters[0].addr(), 0
		}
	}
	prefix, suffix := s.prefix+"j:{", "}"
	type scanned struct {
		keys []string
		next uint64
	}
	found, err := callAt(ctx, s, what, target{addr: at}, reads, func(ctx context.Context, n *node) (found scanned, err error) {
		cmd := redis.NewScanCmd(ctx, n.via.Process, "scan", from, "match", escapeGlob(prefix)+"*", "count", min(limit, maxScan))
		err = n.do(ctx, cmd)
		found.keys, found.next = cmd.Val()
		return found, err
	})
	if err != nil {
		return nil, "", err
	}
	switch {
	case found.next != 0:
		next = scanCursor(at, found.next)
	case len(masters) > 1:
		next = scanCursor(masters[1].addr(), 0)
	}
	var names []keystore.Name
	var keys []string
	for _, key := range found.keys {
		// The name has to be spelled as this store does it: what stands under
		// another spelling is not the record that a read of that name finds.
		member, ours := strings.CutPrefix(key, prefix)
		member, whole := strings.CutSuffix(member, suffix)
		if name, err := nameOf(member); ours && whole && err == nil && name.String() == member {
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

// getMany reads the values of keys, in one round trip to each server that has some
// of them.
func (s *Store) getMany(ctx context.Context, what string, keys []string) ([]read, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	found, err := apart(ctx, s, what, func() ([]read, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		defer cancel()
		found := make([]read, len(keys))
		for i := range found {
			found[i].err = errNoReply
		}
		s.servers.spread(ctx, keys, func(n *node, some []int) {
			pipe := n.via.Pipeline()
			cmds := make([]*redis.StringCmd, len(some))
			for i, k := range some {
				cmds[i] = pipe.Get(ctx, keys[k])
				cmds[i].SetErr(errNoReply) // see lanes.send
			}
			began := time.Now()
			_, err := pipe.Exec(ctx)
			s.note(ctx, n, began, notNil(err))
			for i, k := range some {
				found[k].record, found[k].err = bytesOf(cmds[i], cmds[i].Err())
			}
		})
		return found, nil
	})
	if err != nil {
		return nil, err
	}
	for i := range found {
		if r := &found[i]; r.err != nil && !fateOf(r.err).corrupt {
			// It takes the way of every other call, with all its patience.
			if r.record, r.err = s.get(ctx, what, keys[i], call[[]byte]); r.err != nil && !errors.Is(r.err, keystore.ErrCorrupt) {
				return nil, r.err
			}
		}
	}
	return found, nil
}

// notNil returns the error unless it only says that there is no value.
func notNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// A scan's cursor is the number that a server has given, with its address before
// it in a cluster.

func scanCursor(addr string, n uint64) string {
	return strings.TrimPrefix(addr+" "+strconv.FormatUint(n, 10), " ")
}

func parseScanCursor(cursor string) (addr string, n uint64, err error) {
	if cursor == "" {
		return "", 0, nil
	}
	addr, number, ok := strings.Cut(cursor, " ")
	if !ok {
		addr, number = "", cursor
	}
	if n, err = strconv.ParseUint(number, 10, 64); err != nil || (n == 0 && !ok) {
		return "", 0, errors.New("the cursor is not one of this store")
	}
	return addr, n, nil
}
