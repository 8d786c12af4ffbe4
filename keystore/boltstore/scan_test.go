package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// In pages of any size every job comes once, the last one is not followed by an
// empty page, and bodies bound a page too.
func TestScanPages(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	var want []string
	for i := range 20 {
		j := completed(claimed(fmt.Sprint(i), s.Now()), s.Now(), make([]byte, 1<<20))
		mustCreate(t, s, j)
		want = append(want, j.KeySent)
	}
	slices.Sort(want)
	for _, c := range []struct{ limit, pages int }{{1, 20}, {3, 7}, {10, 3}, {100, 3}, {0, 3}} {
		var got []string
		pages := 0
		for cursor := ""; ; pages++ {
			page, next, err := s.Scan(t.Context(), cursor, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page {
				got = append(got, j.KeySent)
			}
			if cursor = next; next == "" {
				break
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || pages+1 != c.pages {
			t.Errorf("pages of %d: got %v on %d, want each once on %d", c.limit, got, pages+1, c.pages)
		}
	}
}

// However many records are none any more, one transaction looks at a bounded
// number of them.
func TestScanOverExpired(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	s := newStore(t, Options{Clock: clock.Now})
	for _, swap := range s.SwapMany(t.Context(), manyJobs(t, s, maxScan+100, 0)) {
		if !swap.Swapped {
			t.Fatalf("got %+v", swap)
		}
	}
	clock.Advance(2 * retention)
	page, next, err := s.Scan(t.Context(), "", 10)
	if len(page) != 0 || next == "" || err != nil {
		t.Fatalf("got %d jobs, cursor %q, %v; want an empty page that is not the last", len(page), next, err)
	}
	if page, next, err = s.Scan(t.Context(), next, 10); len(page) != 0 || next != "" || err != nil {
		t.Fatalf("got %d jobs, cursor %q, %v; want the end", len(page), next, err)
	}
}

func TestScanLogsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newStore(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	broken, good := claimed("broken", s.Now()), claimed("good", s.Now())
	mustCreate(t, s, good)
	garble(t, s, broken.Name, []byte("nonsense"))
	err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
		b.dirty = true
		return b.jobs.Put([]byte("short"), []byte("nonsense"))
	}})
	if err != nil {
		t.Fatal(err)
	}
	page, next, err := s.Scan(t.Context(), "", 10)
	if err != nil || next != "" || len(page) != 1 || sameJob(page[0], good) != nil {
		t.Errorf("got %v, cursor %q, %v", page, next, err)
	}
	for _, name := range []string{broken.Name.String(), "73686f7274"} {
		if !strings.Contains(log.String(), name) {
			t.Errorf("the log does not tell of %s: %s", name, log.String())
		}
	}
}

func TestScanRefuses(t *testing.T) {
	t.Parallel()
	s := newStore(t, Options{})
	for _, cursor := range []string{"no cursor", "00", strings.Repeat("0", 2*entryLen)} {
		if _, _, err := s.Scan(t.Context(), cursor, 10); err == nil {
			t.Errorf("the cursor %q was taken", cursor)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Scan(ended, "", 10); err == nil {
		t.Error("scanned for nobody")
	}
}
