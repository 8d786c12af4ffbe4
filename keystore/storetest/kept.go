package storetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// What attempts keep as evidence, several of them in one record.
var keptTests = []testCase{
	{"kept/comes back byte for byte", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		for _, size := range []int{0, 1, 32 << 10, 32<<10 + 1, 1 << 20} {
			what := fmt.Sprintf("%d bytes", size)
			first, second := randomBytes(size), randomBytes(size)
			j := mustCreate(t, s, starting(s, what))
			two := mustSwap(t, s, j.WriteID, restarted(s, j))
			one := mustSwap(t, s, two.WriteID, keeping(s, two, 0, first))
			mustBe(t, other, one)
			read, err := other.Get(contextOf(t), j.Name)
			if err != nil {
				t.Fatal(err)
			}
			both := mustSwap(t, other, one.WriteID, keeping(other, read, 1, second))
			mustBe(t, s, both)
			got, _, err := other.Create(contextOf(t), starting(other, what))
			if err != nil {
				t.Fatal(err)
			}
			mustEqual(t, got, both)
			if size > 0 && (!bytes.Equal(got.Attempts[0].Kept.Body, first) || !bytes.Equal(got.Attempts[1].Kept.Body, second)) {
				t.Fatalf("%s: the bodies are not those that were kept", what)
			}
		}
	}},
	{"kept/written back as a page showed it", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		kept := mustSwap(t, s, j.WriteID, keeping(s, j, 0, randomBytes(100<<10)))
		if err := s.Index(contextOf(t), keystore.IndexEntryOf(kept)); err != nil {
			t.Fatal(err)
		}
		listed, _, err := s.List(contextOf(t), "", 10)
		if err != nil || len(listed) != 1 {
			t.Fatalf("list: got %d jobs, %v", len(listed), err)
		}
		present := kept
		for what, page := range map[string]*keystore.Job{"scanned": scanAll(t, s, 10, func() {})[j.Name], "listed": listed[0]} {
			noted := *page.NoteLookups(page.Attempts[0].Token, keystore.Lookups{Count: 1, Last: s.Now(), Note: what})
			noted.WriteID = keystore.NewWriteID()
			mustSwap(t, s, present.WriteID, &noted)
			want := *kept.NoteLookups(page.Attempts[0].Token, noted.Attempts[0].Lookups)
			want.WriteID = noted.WriteID
			mustBe(t, b.Open(t), &want)
			present = &want
		}
	}},
	{"kept/outlives the retention", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, startingFor(s, "k", time.Second, time.Minute))
		kept := mustSwap(t, s, j.WriteID, keeping(s, j, 0, randomBytes(100<<10)))
		b.Advance(2 * time.Second)
		mustBe(t, s, kept)
	}},
	{"kept/becomes the result", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		for _, size := range []int{100, 100 << 10} {
			body := randomBytes(size)
			j := mustCreate(t, s, starting(s, fmt.Sprintf("%d bytes", size)))
			kept := mustSwap(t, s, j.WriteID, keeping(s, j, 0, body))
			read, err := other.Get(contextOf(t), j.Name)
			if err != nil {
				t.Fatal(err)
			}
			res := keystore.Resolution{State: keystore.AttemptSucceeded, Actor: "op", At: s.Now(), Kept: true}
			done, err := read.Resolve(j.Attempts[0].Token, res, nil)
			if err != nil {
				t.Fatal(err)
			}
			done.WriteID = keystore.NewWriteID()
			mustSwap(t, other, kept.WriteID, done)
			got, err := s.Get(contextOf(t), j.Name)
			mustHaveBody(t, "resolved", got, err, done, body)
		}
	}},
}
