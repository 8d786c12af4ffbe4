package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var indexTests = []testCase{
	{"index/order and pages", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		const n = 23
		want := make([]string, n)
		for i := range n {
			want[i] = fmt.Sprintf("k%02d", i)
		}
		for _, i := range shuffled(n) {
			j := mustCreate(t, s, startingFor(s, want[i], retention, time.Duration(i+1)*time.Minute))
			mustIndex(t, s, keystore.IndexEntryOf(j))
		}
		for _, limit := range []int{1, 5, n - 1, n, n + 1, 1000} {
			if got := keysOf(listAll(t, other, limit)); !slices.Equal(got, want) {
				t.Errorf("in pages of %d: got %v, want %v", limit, got, want)
			}
		}
	}},
	{"index/one lease end", func(t *testing.T, b Backend) {
		s := b.Open(t)
		const n = 25
		first := startingFor(s, "k00", retention, time.Minute)
		var want []string
		var entries []keystore.IndexEntry
		for i := range n {
			j := startingFor(s, fmt.Sprintf("k%02d", i), retention, time.Minute)
			j.Attempts[0].Lease = first.Attempts[0].Lease
			mustCreate(t, s, j)
			want = append(want, j.KeySent)
			entries = append(entries, keystore.IndexEntryOf(j))
		}
		mustIndex(t, s, entries...)
		for _, limit := range []int{1, 4, 100} {
			got := keysOf(listAll(t, s, limit))
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("in pages of %d: got %v, want %v", limit, got, want)
			}
		}
	}},
	{"index/only what is true", func(t *testing.T, b Backend) {
		s := b.Open(t)
		ctx := contextOf(t)
		var want []string
		for i := range 4 {
			key := func(kind string) string { return fmt.Sprintf("%d %s", i, kind) }
			lease := time.Duration(i+1) * time.Minute
			never := startingFor(s, key("never written"), retention, lease)
			mustIndex(t, s, keystore.IndexEntryOf(never))

			run := mustCreate(t, s, startingFor(s, key("running"), retention, lease+1*time.Second))
			mustIndex(t, s, keystore.IndexEntryOf(run))

			done := mustCreate(t, s, startingFor(s, key("completed"), retention, lease+2*time.Second))
			mustIndex(t, s, keystore.IndexEntryOf(done))
			mustSwap(t, s, done.WriteID, completed(s, done, []byte("paid")))

			failed := mustCreate(t, s, startingFor(s, key("open"), retention, lease+3*time.Second))
			mustIndex(t, s, keystore.IndexEntryOf(failed))
			mustSwap(t, s, failed.WriteID, open(s, failed))

			lost := mustCreate(t, s, startingFor(s, key("unknown"), retention, lease+4*time.Second))
			mustIndex(t, s, keystore.IndexEntryOf(lost))
			mustSwap(t, s, lost.WriteID, unknown(s, lost))
			want = append(want, run.KeySent, lost.KeySent)
		}
		for _, limit := range []int{1, 3, 100} {
			// More than once: the first list may drop what is no longer true, and
			// must drop nothing else.
			for range 3 {
				if got := keysOf(listAll(t, s, limit)); !slices.Equal(got, want) {
					t.Errorf("in pages of %d: got %v, want %v", limit, got, want)
				}
			}
		}
		page, _, err := s.List(ctx, "", 3)
		if err != nil || len(page) > 3 {
			t.Errorf("list: got %d jobs, %v; want at most 3", len(page), err)
		}
	}},
	{"index/entered before the write", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := starting(s, "created later")
		mustIndex(t, s, keystore.IndexEntryOf(j))
		for range 3 {
			if got := listAll(t, other, 10); len(got) != 0 {
				t.Fatalf("got %v, want nothing yet", keysOf(got))
			}
		}
		mustCreate(t, s, j)
		if got := keysOf(listAll(t, other, 10)); !slices.Equal(got, []string{"created later"}) {
			t.Fatalf("got %v: whoever listed meanwhile has lost the entry", got)
		}
	}},
	{"index/entered again", func(t *testing.T, b Backend) {
		s := b.Open(t)
		first := mustCreate(t, s, startingFor(s, "first", retention, time.Minute))
		second := mustCreate(t, s, startingFor(s, "second", retention, 2*time.Minute))
		mustIndex(t, s, keystore.IndexEntryOf(first), keystore.IndexEntryOf(second))
		longer := mustSwap(t, s, first.WriteID, renewed(renewed(first)))
		mustIndex(t, s, keystore.IndexEntryOf(longer))
		got := listAll(t, s, 1)
		if keys := keysOf(got); !slices.Equal(keys, []string{"second", "first"}) {
			t.Fatalf("got %v, want each once, in the new order", keys)
		}
		mustEqual(t, got[1], longer)
	}},
	{"index/the present record", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		mustIndex(t, s, keystore.IndexEntryOf(j))
		lost := mustSwap(t, s, j.WriteID, unknown(s, j))
		got := listAll(t, s, 10)
		if len(got) != 1 {
			t.Fatalf("got %d jobs, want 1", len(got))
		}
		mustEqual(t, got[0], lost)
	}},
	{"index/of nothing", func(t *testing.T, b Backend) {
		s := b.Open(t)
		mustIndex(t, s)
		if got := listAll(t, s, 10); len(got) != 0 {
			t.Errorf("got %v, want nothing", keysOf(got))
		}
	}},
	{"index/a corrupt record hides no other", func(t *testing.T, b Backend) {
		s := b.Open(t)
		broken := mustCreate(t, s, startingFor(s, "broken", retention, time.Minute))
		good := mustCreate(t, s, startingFor(s, "good", retention, 2*time.Minute))
		mustIndex(t, s, keystore.IndexEntryOf(broken), keystore.IndexEntryOf(good))
		b.Garble(t, broken.Name, []byte("garbage"))
		for range 2 {
			if got := keysOf(listAll(t, s, 1)); !slices.Equal(got, []string{"good"}) {
				t.Fatalf("got %v, want the good one", got)
			}
		}
		b.Garble(t, broken.Name, mustEncode(broken))
		if got := keysOf(listAll(t, s, 1)); !slices.Equal(got, []string{"broken", "good"}) {
			t.Errorf("mended: got %v, want both: the entry of a record that can't be read stays", got)
		}
	}},
	{"index/many", func(t *testing.T, b Backend) {
		s := b.Open(t)
		const n = 450
		var entries []keystore.IndexEntry
		for i := range n {
			j := startingFor(s, fmt.Sprintf("k%03d", i), retention, time.Minute)
			if i%3 == 0 { // the others are stale
				mustCreate(t, s, j)
			}
			entries = append(entries, keystore.IndexEntryOf(j))
		}
		mustIndex(t, s, entries...)
		if got := listAll(t, s, 100); len(got) != n/3 {
			t.Errorf("got %d jobs, want %d", len(got), n/3)
		}
	}},
}

func mustIndex(t *testing.T, s keystore.Store, entries ...keystore.IndexEntry) {
	t.Helper()
	if err := s.Index(contextOf(t), entries...); err != nil {
		t.Fatalf("index: %v", err)
	}
}

// listAll lists page by page up to the end.
func listAll(t *testing.T, s keystore.Store, limit int) (jobs []*keystore.Job) {
	t.Helper()
	cursor := ""
	for range 10_000 {
		page, next, err := s.List(contextOf(t), cursor, limit)
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		if len(page) > limit {
			t.Fatalf("list: got a page of %d, want at most %d", len(page), limit)
		}
		jobs = append(jobs, page...)
		if next == "" {
			return jobs
		}
		cursor = next
	}
	t.Fatal("list: it comes to no end")
	return nil
}

func keysOf(jobs []*keystore.Job) (keys []string) {
	for _, j := range jobs {
		keys = append(keys, j.KeySent)
	}
	return keys
}

// shuffled returns 0 to n-1 in an order that is not theirs, the same every time.
func shuffled(n int) []int {
	order := make([]int, n)
	for i := range n {
		order[i] = (i*7 + 3) % n
	}
	return order
}
