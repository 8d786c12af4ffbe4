package boltstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// listed returns the keys of all jobs in the index, page by page.
func listed(t testing.TB, s *Store, limit int) (keys []string) {
	t.Helper()
	for cursor := ""; ; {
		page, next, err := s.List(t.Context(), cursor, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) > limit {
			t.Fatalf("a page of %d, want at most %d", len(page), limit)
		}
		for _, j := range page {
			keys = append(keys, j.KeySent)
		}
		if next == "" {
			return keys
		}
		cursor = next
	}
}

func wantIndex(t testing.TB, s *Store, want int) {
	t.Helper()
	if got := entries(t, s); got["unresolved"] != want || got["lease"] != want {
		t.Fatalf("%d entries and %d leases in the index, want %d", got["unresolved"], got["lease"], want)
	}
}

func mustIndex(t testing.TB, s *Store, entries ...keystore.IndexEntry) {
	t.Helper()
	if err := s.Index(t.Context(), entries...); err != nil {
		t.Fatal(err)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	if got := listed(t, s, 3); len(got) != 0 {
		t.Fatalf("an empty store lists %v", got)
	}
	var want []string
	var jobs []*keystore.Job
	for i := range 20 {
		j := claimed(fmt.Sprint(i), s.Now())
		mustCreate(t, s, j)
		jobs = append(jobs, j)
		want = append(want, j.KeySent)
		if i%2 == 0 {
			clock.Advance(time.Millisecond) // pairs with the same lease end
		}
	}
	for _, j := range slices.Backward(jobs) {
		mustIndex(t, s, keystore.IndexEntryOf(j))
	}
	for _, limit := range []int{1, 3, 20, 100} {
		got := listed(t, s, limit)
		if len(got) != len(want) {
			t.Fatalf("pages of %d: %v", limit, got)
		}
		for i := 1; i < len(got); i += 2 { // a pair comes in the order of names
			if got[i] != want[i] {
				got[i], got[min(i+1, len(got)-1)] = got[min(i+1, len(got)-1)], got[i]
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("pages of %d: got %v, want %v", limit, got, want)
		}
	}
	if _, _, err := s.List(t.Context(), "nonsense", 1); err == nil {
		t.Error("a cursor of something else was accepted")
	}
}

func TestIndexKeepsOneEntryPerName(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	e := keystore.IndexEntryOf(j)
	later := keystore.IndexEntry{Name: e.Name, LeaseEnd: e.LeaseEnd + 1000}
	mustIndex(t, s, e, later)
	wantIndex(t, s, 1)
	mustIndex(t, s, e)
	mustIndex(t, s)
	wantIndex(t, s, 1)
	before := s.commits.Load()
	mustIndex(t, s, e)
	if s.commits.Load() != before {
		t.Error("entering what is there took a commit")
	}
	if got := listed(t, s, 10); len(got) != 1 {
		t.Fatalf("listed %v", got)
	}
}

func TestListDropsWhatIsNoLongerTrue(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	var all []*keystore.Job
	for i := range 4 {
		j := claimed(fmt.Sprint(i), s.Now())
		mustCreate(t, s, j)
		all = append(all, j)
		mustIndex(t, s, keystore.IndexEntryOf(j))
	}
	mustIndex(t, s, keystore.IndexEntry{Name: keystore.NameOf("main", "alice", "never"), LeaseEnd: s.Now()})
	mustSwap(t, s, all[0], completed(all[0], s.Now(), nil))
	mustSwap(t, s, all[1], failed(all[1], s.Now()))
	garble(t, s, all[2].Name, []byte("nonsense"))

	// While its lease lasts, an entry may have come before the write that makes
	// it true.
	if got := listed(t, s, 10); !slices.Equal(got, []string{"3"}) {
		t.Fatalf("listed %v", got)
	}
	wantIndex(t, s, 4)
	clock.Advance(2 * time.Minute)
	if got := listed(t, s, 1); !slices.Equal(got, []string{"3"}) {
		t.Fatalf("listed %v", got)
	}
	wantIndex(t, s, 2) // the running one and the unreadable one
}

// What is entered again, or becomes true, between the look and the dropping stays.
func TestDroppingLosesNothing(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	open := claimed("open", s.Now())
	mustCreate(t, s, open)
	stale := []keystore.IndexEntry{keystore.IndexEntryOf(open)}
	mustIndex(t, s, stale...)
	openNext := failed(open, s.Now())
	mustSwap(t, s, open, openNext)
	clock.Advance(2 * time.Minute)
	// A sweeper has seen it as stale here, and then it is started again.
	running := openNext.Start(keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: time.Minute, Listen: time.Minute})
	running.WriteID = keystore.NewWriteID()
	again := keystore.IndexEntryOf(running)
	mustIndex(t, s, again)
	if err := s.drop(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	wantIndex(t, s, 1)
	mustSwap(t, s, openNext, running)
	if err := s.drop(t.Context(), []keystore.IndexEntry{again}); err != nil {
		t.Fatal(err)
	}
	clock.Advance(2 * time.Minute)
	if err := s.drop(t.Context(), []keystore.IndexEntry{again}); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, s, 10); !slices.Equal(got, []string{"open"}) {
		t.Fatalf("listed %v", got)
	}
}

// More stale entries than one look takes are passed over in one call.
func TestListPassesManyStaleEntries(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	var stale []keystore.IndexEntry
	for i := range 2*maxScan + 10 {
		stale = append(stale, keystore.IndexEntry{Name: keystore.NameOf("main", "alice", fmt.Sprint("stale", i)), LeaseEnd: s.Now()})
	}
	mustIndex(t, s, stale...)
	j := claimed("k", s.Now())
	mustCreate(t, s, j)
	mustIndex(t, s, keystore.IndexEntryOf(j))
	page, next, err := s.List(t.Context(), "", 1)
	if err != nil || next != "" || len(page) != 1 {
		t.Fatalf("%d jobs, next %q, error %v", len(page), next, err)
	}
	wantIndex(t, s, 1)
}
