package boltstore

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/logged"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// occurrences are what the store logs, and how it comes about.
var occurrences = []struct {
	logged.Want
	happen func(t *testing.T, s *Store, f *failing, clock *testClock)
}{
	{
		logged.Want{Line: "a write has failed; opening the store file again", Fields: []string{"file", "error~injected"}},
		func(_ *testing.T, s *Store, f *failing, _ *testClock) { f.lose(s) },
	},
	{
		logged.Want{Line: "the store file is open again", Fields: []string{"file"}},
		func(t *testing.T, s *Store, f *failing, _ *testClock) {
			f.lose(s)
			f.mode.Store(commitsWork)
			mustCreate(t, s, claimed("k", s.Now()))
		},
	},
	{
		logged.Want{Line: "the store is unavailable: its file can't be opened again", Fields: []string{"file", "error~no such file"}},
		func(t *testing.T, s *Store, f *failing, _ *testClock) {
			aside := s.path + ".aside"
			if err := os.Rename(s.path, aside); err != nil {
				t.Fatal(err)
			}
			f.lose(s)
			if err := os.Rename(aside, s.path); err != nil {
				t.Fatal(err)
			}
		},
	},
	{
		logged.Want{Line: "closing the store file failed", Fields: []string{"file", "error~bad file descriptor"}},
		func(_ *testing.T, s *Store, f *failing, _ *testClock) {
			s.file.Load().handle.Close()
			f.lose(s)
		},
	},
	{
		logged.Want{Line: "a job can't be read", Fields: []string{"file", "record=" + claimed("k", 1).Name.String(), "error~can't be read"}},
		func(t *testing.T, s *Store, _ *failing, _ *testClock) {
			garble(t, s, claimed("k", 1).Name, []byte("nonsense"))
			if page, _, err := s.Scan(t.Context(), "", 10); len(page) != 0 || err != nil {
				t.Errorf("got %v, %v", page, err)
			}
		},
	},
	{
		logged.Want{Line: "a job can't be read: its name is none", Fields: []string{"file", "record=73686f7274"}},
		func(t *testing.T, s *Store, _ *failing, _ *testClock) {
			err := s.submit(t.Context(), &operation{apply: func(b *batch) error {
				b.dirty = true
				return b.jobs.Put([]byte("short"), []byte("nonsense"))
			}})
			if err != nil {
				t.Fatal(err)
			}
			if page, _, err := s.Scan(t.Context(), "", 10); len(page) != 0 || err != nil {
				t.Errorf("got %v, %v", page, err)
			}
		},
	},
	{
		logged.Want{Line: "an unresolved job can't be read", Fields: []string{"file", "record=" + claimed("k", 1).Name.String(), "error~can't be read"}},
		func(t *testing.T, s *Store, _ *failing, _ *testClock) {
			j := claimed("k", s.Now())
			mustCreate(t, s, j)
			if err := s.Index(t.Context(), keystore.IndexEntryOf(j)); err != nil {
				t.Fatal(err)
			}
			garble(t, s, j.Name, []byte("nonsense"))
			if page, _, err := s.List(t.Context(), "", 10); len(page) != 0 || err != nil {
				t.Errorf("got %v, %v", page, err)
			}
		},
	},
	{
		logged.Want{Line: "dropping stale entries from the index failed", Fields: []string{"file", "error~injected"}},
		func(t *testing.T, s *Store, f *failing, clock *testClock) {
			if err := s.Index(t.Context(), keystore.IndexEntryOf(claimed("k", s.Now()))); err != nil { // of which nothing is there
				t.Fatal(err)
			}
			clock.Advance(retention)
			f.mode.Store(commitsAreLost)
			if page, _, err := s.List(t.Context(), "", 10); len(page) != 0 || err != nil {
				t.Errorf("got %v, %v", page, err)
			}
		},
	},
	{
		logged.Want{Line: "purging expired jobs failed", Fields: []string{"file", "error"}},
		func(t *testing.T, s *Store, f *failing, clock *testClock) {
			j := claimed("k", s.Now())
			mustCreate(t, s, j)
			mustSwap(t, s, j, completed(j, s.Now(), []byte("done")))
			f.mode.Store(commitsAreLost)
			clock.Advance(2 * retention)
		},
	},
}

// lose makes a write fail from now on.
func (f *failing) lose(s *Store) {
	f.mode.Store(commitsAreLost)
	_ = s.submit(context.Background(), &operation{apply: func(b *batch) error { b.dirty = true; return nil }})
}

// Every line is logged as it is documented, nothing else is, and nothing tells a key or
// an owner.
func TestEverythingThatIsLoggedIsSeen(t *testing.T) {
	documented := logged.Documented(t, "../..")
	var lines, fields []string
	for _, o := range occurrences {
		lines = append(lines, o.Line)
		t.Run(o.Line, func(t *testing.T) {
			var log logged.Recorder
			f, clock := new(failing), newTestClock()
			s := newStore(t, Options{Logger: log.Logger(), Clock: clock.Now, commit: f.commit, reopenEvery: time.Nanosecond, idleEvery: time.Millisecond})
			o.happen(t, s, f, clock)
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				if slices.ContainsFunc(log.Lines(), func(l logged.Line) bool { return l.Text == o.Line }) {
					break
				}
			}
			f.mode.Store(commitsWork) // for the end
			fields = append(fields, log.Check(t, documented, o.Want, "alice", "application/json")...)
		})
	}
	logged.Complete(t, ".", lines, fields)
}
