package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var createTests = []testCase{
	{"create/none there", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		mustBe(t, s, j)
		mustBe(t, b.Open(t), j)
	}},
	{"create/one there", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		first := mustCreate(t, s, starting(s, "k"))
		present, created, err := other.Create(contextOf(t), starting(other, "k"))
		if err != nil || created {
			t.Fatalf("create: got %t, %v; want the record that is there", created, err)
		}
		mustEqual(t, present, first)
		mustBe(t, s, first)
	}},
	{"create/own earlier send", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		mustCreate(t, s, j)
		mustCreate(t, b.Open(t), j)
		mustBe(t, s, j)
	}},
	{"create/own earlier send overtaken", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		next := mustSwap(t, other, j.WriteID, unknown(other, j))
		present, created, err := s.Create(contextOf(t), j)
		if err != nil || created {
			t.Fatalf("create: got %t, %v; want the record that is there", created, err)
		}
		mustEqual(t, present, next)
	}},
	{"create/names are apart", func(t *testing.T, b Backend) {
		s := b.Open(t)
		one, two := mustCreate(t, s, starting(s, "one")), mustCreate(t, s, starting(s, "two"))
		mustBe(t, s, one)
		mustBe(t, s, two)
		mustBeGone(t, s, keystore.NameOf("main", "alice", "three"))
	}},
	{"create/without write id", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := starting(s, "k")
		j.WriteID = keystore.WriteID{}
		if _, created, err := s.Create(contextOf(t), j); created || err == nil {
			t.Errorf("create: got %t, %v; want an error", created, err)
		}
		mustBeGone(t, s, j.Name)
	}},
}

var swapTests = []testCase{
	{"swap/won", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		next := mustSwap(t, other, j.WriteID, unknown(other, j))
		mustBe(t, s, next)
		last := mustSwap(t, s, next.WriteID, completed(s, next, []byte("paid")))
		mustBe(t, other, last)
	}},
	{"swap/lost", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		next := mustSwap(t, other, j.WriteID, unknown(other, j))
		present, swapped, err := s.Swap(contextOf(t), j.WriteID, completed(s, j, []byte("paid")))
		if err != nil || swapped {
			t.Fatalf("swap: got %t, %v; want the record that is there", swapped, err)
		}
		mustEqual(t, present, next)
		mustBe(t, s, next)
	}},
	{"swap/gone", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := starting(s, "k")
		present, swapped, err := s.Swap(contextOf(t), j.WriteID, unknown(s, j))
		if err != nil || swapped || present != nil {
			t.Fatalf("swap: got %v, %t, %v; want no record", present, swapped, err)
		}
		mustBeGone(t, s, j.Name)
	}},
	{"swap/already done", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		next := mustSwap(t, s, j.WriteID, unknown(s, j))
		mustSwap(t, s, j.WriteID, next)
		mustSwap(t, b.Open(t), j.WriteID, next)
		mustBe(t, s, next)
	}},
	{"swap/own earlier send overtaken", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		next := mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
		last := completed(other, j, []byte("paid"))
		last.Attempts = append([]keystore.Attempt(nil), next.Attempts...)
		mustSwap(t, other, next.WriteID, last)
		present, swapped, err := s.Swap(contextOf(t), j.WriteID, next)
		if err != nil || swapped {
			t.Fatalf("swap: got %t, %v; want the record that is there", swapped, err)
		}
		mustEqual(t, present, last)
		if present.CompletedBy != j.Attempts[0].Token {
			t.Errorf("completed by %s: the record does not say that the earlier send had won", present.CompletedBy)
		}
	}},
	{"swap/expects a record never written", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := mustCreate(t, s, starting(s, "k"))
		for _, expected := range []keystore.WriteID{{}, keystore.NewWriteID()} {
			present, swapped, err := s.Swap(contextOf(t), expected, unknown(s, j))
			if err != nil || swapped {
				t.Fatalf("swap: got %t, %v; want the record that is there", swapped, err)
			}
			mustEqual(t, present, j)
		}
	}},
}

const contenders = 64

var raceTests = []testCase{
	{"race/creators", func(t *testing.T, b Backend) {
		stores := []keystore.Store{b.Open(t), b.Open(t), b.Open(t), b.Open(t)}
		ctx := contextOf(t)
		var created atomic.Int32
		ids := make([]keystore.WriteID, contenders) // what each was told to be there
		err := contend(func(i int) error {
			s := stores[i%len(stores)]
			j := starting(s, "k")
			present, done, err := s.Create(ctx, j)
			switch {
			case err != nil:
				return err
			case done:
				created.Add(1)
				ids[i] = j.WriteID
			case present == nil:
				return errors.New("neither created nor a record")
			default:
				ids[i] = present.WriteID
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := created.Load(); n != 1 {
			t.Errorf("%d of %d creators were told that they created the record, want 1", n, contenders)
		}
		mustAllBe(t, ids)
	}},
	{"race/swappers", func(t *testing.T, b Backend) {
		stores := []keystore.Store{b.Open(t), b.Open(t), b.Open(t), b.Open(t)}
		ctx := contextOf(t)
		j := mustCreate(t, stores[0], starting(stores[0], "k"))
		var swapped atomic.Int32
		ids := make([]keystore.WriteID, contenders)
		err := contend(func(i int) error {
			s := stores[i%len(stores)]
			next := completed(s, j, fmt.Append(nil, i))
			present, done, err := s.Swap(ctx, j.WriteID, next)
			switch {
			case err != nil:
				return err
			case done:
				swapped.Add(1)
				ids[i] = next.WriteID
			case present == nil:
				return errors.New("neither swapped nor a record")
			default:
				ids[i] = present.WriteID
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := swapped.Load(); n != 1 {
			t.Errorf("%d of %d swappers were told that they had won, want 1", n, contenders)
		}
		mustAllBe(t, ids)
	}},
}

// contend runs f for all contenders at once.
func contend(f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, contenders)
	start := make(chan struct{})
	for i := range contenders {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

func mustAllBe(t *testing.T, ids []keystore.WriteID) {
	t.Helper()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("some saw the record of write %s, some that of %s", ids[0], id)
		}
	}
}
