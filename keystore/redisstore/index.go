package redisstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// The index of unresolved jobs is a sorted set: names, by lease end. It is not
// written in one step with the records, so that jobs need no common place in a
// cluster; entries are verified when they are read.
//
// An entry that is not true now may be about to be: it may have been made just
// before the write that makes it so. To remove it then would lose it for good.
// So whoever finds an entry untrue marks it, with the minute of that, in the
// fraction of its score; and only who finds it marked, minutes ago, removes it.
// Making an entry again, even with the same lease end, takes the mark away, and
// marks and removals are made only on the exact score that was read.

const (
	// indexBatch is how many entries are read or verified at once, and enterBatch
	// how many are written.
	indexBatch = 200
	enterBatch = 500
	// marks is how many different marks there are. The fraction of a score has
	// ten bits to spare.
	marks = 1 << 10
	// staleMinutes is for how many minutes an entry has to have been marked
	// before it is removed. It has to be longer than any write takes to land.
	staleMinutes = 3
)

func (s *Store) indexKey() string { return s.prefix + "unresolved" }

// Index implements [keystore.Store].
func (s *Store) Index(ctx context.Context, entries ...keystore.IndexEntry) error {
	for len(entries) > 0 {
		n := min(len(entries), enterBatch)
		args := make([]any, 0, 2+2*n)
		args = append(args, "zadd", s.indexKey())
		for _, e := range entries[:n] {
			args = append(args, float64(e.LeaseEnd), e.Name.String())
		}
		entries = entries[n:]
		_, err := call(ctx, s, "index jobs", s.indexKey(), writes, func(ctx context.Context, n *node) (any, error) {
			err := n.do(ctx, redis.NewIntCmd(ctx, args...))
			if isFull(err) { // it would keep out the write that it has to come before
				return n.runFull(ctx, err, indexScript, s.indexKey(), args[2:]...)
			}
			return nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// List implements [keystore.Store]. An entry whose record can't be read is left
// out, and stays in the index: it must not hide the others.
func (s *Store) List(ctx context.Context, after string, limit int) (page []*keystore.Job, next string, err error) {
	const what = "list jobs"
	from, err := parseCursor(after)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", what, err)
	}
	limit = max(limit, 1)
	for {
		entries, err := s.entriesAfter(ctx, what, from, min(indexBatch, limit-len(page)))
		if err != nil {
			return nil, "", err
		}
		if len(entries) == 0 {
			return page, "", nil
		}
		jobs, stale, err := s.verify(ctx, what, entries)
		if err != nil {
			return nil, "", err
		}
		// What a server that takes no writes can tell is told all the same.
		_ = s.sweep(ctx, what, stale)
		page = append(page, jobs...)
		from = entries[len(entries)-1]
		if len(page) >= limit {
			return page, from.cursor(), nil
		}
	}
}

// entry is an entry of the index as it was read.
type entry struct {
	score  float64
	member string
}

func (e entry) isAfter(o entry) bool {
	return e.score > o.score || (e.score == o.score && e.member > o.member)
}

func (e entry) formatScore() string { return strconv.FormatFloat(e.score, 'f', -1, 64) }

func (e entry) cursor() string { return e.formatScore() + " " + e.member }

func parseCursor(cursor string) (entry, error) {
	if cursor == "" {
		return entry{score: math.Inf(-1)}, nil
	}
	score, member, ok := strings.Cut(cursor, " ")
	f, err := strconv.ParseFloat(score, 64)
	if !ok || err != nil {
		return entry{}, errors.New("the cursor is not one of this store")
	}
	return entry{score: f, member: member}, nil
}

// entriesAfter returns up to n entries that come after this one. Entries of one
// score are in the order of their members.
func (s *Store) entriesAfter(ctx context.Context, what string, from entry, n int) ([]entry, error) {
	var entries []entry
	for offset := int64(0); ; offset += indexBatch {
		found, err := call(ctx, s, what, s.indexKey(), reads, func(ctx context.Context, n *node) ([]redis.Z, error) {
			cmd := redis.NewZSliceCmd(ctx, "zrangebyscore", s.indexKey(), minScore(from), "+inf", "withscores", "limit", offset, indexBatch)
			err := n.do(ctx, cmd)
			return cmd.Val(), err
		})
		if err != nil {
			return nil, err
		}
		for _, z := range found {
			member, _ := z.Member.(string)
			if e := (entry{z.Score, member}); e.isAfter(from) && len(entries) < n {
				entries = append(entries, e)
			}
		}
		if len(entries) == n || len(found) < indexBatch {
			return entries, nil
		}
	}
}

func minScore(e entry) string {
	if math.IsInf(e.score, -1) {
		return "-inf"
	}
	return e.formatScore()
}

// verify reads the records of entries: jobs are those that are unresolved,
// stale the entries whose job is not.
func (s *Store) verify(ctx context.Context, what string, entries []entry) (jobs []*keystore.Job, stale []entry, err error) {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = s.prefix + "j:{" + e.member + "}"
	}
	records, err := s.getMany(ctx, what, keys)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range records {
		name, err := nameOf(entries[i].member)
		if err != nil || r.missing() {
			stale = append(stale, entries[i])
			continue
		}
		job, err := r.decode(name)
		switch {
		case err != nil:
		case job.Unresolved():
			jobs = append(jobs, job)
		default:
			stale = append(stale, entries[i])
		}
	}
	return jobs, stale, nil
}

func nameOf(member string) (n keystore.Name, err error) {
	if len(member) != 2*len(n) {
		return n, errors.New("not a name")
	}
	_, err = hex.Decode(n[:], []byte(member))
	return n, err
}

// sweep marks stale entries, and removes those that have been marked for long.
func (s *Store) sweep(ctx context.Context, what string, stale []entry) error {
	if len(stale) == 0 {
		return nil
	}
	minute := int64(s.Now()) / 60_000
	var args []any
	for _, e := range stale {
		switch end, mark := math.Modf(e.score); {
		case mark == 0:
			args = append(args, e.member, e.formatScore(), entry{score: end + markOf(minute)}.formatScore())
		case minutesSince(mark, minute) >= staleMinutes:
			args = append(args, e.member, e.formatScore(), "")
		}
	}
	if len(args) == 0 {
		return nil
	}
	_, err := call(ctx, s, what+": sweep the index", s.indexKey(), writes, func(ctx context.Context, n *node) (any, error) {
		return n.run(ctx, staleScript, s.indexKey(), args...)
	})
	return err
}

// markOf is the fraction of a score that says in which minute an entry was
// found untrue. It comes round again after 17 hours: then an entry can look
// younger than it is, which does no harm.
func markOf(minute int64) float64 { return float64(1+minute%(marks-1)) / marks }

func minutesSince(mark float64, minute int64) int64 {
	const round = marks - 1
	marked := int64(mark*marks) - 1
	return ((minute%round-marked)%round + round) % round
}
