package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// many is more than any store takes at once.
const many = 2000

var manyTests = []testCase{
	{"many/each as told, in order", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		var swaps []keystore.Swap
		var checks []func(keystore.SwapResult)
		add := func(expected keystore.WriteID, j *keystore.Job, check func(what string, r keystore.SwapResult)) {
			swaps = append(swaps, keystore.Swap{Expected: expected, Job: j})
			checks = append(checks, func(r keystore.SwapResult) { check(j.KeySent, r) })
		}
		won := func(what string, r keystore.SwapResult) {
			if !r.Swapped || r.Present != nil || r.Err != nil {
				t.Fatalf("%s: got %+v, want it swapped", what, r)
			}
		}
		gone := func(what string, r keystore.SwapResult) {
			if r.Swapped || r.Present != nil || r.Err != nil {
				t.Fatalf("%s: got %+v, want no record", what, r)
			}
		}
		lostTo := func(want *keystore.Job) func(string, keystore.SwapResult) {
			return func(what string, r keystore.SwapResult) {
				if r.Swapped || r.Err != nil {
					t.Fatalf("%s: got %t, %v; want the record that is there", what, r.Swapped, r.Err)
				}
				mustEqual(t, r.Present, want)
			}
		}
		var after []func()
		for i := range 3 {
			create := func(what string) *keystore.Job { return mustCreate(t, s, starting(s, fmt.Sprint(i, what))) }

			j := create("won")
			next := renewed(j)
			add(j.WriteID, next, won)
			after = append(after, func() { mustBe(t, other, next) })

			j = create("lost")
			there := mustSwap(t, other, j.WriteID, completed(other, j, []byte("paid")))
			add(j.WriteID, renewed(j), lostTo(there))
			after = append(after, func() { mustBe(t, other, there) })

			j = create("lost to a large body")
			add(j.WriteID, renewed(j), lostTo(mustSwap(t, other, j.WriteID, completed(other, j, randomBytes(100<<10)))))

			j = starting(s, fmt.Sprint(i, "gone"))
			add(j.WriteID, unknown(s, j), gone)
			after = append(after, func() { mustBeGone(t, other, starting(s, fmt.Sprint(i, "gone")).Name) })

			j = create("done before")
			done := mustSwap(t, other, j.WriteID, unknown(s, j))
			add(j.WriteID, done, won)

			j = create("completed")
			small := completed(s, j, []byte("paid"))
			add(j.WriteID, small, won)
			after = append(after, func() { mustBe(t, other, small) })

			j = create("completed with a large body")
			large := completed(s, j, randomBytes(100<<10))
			add(j.WriteID, large, won)
			after = append(after, func() { mustBe(t, other, large) })

			j = create("dropped")
			done = mustSwap(t, s, j.WriteID, completed(s, j, randomBytes(40<<10)))
			add(done.WriteID, dropped(s, done), won)
			after = append(after, func() { mustBeGone(t, other, starting(s, fmt.Sprint(i, "dropped")).Name) })

			j = create("dropped as another record")
			done = mustSwap(t, s, j.WriteID, completed(s, j, []byte("paid")))
			add(j.WriteID, dropped(s, done), lostTo(done))

			j = create("corrupt")
			b.Garble(t, j.Name, []byte("garbage"))
			add(j.WriteID, unknown(s, j), func(what string, r keystore.SwapResult) {
				mustFailWith(t, what, r.Err, keystore.ErrCorrupt)
				if r.Swapped || r.Present != nil {
					t.Errorf("%s: got %+v", what, r)
				}
			})

			j = create("without write id")
			nameless := unknown(s, j)
			nameless.WriteID = keystore.WriteID{}
			add(j.WriteID, nameless, func(what string, r keystore.SwapResult) {
				if r.Swapped || r.Present != nil || r.Err == nil {
					t.Errorf("%s: got %+v, want an error", what, r)
				}
			})
			after = append(after, func() { mustBe(t, other, j) })
		}
		for i, r := range swapMany(contextOf(t), t, s, swaps...) {
			checks[i](r)
		}
		for _, check := range after {
			check()
		}
	}},
	{"many/two thousand", func(t *testing.T, b Backend) {
		s := b.Open(t)
		before := createMany(t, s, many)
		swaps := make([]keystore.Swap, many)
		for i, j := range before {
			swaps[i] = keystore.Swap{Expected: j.WriteID, Job: renewed(j)}
		}
		mustSwapMany(t, s, swaps)
		for _, swap := range swaps {
			mustBe(t, s, swap.Job)
		}
		some := swaps[:many/4]
		mustSwapMany(t, s, some) // all of them are done already
		for i := range some {
			some[i].Job = renewed(before[i])
		}
		for i, r := range swapMany(contextOf(t), t, s, some...) {
			if r.Swapped || r.Err != nil || r.Present == nil || r.Present.Name != before[i].Name {
				t.Fatalf("swap %d: got %+v, want the record that is there", i, r)
			}
		}
	}},
	{"many/none", func(t *testing.T, b Backend) {
		swapMany(contextOf(t), t, b.Open(t))
	}},
	{"many/two at once", func(t *testing.T, b Backend) {
		stores := []keystore.Store{b.Open(t), b.Open(t)}
		before := createMany(t, stores[0], 550)
		written := make([][]keystore.Swap, len(stores))
		results := make([][]keystore.SwapResult, len(stores))
		ctx := contextOf(t)
		var wg sync.WaitGroup
		for n, s := range stores {
			for _, j := range before {
				written[n] = append(written[n], keystore.Swap{Expected: j.WriteID, Job: unknown(s, j)})
			}
			wg.Go(func() { results[n] = s.SwapMany(ctx, written[n]) })
		}
		wg.Wait()
		for i := range before {
			a, b := results[0][i], results[1][i]
			won, lost := written[0][i], b
			if b.Swapped {
				won, lost = written[1][i], a
			}
			if a.Err != nil || b.Err != nil || a.Swapped == b.Swapped {
				t.Fatalf("swap %d: got %+v and %+v, want exactly one of them swapped", i, a, b)
			}
			mustEqual(t, lost.Present, won.Job)
		}
	}},
	{"many/who waits gets a hint", func(t *testing.T, b Backend) {
		s, other := b.Open(t), b.Open(t)
		var swaps []keystore.Swap
		var hints []<-chan struct{}
		for _, j := range createMany(t, s, 20) {
			for _, waits := range []keystore.Store{s, other} {
				hint, stop := waits.Watch(contextOf(t), j.Name, j.WriteID)
				defer stop()
				hints = append(hints, hint)
			}
			swaps = append(swaps, keystore.Swap{Expected: j.WriteID, Job: unknown(s, j)})
		}
		swapMany(contextOf(t), t, s, swaps...)
		for _, hint := range hints {
			mustHint(t, hint)
		}
	}},
}

