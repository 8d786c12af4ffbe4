package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var racing = Config{
	Providers: named("a", "b"), Race: time.Second, Timeout: 10 * time.Second, Linger: time.Minute,
}

// The first acceptable answer is everybody's, whoever was asked first; the other
// attempt is discarded, and ended.
func TestRace(t *testing.T) {
	for name, c := range map[string]struct {
		a, b     script
		body     string
		took     time.Duration
		counts   []int32
		attempts []string
	}{
		"the second is faster":   {after(3*time.Second, says(200, "A")), after(time.Second/2, says(200, "B")), "B", 1500 * time.Millisecond, []int32{1, 1}, []string{"a discarded", "b succeeded"}},
		"the first is faster":    {after(3*time.Second, says(200, "A")), after(5*time.Second, says(200, "B")), "A", 3 * time.Second, []int32{1, 1}, []string{"a succeeded", "b discarded"}},
		"in time":                {after(time.Second/2, says(200, "A")), says(200, "B"), "A", time.Second / 2, []int32{1, 0}, []string{"a succeeded"}},
		"unknown at once":        {breaks, says(200, "B"), "B", 0, []int32{1, 1}, []string{"a discarded", "b succeeded"}},
		"failed at once":         {refuses, says(200, "B"), "B", 0, []int32{1, 1}, []string{"a failed", "b succeeded"}},
		"the second breaks off":  {after(3*time.Second, says(200, "A")), breaks, "A", 3 * time.Second, []int32{1, 1}, []string{"a succeeded", "b discarded"}},
		"the second has refused": {after(3*time.Second, says(200, "A")), says(429, "B"), "A", 3 * time.Second, []int32{1, 1}, []string{"a succeeded", "b failed"}},
		"the first breaks off":   {after(2*time.Second, breaks), after(3*time.Second, says(200, "B")), "B", 4 * time.Second, []int32{1, 1}, []string{"a discarded", "b succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, racing, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {c.a}, "b": {c.b}})
				began := time.Now()
				f.do(request{}).wantBody(t, 200, c.body, false)
				if took := time.Since(began); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				time.Sleep(time.Second) // the loser has been ended by then
				f.gateway.mu.Lock()
				left := len(f.gateway.attempts)
				f.gateway.mu.Unlock()
				if left != 0 {
					t.Errorf("%d attempts go on", left)
				}
				f.do(request{}).wantBody(t, 200, c.body, true)
				f.wantExecuted(c.counts...)
				f.wantAttempts(c.attempts...)
			})
		})
	}
}

// If all that were started are unknown, so is the job; a fresh retry may then
// start what is left, and only that.
func TestRaceThatNobodyWins(t *testing.T) {
	c := racing
	c.Providers = named("a", "b", "c")
	c.MaxAttempts = 3
	bubble(t, c, func(t *testing.T, f *fixture) {
		unproven := true
		f.route.Eligible = func(name string) error {
			if name == "c" && unproven {
				return fmt.Errorf("%s is not proven", name)
			}
			return nil
		}
		f.with(map[string][]script{"a": {breaks}, "b": {breaks}, "c": {says(200, "C")}})
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecuted(1, 1, 0)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		unproven = false
		f.do(request{}).wantBody(t, 200, "C", false)
		f.wantExecuted(1, 1, 1)
		f.wantAttempts("a discarded", "b discarded", "c succeeded")
	})
}

// Whoever waits for a racing request only waits; a sibling is started once.
func TestSecondClickDuringARace(t *testing.T) {
	bubble(t, racing, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {hangs}, "b": {after(2*time.Second, says(200, "B"))}})
		var clicks sync.WaitGroup
		for n := range 5 {
			clicks.Go(func() {
				time.Sleep(time.Duration(n) * 300 * time.Millisecond)
				if r := f.do(request{}); r.Code != 200 || r.Body.String() != "B" {
					t.Errorf("click %d got %d %s", n, r.Code, r.Body)
				}
			})
		}
		clicks.Wait()
		f.wantExecuted(1, 1)
	})
}

