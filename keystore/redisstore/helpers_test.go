package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// patience bounds waiting for what has to come.
const patience = 30 * time.Second

// serverKinds are those that scripts and commands have to mean the same on.
var serverKinds = map[string]func(t testing.TB) (addr string){
	"miniredis": func(t testing.TB) string { return miniredis.RunT(t).Addr() },
	"redis":     func(t testing.TB) string { return redistest.Start(t).Addr() },
}

// onEach runs a test on every kind of server.
func onEach(t *testing.T, f func(t *testing.T, addr string)) {
	t.Helper()
	for name, start := range serverKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, start(t))
		})
	}
}

func contextOf(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// job returns a new job with one attempt starting.
func job(s *Store, key string) *keystore.Job {
	name := keystore.NameOf("main", "alice", key)
	j := keystore.NewJob(keystore.Job{
		Name: name, ID: keystore.NewJobID(name), Space: "main", Owner: keystore.OwnerDigest("alice"), KeySent: key,
		Fingerprint: keystore.Fingerprint{Recipe: 1}, Request: keystore.RequestInfo{Method: "POST", Path: "/pay"},
		Created: s.Now(), Retention: time.Hour,
	}, keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: time.Minute, Listen: time.Minute})
	j.WriteID = keystore.NewWriteID()
	return j
}

func settled(s *Store, j *keystore.Job, outcome keystore.Outcome, body []byte) *keystore.Job {
	r := keystore.Report{Token: j.LastAttempt().Token, Outcome: outcome, At: s.Now()}
	if outcome == keystore.OutcomeFinal {
		r.Response = &keystore.Response{Status: 200, Body: body, Size: int64(len(body))}
	}
	next := j.Report(r).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

func completed(s *Store, j *keystore.Job, body []byte) *keystore.Job {
	return settled(s, j, keystore.OutcomeFinal, body)
}

func mustCreate(t testing.TB, s *Store, j *keystore.Job) *keystore.Job {
	t.Helper()
	present, created, err := s.Create(contextOf(t), j)
	if err != nil || !created {
		t.Fatalf("create %s: got %v, %t, %v; want it created", j.KeySent, present, created, err)
	}
	return j
}

func mustSwap(t testing.TB, s *Store, expected keystore.WriteID, j *keystore.Job) *keystore.Job {
	t.Helper()
	present, done, err := s.Swap(contextOf(t), expected, j)
	if err != nil || !done {
		t.Fatalf("swap %s: got %v, %t, %v; want it swapped", j.KeySent, present, done, err)
	}
	return j
}

func mustGet(t *testing.T, s *Store, name keystore.Name) *keystore.Job {
	t.Helper()
	j, err := s.Get(contextOf(t), name)
	if err != nil || j == nil {
		t.Fatalf("get: got %v, %v; want a record", j, err)
	}
	return j
}

func mustHint(t *testing.T, hint <-chan struct{}) {
	t.Helper()
	select {
	case <-hint:
	case <-time.After(patience):
		t.Fatal("no hint came")
	}
}

// eventually waits until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came: %s", what)
		}
	}
}

// mustBeUnavailable checks an error, and what it says of the write.
func mustBeUnavailable(t *testing.T, what string, err error, notApplied bool) {
	t.Helper()
	if !errors.Is(err, keystore.ErrUnavailable) {
		t.Errorf("%s: got error %v, want one that says that the store is unavailable", what, err)
	}
	if got := errors.Is(err, keystore.ErrNotApplied); got != notApplied {
		t.Errorf("%s: got %v; does it say that nothing was applied: %t, want %t", what, err, got, notApplied)
	}
}
