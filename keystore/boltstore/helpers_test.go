package boltstore

import (
	"bytes"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const retention = time.Hour

// testClock is a clock that only a test moves.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newTestClock() *testClock { return &testClock{now: time.UnixMilli(1_700_000_000_000)} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func openStore(t testing.TB, path string, opts Options) *Store {
	t.Helper()
	if opts.idleEvery == 0 {
		opts.idleEvery = time.Hour // a test purges when it says so
	}
	s, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func newStore(t testing.TB, opts Options) *Store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "store", "jobs.db"), opts)
}

// claimed returns a job as its first claim writes it.
func claimed(key string, at keystore.Time) *keystore.Job {
	name := keystore.NameOf("main", "alice", key)
	j := keystore.NewJob(keystore.Job{
		Name: name, ID: keystore.NewJobID(name), Space: "main", Owner: keystore.OwnerDigest("alice"), KeySent: key,
		Fingerprint: keystore.Fingerprint{Recipe: 1, Sum: keystore.DigestOf([]byte(key))},
		Request:     keystore.RequestInfo{Method: "POST", Path: "/pay", MediaType: "application/json", Size: 9},
		Created:     at, Retention: retention,
	}, keystore.NewAttempt{Token: keystore.NewToken(), At: at, Lease: 90 * time.Second, Listen: 10 * time.Minute})
	j.WriteID = keystore.NewWriteID()
	return j
}

// completed returns the job with this body in its result slot.
func completed(j *keystore.Job, at keystore.Time, body []byte) *keystore.Job {
	return reported(j, keystore.Report{
		Outcome: keystore.OutcomeFinal, At: at,
		Response: &keystore.Response{Status: 200, Body: body, Size: int64(len(body)), Answered: at},
	})
}

// failed returns the job with its attempt failed: open.
func failed(j *keystore.Job, at keystore.Time) *keystore.Job {
	return reported(j, keystore.Report{Outcome: keystore.OutcomeFailed, At: at})
}

func reported(j *keystore.Job, r keystore.Report) *keystore.Job {
	r.Token = j.LastAttempt().Token
	next := j.Report(r).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

func mustCreate(t testing.TB, s *Store, j *keystore.Job) {
	t.Helper()
	if present, created, err := s.Create(t.Context(), j); err != nil || !created || present != nil {
		t.Fatalf("create: present %v, created %v, error %v", present, created, err)
	}
}

func mustSwap(t testing.TB, s *Store, from, to *keystore.Job) {
	t.Helper()
	if present, swapped, err := s.Swap(t.Context(), from.WriteID, to); err != nil || !swapped || present != nil {
		t.Fatalf("swap: present %v, swapped %v, error %v", present, swapped, err)
	}
}

// wantRecord checks that the store holds exactly this job; nil: none.
func wantRecord(t testing.TB, s *Store, name keystore.Name, want *keystore.Job) {
	t.Helper()
	got, err := s.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := sameJob(got, want); err != nil {
		t.Fatal(err)
	}
}

func sameJob(got, want *keystore.Job) error {
	switch {
	case (got == nil) != (want == nil):
		return fmt.Errorf("got job %v, want %v", got, want)
	case got == nil:
		return nil
	case got.WriteID != want.WriteID || got.ID != want.ID:
		return fmt.Errorf("got write %s of %s, want %s of %s", got.WriteID, got.ID, want.WriteID, want.ID)
	case (got.Result == nil) != (want.Result == nil):
		return fmt.Errorf("got result %v, want %v", got.Result, want.Result)
	case got.Result != nil && !bytes.Equal(got.Result.Body, want.Result.Body):
		return fmt.Errorf("the body of %s differs", want.ID)
	}
	return nil
}
