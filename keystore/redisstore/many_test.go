package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// onRealServer runs a test with more scripts than miniredis has the time for.
func onRealServer(t *testing.T, f func(t *testing.T, addr string)) {
	t.Helper()
	f(t, redistest.Start(t).Addr())
}

// manyJobs puts n jobs onto a server, and returns a renewal of each.
func manyJobs(t *testing.T, s *Store, addr string, n int) []keystore.Swap {
	t.Helper()
	pipe := rawClient(t, "redis://"+addr).Pipeline()
	swaps := make([]keystore.Swap, n)
	for i := range swaps {
		j := job(s, fmt.Sprint("many ", i))
		record, err := keystore.EncodeRecord(j)
		if err != nil {
			t.Fatal(err)
		}
		pipe.Set(contextOf(t), recordKey(j.Name), record, 0)
		swaps[i] = keystore.Swap{Expected: j.WriteID, Job: renewed(j)}
	}
	if _, err := pipe.Exec(contextOf(t)); err != nil {
		t.Fatal(err)
	}
	return swaps
}

func renewed(j *keystore.Job) *keystore.Job {
	a := j.LastAttempt()
	next := j.Report(keystore.Report{Token: a.Token, Outcome: keystore.OutcomeRunning, Lease: a.Lease.Add(time.Minute)}).Next
	next.WriteID = keystore.NewWriteID()
	return next
}

// mustSwapAll checks that all of them say that they were swapped, and that the
// records are there.
func mustSwapAll(t *testing.T, s *Store, swaps []keystore.Swap) {
	t.Helper()
	for i, r := range s.SwapMany(contextOf(t), swaps) {
		if !r.Swapped || r.Present != nil || r.Err != nil {
			t.Fatalf("swap %d of %d: got %+v, want it swapped", i, len(swaps), r)
		}
	}
	mustAllBeThere(t, s, swaps)
}

func mustAllBeThere(t *testing.T, s *Store, swaps []keystore.Swap) {
	t.Helper()
	found := presentIDs(t, s, swaps)
	for i, swap := range swaps {
		if found[i] != swap.Job.WriteID {
			t.Fatalf("%s: the record of write %s is there, want that of %s", swap.Job.KeySent, found[i], swap.Job.WriteID)
		}
	}
}

// presentIDs returns the write ids of the records that are there; zero for none.
func presentIDs(t *testing.T, s *Store, swaps []keystore.Swap) []keystore.WriteID {
	t.Helper()
	keys := make([]string, len(swaps))
	for i, swap := range swaps {
		keys[i] = s.recordKey(swap.Job.Name)
	}
	records, err := s.getMany(contextOf(t), "look", keys)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]keystore.WriteID, len(swaps))
	for i, r := range records {
		if r.missing() {
			continue
		}
		j, err := r.decode(swaps[i].Job.Name)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = j.WriteID
	}
	return ids
}

// TestManyRoundTrips: manySwaps swaps share a round trip.
func TestManyRoundTrips(t *testing.T) {
	t.Parallel()
	onRealServer(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr(), func(o *Options) { o.Timeout = patience })
		mustSwapAll(t, s, manyJobs(t, s, addr, 1)) // tells the server the script
		const n = 10_000
		swaps := manyJobs(t, s, addr, n)
		commands, flights := proxy.Count("evalsha"), proxy.Flights("evalsha")
		proxy.Gather("evalsha", manySwaps)
		for i, r := range s.SwapMany(contextOf(t), swaps) {
			if !r.Swapped || r.Err != nil {
				t.Fatalf("swap %d: got %+v, want it swapped", i, r)
			}
		}
		commands, flights = proxy.Count("evalsha")-commands, proxy.Flights("evalsha")-flights
		t.Logf("%d swaps: %d commands in %d flights", n, commands, flights)
		if commands != n || flights != n/manySwaps {
			t.Errorf("%d commands in %d flights, want %d in %d", commands, flights, n, n/manySwaps)
		}
		mustAllBeThere(t, s, swaps)
	})
}

// TestManyBytes: large records share fewer round trips.
func TestManyBytes(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		swaps := manyJobs(t, s, addr, 70)
		for i := range swaps {
			swaps[i].Job = completed(s, swaps[i].Job, make([]byte, 30<<10))
		}
		mustSwapAll(t, s, swaps)
		if got := proxy.Flights("evalsha"); got < 3 {
			t.Errorf("2 MiB of records took %d flights", got)
		}
	})
}