// A winner on another gateway ends what runs here.
func TestRaceOverTwoGateways(t *testing.T) {
	bubble(t, racing, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {hangs}, "b": {hangs}})
		other := newFixtureOn(t, f.mem, racing)
		defer other.gateway.Close()
		first := make(chan result)
		go func() { first <- f.do(request{}) }()
		time.Sleep(3 * time.Second)
		before := f.mem.job()
		token := keystore.NewToken()
		j := before.Start(f.attempt(token))
		j.WriteID = keystore.NewWriteID()
		if _, swapped, err := f.store.Swap(t.Context(), before.WriteID, j); !swapped || err != nil {
			t.Fatal(swapped, err)
		}
		other.startSibling(j, token, says(200, "elsewhere"))
		if r := <-first; r.Body.String() != "elsewhere" || r.Header().Get(HeaderReplayed) != "true" {
			t.Errorf("got %d %s", r.Code, r.Body)
		}
		time.Sleep(time.Second)
		f.gateway.mu.Lock()
		defer f.gateway.mu.Unlock()
		if len(f.gateway.attempts) != 0 {
			t.Errorf("%d attempts go on", len(f.gateway.attempts))
		}
	})
}

// So does one that a fresh request has started there after the timeout, when nobody
// here waits for the job any more.
func TestRaceWonElsewhereAfterTheTimeout(t *testing.T) {
	c := racing
	c.Linger = time.Hour
	bubble(t, c, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {hangs}, "b": {hangs}})
		f.route.Eligible = func(string) error { return errors.New("not proven yet") }
		other := newFixtureOn(t, f.mem, c)
		defer other.gateway.Close()
		other.with(map[string][]script{"a": {hangs}, "b": {says(200, "B")}})
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(time.Minute)
		f.gateway.mu.Lock()
		if len(f.gateway.attempts) != 1 {
			t.Errorf("%d attempts listen on", len(f.gateway.attempts))
		}
		f.gateway.mu.Unlock()
		other.do(request{}).wantBody(t, 200, "B", false)
		time.Sleep(10 * time.Second)
		f.gateway.mu.Lock()
		if len(f.gateway.attempts) != 0 {
			t.Errorf("%d attempts go on", len(f.gateway.attempts))
		}
		f.gateway.mu.Unlock()
		f.wantAttempts("a discarded", "b succeeded")
		f.wantExecuted(1, 0)
		if f.incs.of(IncidentDiscarded) != 1 {
			t.Errorf("%d attempts were counted as discarded", f.incs.of(IncidentDiscarded))
		}
	})
}

// That a fresh request's sibling has certainly had no effect is no answer, while it is
// unknown whether the attempt beside which it was started has had one.
func TestSiblingThatFailsAnswersNobody(t *testing.T) {
	for name, second := range map[string]script{"an answer": says(429, "b is busy"), "no connection": refuses} {
		t.Run(name, func(t *testing.T) {
			bubble(t, racing, func(t *testing.T, f *fixture) {
				proven := false
				f.route.Eligible = func(string) error {
					if !proven {
						return errors.New("not proven yet")
					}
					return nil
				}
				f.with(map[string][]script{"a": {breaks}, "b": {second}})
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				proven = true
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantExecuted(1, 1)
				f.wantAttempts("a unknown", "b failed")
			})
		})
	}
}

// Who has answered first has not won before that is written: until then the others go
// on, since one of them may yet be first there.
func TestLosersAreEndedByTheWinningWrite(t *testing.T) {
	bubble(t, racing, func(t *testing.T, f *fixture) {
		began, ended := time.Now(), make(chan time.Duration, 1)
		f.with(map[string][]script{"a": {after(2*time.Second, says(200, "A"))}, "b": {func(w http.ResponseWriter, r *http.Request) error {
			err := hangs(w, r)
			ended <- time.Since(began)
			return err
		}}})
		f.mem.fail(func(op string) error {
			if now := time.Since(began); op == "swap" && now >= 2*time.Second && now < 5*time.Second {
				return keystore.ErrNotApplied
			}
			return nil
		}, nil)
		f.do(request{}).wantBody(t, 200, "A", true)
		if after := <-ended; after < 5*time.Second || f.mem.job().CompletedBy != f.mem.job().Attempts[0].Token {
			t.Errorf("the loser was ended after %v", after)
		}
		f.wantAttempts("a succeeded", "b discarded")
	})
}

// A store that fails for a moment when the next attempt is due puts it off, and does
// not call the race off.
func TestRaceThatTheStorePutsOff(t *testing.T) {
	for _, op := range []string{"get", "swap"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, racing, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {hangs}, "b": {says(200, "B")}})
				f.mem.fail(onceFor(op, 1, keystore.ErrNotApplied), nil)
				began := time.Now()
				f.do(request{}).wantBody(t, 200, "B", false)
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("took %v", took)
				}
				f.wantExecuted(1, 1)
				f.wantAttempts("a discarded", "b succeeded")
			})
		})
	}
}

