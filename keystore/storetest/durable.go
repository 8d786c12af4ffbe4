package storetest

import (
	"errors"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// DurableBackend is a [Backend] whose stores wait until writes are durable.
type DurableBackend struct {
	// Open returns a store on this backend, as in [Backend].
	Open func(t testing.TB) keystore.Store
	// Starve keeps acknowledgements back, and Feed lets them come again.
	Starve, Feed func()
}

// Durability checks what a store that waits promises besides the rest. It asks for
// one backend.
func Durability(t *testing.T, newBackend func(t testing.TB) DurableBackend) {
	t.Helper()
	b := newBackend(t)
	for _, c := range []struct {
		name string
		run  func(t *testing.T, b DurableBackend)
	}{
		{"create", func(t *testing.T, b DurableBackend) {
			s, other := b.Open(t), b.Open(t)
			mustCreate(t, s, starting(s, "fed"))
			b.Starve()
			j := starting(s, "starved")
			for range 2 {
				present, created, err := s.Create(contextOf(t), j)
				mustNotBeDurable(t, "create", created, err)
				if present != nil {
					t.Errorf("create: got a record besides: %v", present)
				}
			}
			mustBe(t, other, j)
			present, created, err := other.Create(contextOf(t), starting(other, "starved"))
			if err != nil || created {
				t.Fatalf("a claim that lost: got %t, %v; want the record that is there", created, err)
			}
			mustEqual(t, present, j)
			b.Feed()
			mustCreate(t, s, j)
		}},
		{"swap", func(t *testing.T, b DurableBackend) {
			s, other := b.Open(t), b.Open(t)
			j := mustCreate(t, s, starting(s, "swap"))
			b.Starve()
			next := completed(s, j, []byte("paid"))
			for range 2 {
				_, swapped, err := s.Swap(contextOf(t), j.WriteID, next)
				mustNotBeDurable(t, "swap", swapped, err)
			}
			mustBe(t, other, next)
			present, swapped, err := other.Swap(contextOf(t), j.WriteID, unknown(other, j))
			if err != nil || swapped {
				t.Fatalf("a swap that lost: got %t, %v; want the record that is there", swapped, err)
			}
			mustEqual(t, present, next)
			b.Feed()
			mustSwap(t, s, j.WriteID, next)
			mustBe(t, other, next)
		}},
		{"confirm what another has written", func(t *testing.T, b DurableBackend) {
			s, other := b.Open(t), b.Open(t)
			j := mustCreate(t, s, starting(s, "confirm"))
			next := mustSwap(t, s, j.WriteID, completed(s, j, randomBytes(100<<10)))
			found, err := other.Get(contextOf(t), j.Name)
			if err != nil {
				t.Fatal(err)
			}
			mustSwap(t, other, keystore.WriteID{}, found)
			mustBe(t, s, next)
		}},
		{"what waits for nothing", func(t *testing.T, b DurableBackend) {
			s := b.Open(t)
			j := mustCreate(t, s, starting(s, "renewed"))
			done := mustCreate(t, s, starting(s, "dropped"))
			b.Starve()
			if r := s.SwapMany(contextOf(t), []keystore.Swap{{Expected: j.WriteID, Job: unknown(s, j)}})[0]; r.Err != nil || !r.Swapped {
				t.Errorf("swap many: got %+v", r)
			}
			mustSwap(t, s, done.WriteID, dropped(s, completed(s, done, nil)))
			b.Feed()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer b.Feed()
			c.run(t, b)
		})
	}
}

func mustNotBeDurable(t *testing.T, what string, done bool, err error) {
	t.Helper()
	if !done || !errors.Is(err, keystore.ErrNotDurable) || !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
		t.Errorf("%s: got %t, %v; want that it was done and is not durable", what, done, err)
	}
}
