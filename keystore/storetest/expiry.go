package storetest

import (
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const (
	// brief is a retention that a test can wait for.
	brief = 400 * time.Millisecond
	// margin is by how much a test waits longer than it should have to: clocks
	// are sampled, and round.
	margin = 150 * time.Millisecond
)

var expiryTests = []testCase{
	{"expiry/completed", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", brief, time.Minute))
		mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		b.Advance(brief + margin)
		mustBeGone(t, s, j.Name)
		mustBeGone(t, b.Open(t), j.Name)
	}},
	{"expiry/open", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", brief, time.Minute))
		mustSwap(t, s, j.WriteID, open(s, j))
		b.Advance(brief + margin)
		mustBeGone(t, s, j.Name)
	}},
	{"expiry/create after it", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", brief, time.Minute))
		done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		b.Advance(brief + margin)
		again := mustCreate(t, s, starting(s, "k"))
		mustBe(t, s, again)
		present, swapped, err := s.Swap(contextOf(t), done.WriteID, completed(s, j, nil))
		if err != nil || swapped {
			t.Fatalf("swap of the expired record: got %t, %v; want the one that is there", swapped, err)
		}
		mustEqual(t, present, again)
	}},
	{"expiry/swap after it", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", brief, time.Minute))
		done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		b.Advance(brief + margin)
		present, swapped, err := s.Swap(contextOf(t), done.WriteID, completed(s, j, nil))
		if err != nil || swapped || present != nil {
			t.Fatalf("swap: got %v, %t, %v; want no record", present, swapped, err)
		}
	}},
	{"expiry/is absolute", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", brief, time.Minute))
		done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		b.Advance(brief / 2)
		// Whether this comes in time does not matter: what matters is that it
		// does not give the record another full retention.
		noted := *done
		noted.WriteID = keystore.NewWriteID()
		if _, _, err := s.Swap(contextOf(t), done.WriteID, &noted); err != nil {
			t.Fatal(err)
		}
		b.Advance(brief/2 + margin)
		mustBeGone(t, s, j.Name)
	}},
	{"expiry/none once it is unresolved again", func(t *testing.T, b Backend) {
		s := b.Open(t)
		// Long enough to be sure that the second swap comes in time.
		j := mustCreate(t, s, startingFor(s, "k", retention, time.Second))
		failed := mustSwap(t, s, j.WriteID, open(s, j))
		again := restarted(s, failed)
		if !again.Expires.IsZero() {
			t.Fatal("a starting job has an expiry")
		}
		mustSwap(t, s, failed.WriteID, again)
		b.Advance(brief)
		mustBe(t, s, again)
	}},
	{"expiry/never while unresolved", func(t *testing.T, b Backend) {
		s := b.Open(t)
		running := mustCreate(t, s, startingFor(s, "running", brief/4, brief/4))
		j := mustCreate(t, s, startingFor(s, "unknown", brief/4, brief/4))
		blocked := mustSwap(t, s, j.WriteID, unknown(s, j))
		b.Advance(2 * brief)
		mustBe(t, s, running)
		mustBe(t, s, blocked)
	}},
	{"expiry/not in the future drops", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", retention, time.Minute))
		done := mustSwap(t, s, j.WriteID, completed(s, j, randomBytes(40<<10)))
		dropped := *done
		dropped.Expires, dropped.WriteID = s.Now(), keystore.NewWriteID()
		mustSwap(t, s, done.WriteID, &dropped)
		mustBeGone(t, s, j.Name)
		// Sent again it finds nothing, and harms nothing.
		if present, _, err := s.Swap(contextOf(t), done.WriteID, &dropped); err != nil || present != nil {
			t.Errorf("repeated: got %v, %v; want no record", present, err)
		}
		mustCreate(t, s, starting(s, "k"))
	}},
	{"expiry/drop of another record", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", retention, time.Minute))
		done := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		dropped := *done
		dropped.Expires, dropped.WriteID = s.Now(), keystore.NewWriteID()
		present, swapped, err := s.Swap(contextOf(t), j.WriteID, &dropped)
		if err != nil || swapped {
			t.Fatalf("swap: got %t, %v; want the record that is there", swapped, err)
		}
		mustEqual(t, present, done)
	}},
	{"expiry/created as expired", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := completed(s, startingFor(s, "k", brief, time.Minute), []byte("paid"))
		b.Advance(brief + margin)
		mustCreate(t, s, j)
		b.Advance(margin)
		mustBeGone(t, s, j.Name)
	}},
	{"expiry/the clock moves on", func(t *testing.T, b Backend) {
		s := b.Open(t)
		before := s.Now()
		b.Advance(brief)
		if passed := s.Now().Sub(before); passed < brief-margin {
			t.Errorf("the store's clock moved by %s, want about %s", passed, brief)
		}
	}},
}