func swapMany(ctx context.Context, t *testing.T, s keystore.Store, swaps ...keystore.Swap) []keystore.SwapResult {
	t.Helper()
	results := s.SwapMany(ctx, swaps)
	if len(results) != len(swaps) {
		t.Fatalf("swap many: got %d results of %d swaps", len(results), len(swaps))
	}
	return results
}

func mustSwapMany(t *testing.T, s keystore.Store, swaps []keystore.Swap) {
	t.Helper()
	for i, r := range swapMany(contextOf(t), t, s, swaps...) {
		if !r.Swapped || r.Present != nil || r.Err != nil {
			t.Fatalf("swap %d: got %+v, want it swapped", i, r)
		}
	}
}

// createMany creates n jobs, a few at once.
func createMany(t *testing.T, s keystore.Store, n int) []*keystore.Job {
	t.Helper()
	jobs := make([]*keystore.Job, n)
	errs := make(chan error, n)
	ctx := contextOf(t)
	next := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range next {
				jobs[i] = startingFor(s, fmt.Sprintf("k%05d", i), retention, time.Hour)
				if _, created, err := s.Create(ctx, jobs[i]); err != nil || !created {
					errs <- fmt.Errorf("create %d: got %t, %w", i, created, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if len(errs) > 0 {
		t.Fatal(<-errs)
	}
	return jobs
}

// dropped returns the job as one that its store is to forget.
func dropped(s keystore.Store, j *keystore.Job) *keystore.Job {
	next := *j
	// A store's clock can be set back a little when its server is asked.
	next.Expires, next.WriteID = s.Now().Add(-time.Second), keystore.NewWriteID()
	return &next
}

// throughMany are these tests with all swaps going through SwapMany, one by one.
func throughMany(tests ...[]testCase) (cases []testCase) {
	for _, some := range tests {
		for _, c := range some {
			run := c.run
			cases = append(cases, testCase{"through many/" + c.name, func(t *testing.T, b Backend) {
				open := b.Open
				b.Open = func(t testing.TB) keystore.Store { return ThroughMany{open(t)} }
				run(t, b)
			}})
		}
	}
	return cases
}

// ThroughMany is a store whose Swap goes through SwapMany, and so has to keep the
// same promises.
type ThroughMany struct{ keystore.Store }

// Swap implements [keystore.Store].
func (s ThroughMany) Swap(ctx context.Context, expected keystore.WriteID, j *keystore.Job) (*keystore.Job, bool, error) {
	r := s.SwapMany(ctx, []keystore.Swap{{Expected: expected, Job: j}})[0]
	return r.Present, r.Swapped, r.Err
}