// TestManyScriptGone: a server that has forgotten the script is told it once, and
// asked again what it has refused.
func TestManyScriptGone(t *testing.T) {
	t.Parallel()
	onRealServer(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		swaps := manyJobs(t, s, addr, 1200)
		// One that is gone is so in the second round too.
		missing := job(s, "missing")
		gone := keystore.Swap{Expected: missing.WriteID, Job: dropped(s, completed(s, missing, nil))}
		for range 2 {
			if err := rawClient(t, "redis://"+addr).ScriptFlush(contextOf(t)).Err(); err != nil {
				t.Fatal(err)
			}
			eval, evalsha := proxy.Count("eval"), proxy.Count("evalsha")
			mustSwapAll(t, s, swaps)
			if eval, evalsha = proxy.Count("eval")-eval, proxy.Count("evalsha")-evalsha; eval != 1 || evalsha != 1200+manySwaps-1 {
				t.Errorf("took %d EVAL and %d EVALSHA, want 1 and %d", eval, evalsha, 1200+manySwaps-1)
			}
			if err := rawClient(t, "redis://"+addr).ScriptFlush(contextOf(t)).Err(); err != nil {
				t.Fatal(err)
			}
			if r := s.SwapMany(contextOf(t), []keystore.Swap{gone, gone}); r[0] != (keystore.SwapResult{}) || r[1] != (keystore.SwapResult{}) {
				t.Errorf("of no record: got %+v", r)
			}
		}
	})
}

func dropped(s *Store, j *keystore.Job) *keystore.Job {
	next := *j
	// A store's clock can be set back a little when its server is asked.
	next.Expires, next.WriteID = s.Now().Add(-time.Second), keystore.NewWriteID()
	return &next
}

// TestManyLostReplies: the connection breaks in the middle of a batch. What was
// answered is known, the rest is sent again, and every swap gets its own answer.
func TestManyLostReplies(t *testing.T) {
	t.Parallel()
	onRealServer(t, func(t *testing.T, addr string) {
		for what, do := range map[string]faultnet.Action{
			"reply lost": faultnet.LoseReplyAndCut, "silence": faultnet.LoseReplyAndHang, "cut before": faultnet.CutBefore,
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				prefix := func(o *Options) { o.Prefix = what + ":" }
				direct := openAt(t, "redis://"+addr, prefix)
				proxy := faultnet.New(t, addr)
				s := openAt(t, "redis://"+proxy.Addr(), prefix)
				const n = 1300
				swaps := make([]keystore.Swap, n)
				others := make([]*keystore.Job, n)
				for i := range swaps {
					j := job(s, fmt.Sprint(i))
					swaps[i] = keystore.Swap{Expected: j.WriteID, Job: renewed(j)}
					switch i % 10 {
					case 3: // none there
						continue
					case 5: // another one there
						others[i] = job(s, fmt.Sprint(i))
						j = others[i]
					case 7: // to be dropped
						j = completed(s, j, nil)
						swaps[i] = keystore.Swap{Expected: j.WriteID, Job: dropped(s, j)}
					}
					mustCreate(t, direct, j)
				}
				proxy.Inject(faultnet.Fault{Command: "evalsha", Do: do, Skip: 700, Times: 1})
				results := s.SwapMany(contextOf(t), swaps)
				found := presentIDs(t, direct, swaps)
				for i, r := range results {
					own := swaps[i].Job.WriteID
					switch other := others[i]; {
					case r.Err != nil:
						t.Fatalf("swap %d: %v", i, r.Err)
					case i%10 == 3:
						if r.Swapped || r.Present != nil || !found[i].IsZero() {
							t.Fatalf("swap %d of no record: got %+v, and now %s is there", i, r, found[i])
						}
					case other != nil:
						if r.Swapped || r.Present == nil || r.Present.WriteID != other.WriteID || found[i] != other.WriteID {
							t.Fatalf("swap %d of another record: got %+v, and now %s is there", i, r, found[i])
						}
					case i%10 == 7:
						if !r.Swapped || !found[i].IsZero() {
							t.Fatalf("swap %d, a drop: got %+v, and now %s is there", i, r, found[i])
						}
					case !r.Swapped || found[i] != own:
						t.Fatalf("swap %d: got %+v, and now %s is there", i, r, found[i])
					}
				}
			})
		}
	})
}

// TestManyTruth: where swaps are sent only once and replies are lost again and
// again, no answer says more than is true, and saying all again settles it.
func TestManyTruth(t *testing.T) {
	t.Parallel()
	onRealServer(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s, direct := openAt(t, "redis://"+proxy.Addr(), func(o *Options) { o.Resends = -1 }), openAt(t, "redis://"+addr)
		doubts := 0
		for round := range uint64(4) {
			swaps := manyJobs(t, s, addr, 2000)
			removeLost := proxy.Inject(faultnet.Fault{Command: "evalsha", Do: faultnet.LoseReplyAndCut, Chance: 0.0005, Seed: round})
			removeCut := proxy.Inject(faultnet.Fault{Command: "evalsha", Do: faultnet.CutBefore, Chance: 0.0005, Seed: round + 100})
			results := s.SwapMany(contextOf(t), swaps)
			removeLost()
			removeCut()
			// What is still under way in the network may land after this look.
			for i, id := range presentIDs(t, direct, swaps) {
				there, r := id == swaps[i].Job.WriteID, results[i]
				switch {
				case r.Swapped && !there, r.Err == nil && !r.Swapped, errors.Is(r.Err, keystore.ErrNotApplied) && there:
					t.Fatalf("swap %d: got %+v, and it is there: %t", i, r, there)
				case r.Err != nil && !errors.Is(r.Err, keystore.ErrNotApplied):
					doubts++
				}
			}
			mustSwapAll(t, s, swaps)
		}
		if t.Logf("%d of 8000 answers were in doubt", doubts); doubts == 0 {
			t.Error("no reply was lost")
		}
	})
}

