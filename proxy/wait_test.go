package proxy

import (
	"context"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func TestLeavingWaiterLeavesTheRoom(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(30*time.Second, f)
		go f.do(request{})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			go f.do(request{ctx: ctx})
		}
		synctest.Wait()
		if f.gateway.waiters != 100 || len(f.gateway.rooms) != 1 {
			t.Errorf("%d waiters in %d rooms", f.gateway.waiters, len(f.gateway.rooms))
		}
		cancel()
		synctest.Wait()
		if f.gateway.waiters != 0 || len(f.gateway.rooms) != 0 {
			t.Errorf("%d waiters in %d rooms after they have left", f.gateway.waiters, len(f.gateway.rooms))
		}
		time.Sleep(time.Minute)
		f.wantExecutions(1)
	})
}

func TestWAIT06WaitLimitNeverRuns(t *testing.T) {
	bubble(t, Config{Wait: time.Second}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(20*time.Second, f)
		go f.do(request{})
		synctest.Wait()
		started := time.Now()
		r := f.do(request{}).want(t, 409, CodeInFlight)
		if took := time.Since(started); took != time.Second {
			t.Errorf("answered after %v", took)
		}
		if n, err := strconv.Atoi(r.Header().Get("Retry-After")); err != nil || n < 1 || n > 45 {
			t.Errorf("Retry-After %q", r.Header().Get("Retry-After"))
		}
		f.do(request{body: "other"}).want(t, 409, CodeKeyReused)
		time.Sleep(30 * time.Second)
		f.wantExecutions(1)
	})
}

func TestWAIT02HintGrowsWithTheLease(t *testing.T) {
	t.Parallel()
	j := &keystore.Job{Attempts: []keystore.Attempt{{State: keystore.AttemptStarting, Lease: 1_000_000}}}
	for _, c := range []struct {
		now      keystore.Time
		min, max time.Duration
	}{
		{1_000_000 - 90_000, 11 * time.Second, 17 * time.Second},
		{1_000_000 - 8_000, time.Second, 1500 * time.Millisecond},
		{1_000_000 + 5_000, time.Second, 1500 * time.Millisecond},
		{0, 30 * time.Second, 45 * time.Second},
	} {
		for range 100 {
			if hint := retryHint(j, c.now); hint < c.min || hint > c.max {
				t.Errorf("%v before the lease's end the hint is %v, want %v to %v", j.LeaseEnd().Sub(c.now), hint, c.min, c.max)
			}
		}
	}
}

func TestWAIT03RoomIsBounded(t *testing.T) {
	bubble(t, Config{WaitersPerJob: 3, Waiters: 4}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(5*time.Second, f)
		go f.do(request{})
		go f.do(request{key: "k2"})
		synctest.Wait()
		for range 3 {
			go f.do(request{})
		}
		synctest.Wait()
		f.do(request{}).want(t, 503, CodeTooManyWaiters)
		go f.do(request{key: "k2"})
		synctest.Wait()
		f.do(request{key: "k2"}).want(t, 503, CodeTooManyWaiters)
		time.Sleep(10 * time.Second)
		f.wantExecutions(2)
	})
}

func TestWaitersOfAFailedAttemptDoNotRunIt(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			time.Sleep(time.Second)
			http.Error(w, "slow down", http.StatusTooManyRequests)
			return nil
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		codes := make(map[string]int)
		for range 50 {
			all.Go(func() {
				r := f.do(request{})
				mu.Lock()
				defer mu.Unlock()
				codes[strconv.Itoa(r.Code)+r.code()]++
			})
		}
		all.Wait()
		f.wantExecutions(1)
		if codes["429"] != 1 || codes["429"+CodeNotExecuted] != 49 {
			t.Errorf("answers: %v", codes)
		}
		f.serve = nil
		f.do(request{}).wantBody(t, 200, "execution 2", false)
		if n := len(f.mem.job().Attempts); n != 2 {
			t.Errorf("%d attempts", n)
		}
	})
}

func TestCL10VanishedRecord(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(10*time.Second, f)
		go f.do(request{})
		synctest.Wait()
		waiter := make(chan result)
		go func() { waiter <- f.do(request{}) }()
		synctest.Wait()
		id := f.mem.job().ID
		f.mem.wipe()
		r := (<-waiter).want(t, 503, CodeRecordLost)
		if r.Header().Get(HeaderJob) != id || !strings.Contains(r.Body.String(), `"job":"`+id+`"`) {
			t.Errorf("the job was known to be %s: %v %s", id, r.Header(), r.Body) // without it nobody can be asked about it
		}
		time.Sleep(20 * time.Second)
		// The attempt itself was alive, and its commit has brought the job back.
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
		if f.incs.of(IncidentClaimLost) != 1 {
			t.Error("the loss was not counted")
		}
	})
}

