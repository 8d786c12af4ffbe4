package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// shiftClock lets time pass on the store's clock.
func shiftClock(s *Store, d time.Duration) {
	s.clock.sample.Store(&clockSample{server: s.clock.now().Add(d), local: time.Now()})
}

func entries(t *testing.T, c *redis.Client) map[string]float64 {
	t.Helper()
	all, err := c.ZRangeWithScores(contextOf(t), DefaultPrefix+"unresolved", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	scores := make(map[string]float64)
	for _, z := range all {
		scores[z.Member.(string)] = z.Score
	}
	return scores
}

func mustIndex(t *testing.T, s *Store, j *keystore.Job) {
	t.Helper()
	if err := s.Index(contextOf(t), keystore.IndexEntryOf(j)); err != nil {
		t.Fatal(err)
	}
}

func mustList(t *testing.T, s *Store) (keys []string) {
	t.Helper()
	jobs, _, err := s.List(contextOf(t), "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		keys = append(keys, j.KeySent)
	}
	return keys
}

// TestIndexDropsStaleEntries: an entry that stays untrue is removed, after it
// has been untrue for longer than a write takes.
func TestIndexDropsStaleEntries(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s, admin := openAt(t, "redis://"+addr), rawClient(t, "redis://"+addr)
		eventually(t, "the clock is sampled", func() bool { _, known := s.ClockOffset(); return known })
		stale := mustCreate(t, s, job(s, "stale"))
		running := mustCreate(t, s, job(s, "running"))
		mustIndex(t, s, stale)
		mustIndex(t, s, running)
		mustSwap(t, s, stale.WriteID, completed(s, stale, nil))
		if err := admin.ZAdd(contextOf(t), s.indexKey(), redis.Z{Score: 1, Member: "not a name"}).Err(); err != nil {
			t.Fatal(err)
		}
		for minute := range staleMinutes + 1 {
			if got := mustList(t, s); len(got) != 1 || got[0] != "running" {
				t.Fatalf("minute %d: got %v, want the running one", minute, got)
			}
			if n := len(entries(t, admin)); minute < staleMinutes && n != 3 {
				t.Fatalf("minute %d: %d entries are left, want all three", minute, n)
			}
			shiftClock(s, time.Minute)
		}
		if got := entries(t, admin); len(got) != 1 || got[running.Name.String()] != float64(running.LeaseEnd()) {
			t.Errorf("got entries %v, want the running job's as it was made", got)
		}
	})
}

// TestIndexEntryMadeAgainStays: an entry is about to be removed, and its job is
// entered again just before, or between reading and removing. It has to stay:
// the write that makes it true may still be on its way.
func TestIndexEntryMadeAgainStays(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		s, admin := openAt(t, "redis://"+addr), rawClient(t, "redis://"+addr)
		eventually(t, "the clock is sampled", func() bool { _, known := s.ClockOffset(); return known })
		j := job(s, "k")

		for when, again := range map[string]func(){
			"before": func() {
				mustIndex(t, s, j)
				mustList(t, s)
			},
			"between reading and removing": func() {
				from, err := parseCursor("")
				if err != nil {
					t.Fatal(err)
				}
				read, err := s.entriesAfter(contextOf(t), "list", from, 10)
				if err != nil {
					t.Fatal(err)
				}
				mustIndex(t, s, j)
				if err := s.sweep(contextOf(t), "list", read); err != nil {
					t.Fatal(err)
				}
			},
			"between reading and removing, and was marked since": func() {
				from, _ := parseCursor("")
				read, err := s.entriesAfter(contextOf(t), "list", from, 10)
				if err != nil {
					t.Fatal(err)
				}
				mustIndex(t, s, j)
				mustList(t, s) // another gateway's
				if err := s.sweep(contextOf(t), "list", read); err != nil {
					t.Fatal(err)
				}
			},
		} {
			mustIndex(t, s, j)
			mustList(t, s) // marks it
			shiftClock(s, (staleMinutes+1)*time.Minute)
			again() // and would have removed it
			if n := len(entries(t, admin)); n != 1 {
				t.Fatalf("entered again %s: the entry was removed", when)
			}
		}
		mustCreate(t, s, j)
		if got := mustList(t, s); len(got) != 1 {
			t.Errorf("got %v, want the job that was created at last", got)
		}
	})
}

// TestMarks: a mark tells for how many minutes it has been there.
func TestMarks(t *testing.T) {
	t.Parallel()
	for _, marked := range []int64{0, 1, 1021, 1022, 1023, 29_999_999} {
		score := 1_764_000_000_000 + markOf(marked)
		if score == 1_764_000_000_000 || score >= 1_764_000_000_001 {
			t.Fatalf("minute %d: the mark is %v", marked, markOf(marked))
		}
		mark := score - 1_764_000_000_000
		for _, passed := range []int64{0, 1, 3, 500, 1022} {
			if got := minutesSince(mark, marked+passed); got != passed {
				t.Errorf("marked in minute %d, %d minutes ago: got %d", marked, passed, got)
			}
		}
	}
}

// TestIndexLarge shows that listing goes on behind a batch of entries none of
// which is true.
func TestIndexLarge(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := openAt(t, "redis://"+m.Addr())
	for i := range 3 * indexBatch {
		if _, err := m.ZAdd(s.indexKey(), float64(i), job(s, fmt.Sprint(i)).Name.String()); err != nil {
			t.Fatal(err)
		}
	}
	mustIndex(t, s, mustCreate(t, s, job(s, "k")))
	if got := mustList(t, s); len(got) != 1 || got[0] != "k" {
		t.Errorf("got %v, want k", got)
	}
	if _, _, err := s.List(contextOf(t), "no cursor", 1); err == nil {
		t.Error("a cursor that is none was taken")
	}
}