// Somebody who decides that an attempt of a race has succeeded ends the race, though
// another attempt of the same request is still running.
func TestRaceResolved(t *testing.T) {
	for name, as := range map[string]keystore.AttemptState{"succeeded": keystore.AttemptSucceeded, "failed": keystore.AttemptFailed, "cancelled": keystore.AttemptCancelled} {
		t.Run(name, func(t *testing.T) {
			bubble(t, racing, func(t *testing.T, f *fixture) {
				f.with(map[string][]script{"a": {breaks}, "b": {after(5*time.Second, says(200, "B"))}})
				first := make(chan result)
				began := time.Now()
				go func() { first <- f.do(request{}) }()
				time.Sleep(2 * time.Second)
				d := decide(f.mem.job(), as)
				if d.Response != nil {
					d.Response = &keystore.Response{Status: 200, Body: []byte("A"), Size: 1}
				}
				if _, err := f.gateway.Resolve(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				r := <-first
				want, took := "B", 5*time.Second
				if as == keystore.AttemptSucceeded {
					want, took = "A", 2*time.Second
				}
				if r.Code != 200 || r.Body.String() != want || time.Since(began) != took {
					t.Errorf("got %d %s after %v", r.Code, r.Body, time.Since(began))
				}
				time.Sleep(time.Second)
				f.gateway.mu.Lock()
				if len(f.gateway.attempts) != 0 {
					t.Errorf("%d attempts go on", len(f.gateway.attempts))
				}
				f.gateway.mu.Unlock()
				f.do(request{}).wantBody(t, 200, want, true)
				f.wantExecuted(1, 1)
			})
		})
	}
}

// An answer that can't be recorded in time is not given out on a racing route:
// another one may take the slot.
func TestRaceWithoutRecord(t *testing.T) {
	bubble(t, racing, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {says(200, "A")}, "b": {hangs}})
		down := func(op string) error {
			if op == "swap" {
				return errInjected
			}
			return nil
		}
		f.mem.fail(down, nil)
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.mem.fail(nil, nil)
		time.Sleep(10 * time.Second)
		f.do(request{}).wantBody(t, 200, "A", true)
		f.wantExecuted(1, 0)
	})
}

// Nothing of an event stream is passed on before it has won.
func TestRaceOfStreams(t *testing.T) {
	stream := func(name string, pause time.Duration) script {
		return func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Content-Type", "text/event-stream")
			for n := range 3 {
				if _, err := fmt.Fprintf(w, "data: %s%d\n\n", name, n); err != nil {
					return err
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(pause):
				case <-r.Context().Done():
					return r.Context().Err()
				}
			}
			return nil
		}
	}
	bubble(t, racing, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {stream("A", 2*time.Second)}, "b": {stream("B", time.Second/10)}})
		f.do(request{}).wantBody(t, 200, "data: B0\n\ndata: B1\n\ndata: B2\n\n", false)
		f.do(request{}).wantBody(t, 200, "data: B0\n\ndata: B1\n\ndata: B2\n\n", true)
	})
}

// Random races of several clients over two gateways: one result each, and every
// client of a job gets the same bytes or is told that nobody knows.
func TestRandomRaces(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		bubble(t, racing, func(t *testing.T, f *fixture) {
			other := newFixtureOn(t, f.mem, racing)
			defer other.gateway.Close()
			randomRaces(t, [2]*fixture{f, other}, 500, 500, time.Second)
		})
	})
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := racing
			c.Race, c.Timeout = 10*time.Millisecond, patience
			store := open(t)
			randomRaces(t, [2]*fixture{newFixtureOn(t, store, c), newFixtureOn(t, store, c)}, 2000, 50, c.Race)
		})
	}
}