// Watching a record that can't be read gives a hint at once, each time.
func TestWatcherDoesNotSpinOnAnUnreadableRecord(t *testing.T) {
	bubble(t, Config{Wait: 30 * time.Second}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(time.Minute, f)
		go f.do(request{})
		synctest.Wait()
		var looks atomic.Int32
		f.mem.fail(func(op string) error {
			if op == "get" {
				if looks.Add(1) > 1000 {
					time.Sleep(time.Second) // a spinning watcher would stop the time
				}
			}
			return nil
		}, nil)
		waiter := make(chan result, 1)
		go func() { waiter <- f.do(request{}) }()
		synctest.Wait()
		f.mem.garble("garbage")
		r := (<-waiter).want(t, 503, CodeStoreUnavailable)
		r.wantNoClaimOfInnocence(t)
		if n, limit := looks.Load(), int32(30*time.Second/lookPause)+10; n < 5 || n > limit {
			t.Errorf("%d looks in 30 s, want at most %d", n, limit)
		}
		f.wantExecutions(1)
		time.Sleep(2 * time.Minute)
	})
}

var innocence = regexp.MustCompile(`(?i)nothing (was|has been) (executed|done)|(was|has) not (been )?(executed|done)`)

// wantNoClaimOfInnocence checks that a refusal doesn't say that nothing was
// executed: its client would take a new key, and have it done twice.
func (r result) wantNoClaimOfInnocence(t testing.TB) {
	t.Helper()
	if innocence.MatchString(r.Body.String()) || strings.Contains(r.Body.String(), CodeNotExecuted) {
		t.Errorf("says that nothing was executed, which nobody knows: %s", r.Body)
	}
}

// A duplicate that can't be answered knows nothing of what the first request did.
func TestRefusedDuplicateIsNotToldThatNothingWasExecuted(t *testing.T) {
	failing := func(failing string) func(string) error {
		return func(op string) error {
			if op == failing {
				return errInjected
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, f *fixture)
		status    int
		code      string
	}{
		"the store fails while it waits": {
			func(_ *testing.T, f *fixture) { f.mem.fail(failing("get"), nil) }, 503, CodeStoreUnavailable,
		},
		"the record vanishes": {
			func(_ *testing.T, f *fixture) { f.mem.wipe() }, 503, CodeRecordLost,
		},
		"the gateway stops": {
			func(t *testing.T, f *fixture) { go f.gateway.Drain(t.Context()) }, 409, CodeInFlight,
		},
		"the wait runs out": {
			func(*testing.T, *fixture) {}, 409, CodeInFlight,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Wait: 10 * time.Second}, func(t *testing.T, f *fixture) {
				f.serve = sleepy(30*time.Second, f)
				go f.do(request{})
				synctest.Wait()
				waiter := make(chan result, 1)
				go func() { waiter <- f.do(request{}) }()
				synctest.Wait()
				c.meanwhile(t, f)
				(<-waiter).want(t, c.status, c.code).wantNoClaimOfInnocence(t)
				f.wantExecutions(1)
				f.mem.fail(nil, nil)
				time.Sleep(time.Minute)
			})
		})
	}
	t.Run("a lapsed lease can't be written down", func(t *testing.T) {
		bubble(t, Config{Lease: 40 * time.Second}, func(t *testing.T, f *fixture) {
			if _, created, err := f.store.Create(t.Context(), f.claimed(keystore.NewToken())); !created || err != nil {
				t.Fatal(created, err) // by a gateway that died
			}
			time.Sleep(time.Minute)
			f.mem.fail(failing("index"), nil)
			f.do(request{}).want(t, 503, CodeStoreUnavailable).wantNoClaimOfInnocence(t)
			f.wantExecutions(0)
		})
	})
}

// A status can be declared to prove that nothing happened, 2xx as well. Its own
// client gets it as it came; to somebody who waited, a refusal with that status
// would look like success.
func TestNotExecutedIsNoSuccess(t *testing.T) {
	for _, status := range []int{202, 302} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			bubble(t, Config{Outcomes: map[int]keystore.Outcome{status: keystore.OutcomeFailed}}, func(t *testing.T, f *fixture) {
				f.serve = func(w http.ResponseWriter, _ *http.Request) error {
					time.Sleep(time.Second)
					w.WriteHeader(status)
					return nil
				}
				first := make(chan result, 1)
				go func() { first <- f.do(request{}) }()
				synctest.Wait()
				f.do(request{}).want(t, 502, CodeNotExecuted)
				(<-first).wantBody(t, status, "", false)
				f.wantExecutions(1)
			})
		})
	}
}

// onStart is called with the name of each span that begins.
type onStart func(name string)

func (f onStart) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) { f(s.Name()) }
func (onStart) OnEnd(sdktrace.ReadOnlySpan)                           {}
func (onStart) Shutdown(context.Context) error                        { return nil }
func (onStart) ForceFlush(context.Context) error                      { return nil }

// What is seen of a job while a duplicate is just entering its room is not missed.
func TestNothingIsMissedOnEntering(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		gate := make(chan struct{})
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			<-gate
			_, err := w.Write([]byte("done"))
			return err
		}
		go f.do(request{})
		synctest.Wait()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(onStart(func(name string) {
			if name == SpanWait { // it has entered
				close(gate)
				synctest.Wait()
			}
		}))).Tracer("test")
		ctx, span := tracer.Start(t.Context(), "server")
		defer span.End()
		began := time.Now()
		f.do(request{ctx: ctx}).wantBody(t, 200, "done", true)
		if took := time.Since(began); took > 0 {
			t.Errorf("told after %v", took)
		}
		f.wantExecutions(1)
	})
}
