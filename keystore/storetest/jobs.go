package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// patience bounds waiting for what has to come. It is reached only by a store
// that is broken.
const patience = 20 * time.Second

// testCase is one promise.
type testCase struct {
	name string
	run  func(t *testing.T, b Backend)
}

func contextOf(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	t.Cleanup(cancel)
	return ctx
}

const retention = 24 * time.Hour

// starting returns a new job with one attempt starting.
func starting(s keystore.Store, key string) *keystore.Job {
	return startingFor(s, key, retention, time.Minute)
}

func startingFor(s keystore.Store, key string, retention, lease time.Duration) *keystore.Job {
	name := keystore.NameOf("main", "alice", key)
	j := keystore.NewJob(keystore.Job{
		Name: name, ID: keystore.NewJobID(name), Space: "main", Owner: keystore.OwnerDigest("alice"), KeySent: key,
		Fingerprint: keystore.Fingerprint{Recipe: 1, Sum: keystore.DigestOf([]byte("what was asked"))},
		Request:     keystore.RequestInfo{Method: "POST", Path: "/pay"},
		Created:     s.Now(), Retention: retention,
	}, keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: lease, Listen: lease})
	j.WriteID = keystore.NewWriteID()
	return j
}

// completed returns the job with its last attempt succeeded.
func completed(s keystore.Store, j *keystore.Job, body []byte) *keystore.Job {
	next := j.Report(keystore.Report{
		Token: j.LastAttempt().Token, Outcome: keystore.OutcomeFinal, At: s.Now(),
		Response: &keystore.Response{
			Status: 201, Header: map[string][]string{"Content-Type": {"text/plain"}},
			Body: body, Size: int64(len(body)), Answered: s.Now(),
		},
	}).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

// open returns the job with its last attempt failed.
func open(s keystore.Store, j *keystore.Job) *keystore.Job {
	next := j.Report(keystore.Report{Token: j.LastAttempt().Token, Outcome: keystore.OutcomeFailed, At: s.Now()}).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

// unknown returns the job with its last attempt unknown.
func unknown(s keystore.Store, j *keystore.Job) *keystore.Job {
	next := j.Report(keystore.Report{Token: j.LastAttempt().Token, Outcome: keystore.OutcomeUnknown, At: s.Now()}).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

// keeping returns the job with its attempt i unknown, which keeps an answer.
func keeping(s keystore.Store, j *keystore.Job, i int, body []byte) *keystore.Job {
	next := j.Report(keystore.Report{
		Token: j.Attempts[i].Token, Outcome: keystore.OutcomeUnknown, At: s.Now(),
		Violation: &keystore.Violation{Path: "/id", Expected: "string", Found: "number"},
		Kept:      &keystore.Response{Status: 200, Body: body, Size: int64(len(body)), Answered: s.Now()},
	}).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

// restarted returns an open job with another attempt starting.
func restarted(s keystore.Store, j *keystore.Job) *keystore.Job {
	next := j.Start(keystore.NewAttempt{Token: keystore.NewToken(), At: s.Now(), Lease: time.Minute, Listen: time.Minute})
	next.WriteID = keystore.NewWriteID()
	return next
}

// renewed returns a starting job with a longer lease.
func renewed(j *keystore.Job) *keystore.Job {
	a := j.LastAttempt()
	next := j.Report(keystore.Report{Token: a.Token, Outcome: keystore.OutcomeRunning, Lease: a.Lease.Add(time.Minute)}).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

func mustCreate(t *testing.T, s keystore.Store, j *keystore.Job) *keystore.Job {
	t.Helper()
	present, created, err := s.Create(contextOf(t), j)
	if err != nil || !created || present != nil {
		t.Fatalf("create %s: got %v, %t, %v; want it created", j.KeySent, present, created, err)
	}
	return j
}

func mustSwap(t *testing.T, s keystore.Store, expected keystore.WriteID, j *keystore.Job) *keystore.Job {
	t.Helper()
	present, swapped, err := s.Swap(contextOf(t), expected, j)
	if err != nil || !swapped || present != nil {
		t.Fatalf("swap %s: got %v, %t, %v; want it swapped", j.KeySent, present, swapped, err)
	}
	return j
}

// mustBe checks that the record under the job's name is that one.
func mustBe(t *testing.T, s keystore.Store, want *keystore.Job) {
	t.Helper()
	got, err := s.Get(contextOf(t), want.Name)
	if err != nil {
		t.Fatalf("get %s: %v", want.KeySent, err)
	}
	mustEqual(t, got, want)
}

func mustBeGone(t *testing.T, s keystore.Store, name keystore.Name) {
	t.Helper()
	if got, err := s.Get(contextOf(t), name); got != nil || err != nil {
		t.Fatalf("get: got %v, %v; want no record", got, err)
	}
}

func mustEqual(t *testing.T, got, want *keystore.Job) {
	t.Helper()
	if got == nil {
		t.Fatal("got no record, want one")
	}
	if got.WriteID != want.WriteID {
		t.Fatalf("got the record of write %s, want that of %s", got.WriteID, want.WriteID)
	}
	if g, w := encoded(t, got), encoded(t, want); string(g) != string(w) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

// encoded returns a record with its bodies inside, wherever the store keeps them.
func encoded(t *testing.T, j *keystore.Job) []byte {
	t.Helper()
	c := *j
	inside := func(resp *keystore.Response) *keystore.Response {
		if resp == nil {
			return nil
		}
		r := *resp
		r.Apart = nil
		return &r
	}
	c.Result = inside(j.Result)
	c.Attempts = slices.Clone(j.Attempts)
	for i := range c.Attempts {
		c.Attempts[i].Kept = inside(c.Attempts[i].Kept)
	}
	record, err := keystore.EncodeRecord(&c)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

func mustFailWith(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want one that is %q", what, err, want)
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}