// randomRaces runs so many races, some of them at once. A sibling is started after
// the delay.
func randomRaces(t *testing.T, gateways [2]*fixture, jobs, atOnce int, delay time.Duration) {
	const clients = 4
	var random sync.Mutex
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func(n int64) int64 {
		random.Lock()
		defer random.Unlock()
		return rng.Int64N(n)
	}
	var begun sync.Map // by key
	whatever := func(name string) script {
		return func(w http.ResponseWriter, r *http.Request) error {
			begun.Store(r.Header.Get(DefaultKeyHeader), true)
			pause := time.Duration(draw(3 * int64(delay)))
			s := []script{says(200, fmt.Sprint(name, draw(1e9))), says(200, fmt.Sprint(name, draw(1e9))), says(429, "busy"), breaks, refuses}[draw(5)]
			return after(pause, s)(w, r)
		}
	}
	for _, g := range gateways {
		g.with(map[string][]script{"a": {whatever("A")}, "b": {whatever("B")}})
	}
	var results, attempts, siblings atomic.Int64
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for n := range jobs {
		key := fmt.Sprint("key", n)
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var mu sync.Mutex
			bodies := make(map[string]bool)
			var every sync.WaitGroup
			for c := range clients {
				every.Go(func() {
					time.Sleep(time.Duration(draw(4 * int64(delay))))
					if r := gateways[c%2].do(request{key: key}); r.err == nil && r.Code == 200 {
						mu.Lock()
						bodies[r.Body.String()] = true
						mu.Unlock()
					}
				})
			}
			every.Wait()
			j, err := gateways[0].store.Get(t.Context(), keystore.NameOf("main", "alice", key))
			if err != nil {
				t.Error(err)
				return
			}
			if j == nil { // a store that was too busy has taken nobody's claim in time
				if _, any := begun.Load(key); any || len(bodies) > 0 {
					t.Errorf("%s: an attempt has run, clients got %v, and there is no record", key, bodies)
				}
				return
			}
			attempts.Add(int64(j.AttemptCount()))
			if len(bodies) == 0 && j.Result == nil {
				return // nobody has won, and nobody was told so
			}
			if j.Result == nil {
				t.Errorf("%s: clients got %v, and the job is %s", key, bodies, j.State(gateways[0].store.Now()))
				return
			}
			results.Add(1)
			if len(bodies) > 1 || (len(bodies) == 1 && !bodies[string(j.Result.Body)]) {
				t.Errorf("%s: clients got %v, the result is %+v", key, bodies, j.Result)
			}
			won := 0
			for i := range j.Attempts {
				switch j.Attempts[i].State {
				case keystore.AttemptSucceeded:
					won++
				case keystore.AttemptDiscarded:
					siblings.Add(1)
				}
			}
			if won != 1 || len(j.Attempts) > 3*clients {
				t.Errorf("%s: %d winners of %d attempts", key, won, len(j.Attempts))
			}
			for _, g := range gateways {
				g.do(request{key: key}).wantBody(t, 200, string(j.Result.Body), true)
			}
		})
	}
	all.Wait()
	if siblings.Load() < int64(jobs)/10 {
		t.Error("hardly any of these was a race")
	}
	t.Logf("%d races, %d attempts, %d results; %d attempts lost", jobs, attempts.Load(), results.Load(), siblings.Load())
}

// Whether a provider may be used can take its time to find out. What comes of the
// attempts meanwhile is taken all the same.
func TestChoosingHoldsNobodyUp(t *testing.T) {
	asked, may := make(chan struct{}), make(chan struct{})
	c := racing
	c.Providers = named("a", "b", "c")
	c.Eligible = func(string) error {
		asked <- struct{}{}
		<-may
		return nil
	}
	bubble(t, c, func(t *testing.T, f *fixture) {
		request := &fulfilment{call: &call{Route: f.route, g: f.gateway}, told: make(chan reply, maxMaxAttempts), tried: []string{"a"}}
		chosen := make(chan string)
		for range 2 {
			go func() { chosen <- request.choose(&keystore.Job{}, "a") }()
		}
		<-asked
		<-asked
		if !request.tell(reply{}) {
			t.Error("nobody hears what an attempt tells")
		}
		may <- struct{}{}
		first := <-chosen
		may <- struct{}{}
		<-asked // whoever comes second looks for another one
		may <- struct{}{}
		if second := <-chosen; first == "" || first == second {
			t.Errorf("%q and %q were chosen", first, second)
		}
	})
}

// Who only waits for a race asks for no other provider, and nobody is alarmed.
func TestWaitingForARaceNeedsNoProof(t *testing.T) {
	c := racing
	c.Eligible = func(string) error { return errors.New("not proven") }
	c.Race = 8 * time.Second
	bubble(t, c, func(t *testing.T, f *fixture) {
		f.with(map[string][]script{"a": {after(3*time.Second, says(200, "A"))}, "b": {hangs}, "c": {hangs}})
		go f.do(request{})
		time.Sleep(time.Second)
		f.do(request{}).wantBody(t, 200, "A", true)
		if n := f.incs.told(EventFallbackUnproven); n != 0 {
			t.Errorf("told %d times that nothing is proven", n)
		}
	})
}
