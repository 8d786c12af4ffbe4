package storetest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var bodyTests = []testCase{
	{"body/comes back byte for byte", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		for _, size := range []int{0, 1, 31 << 10, 32 << 10, 32<<10 + 1, 33 << 10, 1 << 20} {
			what := fmt.Sprintf("%d bytes", size)
			body := randomBytes(size)
			j := mustCreate(t, s, starting(s, what))
			done := mustSwap(t, s, j.WriteID, completed(s, j, body))

			got, err := other.Get(contextOf(t), j.Name)
			mustHaveBody(t, what+": get", got, err, done, body)
			got, _, err = other.Create(contextOf(t), starting(other, what))
			mustHaveBody(t, what+": lost create", got, err, done, body)
			got, _, err = other.Swap(contextOf(t), j.WriteID, unknown(other, j))
			mustHaveBody(t, what+": lost swap", got, err, done, body)

			// Written again by somebody who has read it, and by one who has not.
			noted := *got
			noted.WriteID = keystore.NewWriteID()
			mustSwap(t, other, done.WriteID, &noted)
			got, err = s.Get(contextOf(t), j.Name)
			mustHaveBody(t, what+": written again", got, err, &noted, body)
			fresh := *done
			fresh.WriteID = keystore.NewWriteID()
			mustSwap(t, s, noted.WriteID, &fresh)
			got, err = other.Get(contextOf(t), j.Name)
			mustHaveBody(t, what+": written anew", got, err, &fresh, body)
		}
	}},
	{"body/of a job created as completed", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		for _, size := range []int{0, 100, 33 << 10, 1 << 20} {
			what := fmt.Sprintf("%d bytes", size)
			body := randomBytes(size)
			j := completed(s, starting(s, what), body)
			mustCreate(t, s, j)
			mustCreate(t, s, j)
			got, err := other.Get(contextOf(t), j.Name)
			mustHaveBody(t, what+": get", got, err, j, body)
		}
	}},
	{"body/of a job created again", func(t *testing.T, b Backend) {
		s := b.Open(t)
		body := randomBytes(100 << 10)
		j := mustCreate(t, s, starting(s, "k"))
		done := mustSwap(t, s, j.WriteID, completed(s, j, body))
		read, err := s.Get(contextOf(t), j.Name)
		mustHaveBody(t, "get", read, err, done, body)
		dropped := *done
		dropped.Expires, dropped.WriteID = s.Now(), keystore.NewWriteID()
		mustSwap(t, s, done.WriteID, &dropped)

		again := *read
		again.WriteID = keystore.NewWriteID()
		mustCreate(t, s, &again)
		got, err := s.Get(contextOf(t), j.Name)
		mustHaveBody(t, "created again", got, err, &again, body)
	}},
	{"body/not kept", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		done := completed(s, j, nil)
		done.Result.NotKept, done.Result.Size = true, 1<<30
		mustSwap(t, s, j.WriteID, done)
		mustBe(t, b.Open(t), done)
	}},
	{"body/the caller's job is left as it is", func(t *testing.T, b Backend) {
		s := b.Open(t)
		body := randomBytes(100 << 10)
		j := mustCreate(t, s, starting(s, "k"))
		done := completed(s, j, body)
		mustSwap(t, s, j.WriteID, done)
		if !bytes.Equal(done.Result.Body, body) || done.Result.Apart != nil {
			t.Error("the store has changed the job it was given")
		}
	}},
}

func mustHaveBody(t *testing.T, what string, got *keystore.Job, err error, want *keystore.Job, body []byte) {
	t.Helper()
	if err != nil || got == nil || got.Result == nil {
		t.Fatalf("%s: got %v, %v; want a completed job", what, got, err)
	}
	if got.Result.NotKept {
		t.Fatalf("%s: the body was not kept", what)
	}
	if !bytes.Equal(got.Result.Body, body) {
		t.Fatalf("%s: got a body of %d bytes, want another one of %d", what, len(got.Result.Body), len(body))
	}
	mustEqual(t, got, want)
}