// TestManyRefused: what one swap meets is its own affair.
func TestManyRefused(t *testing.T) {
	t.Parallel()
	onRealServer(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s := openAt(t, "redis://"+proxy.Addr())
		for _, c := range []struct {
			answer  string
			times   int
			refused bool // the one that it comes for, in the end
			known   bool // to be not applied
		}{
			{"OOM command not allowed when used memory > 'maxmemory'.", 1, true, true},
			{"ERR it is Sunday", 1, true, false},
			{"NOPERM no permissions to run the 'publish' command script: 1f, on @user_script:9.", 1, true, false},
			{"LOADING Redis is loading the dataset in memory", 1, false, false},
			{"READONLY You can't write against a read only replica.", 1, false, false},
			{"BUSY Redis is busy running a script.", 20, false, false},
		} {
			mustSwapAll(t, s, manyJobs(t, s, addr, 1)) // tells the server the script
			swaps := manyJobs(t, s, addr, 600)
			const at = 250
			f := answer(c.answer)
			f.Command, f.Skip, f.Times = "evalsha", at, c.times
			remove := proxy.Inject(f)
			for i, r := range s.SwapMany(contextOf(t), swaps) {
				if c.refused && i == at {
					mustBeUnavailable(t, c.answer, r.Err, c.known)
				} else if !r.Swapped || r.Err != nil {
					t.Fatalf("%s: swap %d: got %+v", c.answer, i, r)
				}
			}
			remove()
		}
	})
}

// TestManyCancelled: whoever stops waiting stops nothing that is under way, and
// what has not left yet never does.
func TestManyCancelled(t *testing.T) {
	t.Parallel()
	onRealServer(t, func(t *testing.T, addr string) {
		proxy := faultnet.New(t, addr)
		s, direct := openAt(t, "redis://"+proxy.Addr()), openAt(t, "redis://"+addr)
		mustSwapAll(t, direct, manyJobs(t, s, addr, 1)) // tells the server the script
		swaps := manyJobs(t, s, addr, 1100)
		parked := proxy.Park("evalsha")
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			<-parked.Arrived()
			cancel()
		}()
		for i, r := range s.SwapMany(ctx, swaps) {
			if r.Swapped || !errors.Is(r.Err, context.Canceled) {
				t.Fatalf("swap %d: got %+v, want the context's error", i, r)
			}
			mustBeUnavailable(t, fmt.Sprint("swap ", i), r.Err, i >= manySwaps)
		}
		parked.Release()
		eventually(t, "the first batch is done", func() bool {
			return presentIDs(t, direct, swaps)[manySwaps-1] == swaps[manySwaps-1].Job.WriteID
		})
		mustAllBeThere(t, direct, swaps[:manySwaps])
		for i, id := range presentIDs(t, direct, swaps)[manySwaps:] {
			if id != swaps[manySwaps+i].Expected {
				t.Fatalf("swap %d was done all the same", manySwaps+i)
			}
		}
	})
}

// TestManyOnARetiredConnection: the connection becomes too old while a batch is
// being written. The part that had left was executed.
func TestManyOnARetiredConnection(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, addr string) {
		o := Options{URL: "redis://" + addr, Timeout: 5 * time.Second}.withDefaults()
		where, opt, err := o.client()
		if err != nil {
			t.Fatal(err)
		}
		d := new(dialer)
		retiring := &retiring{dialer: d}
		d.wrap = func(c net.Conn) net.Conn { return retiringConn{c, retiring} }
		s := open(o, where, opt, d)
		t.Cleanup(func() { _ = s.Close() })
		mustSwapAll(t, s, manyJobs(t, s, addr, 1)) // tells the server the script
		swaps := manyJobs(t, s, addr, 400)
		j := completed(s, job(s, "dropped"), nil)
		mustCreate(t, s, j)
		swaps[0] = keystore.Swap{Expected: j.WriteID, Job: dropped(s, j)}
		retiring.armed.Store(true)
		for i, r := range s.SwapMany(contextOf(t), swaps) {
			if !r.Swapped || r.Err != nil {
				t.Fatalf("swap %d: got %+v, want it swapped", i, r)
			}
		}
		if retiring.armed.Load() {
			t.Error("the batch was written in one piece")
		}
		mustAllBeThere(t, s, swaps[1:])
	})
}

// retiring retires all connections once a large piece has been written to one.
type retiring struct {
	dialer *dialer
	armed  atomic.Bool
}

type retiringConn struct {
	net.Conn
	*retiring
}

func (c retiringConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if len(b) > 10<<10 && c.armed.CompareAndSwap(true, false) {
		c.dialer.retire(c.dialer.generation.Load())
	}
	return n, err
}
