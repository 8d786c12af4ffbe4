package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// bubble runs a test in which time passes only while everybody waits.
func bubble(t *testing.T, c Config, test func(t *testing.T, f *fixture)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, c)
		test(t, f)
		f.gateway.Close()
	})
}

func sleepy(d time.Duration, f *fixture) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		time.Sleep(d)
		_, err := fmt.Fprintf(w, "execution %d", f.executions.Load())
		return err
	}
}

func TestFirstReplayConflict(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		first := f.do(request{}).wantBody(t, 200, "execution 1", false)
		time.Sleep(time.Hour)
		again := f.do(request{}).wantBody(t, 200, "execution 1", true)
		if n := f.mem.calls("create"); n != 2 || len(f.mem.ops) != 3 {
			t.Errorf("a fresh request and a replay took %v", f.mem.ops)
		}
		if a, b := first.Header().Get(HeaderJob), again.Header().Get(HeaderJob); a == "" || a != b {
			t.Errorf("job ids %q and %q", a, b)
		}
		if first.Header().Get(HeaderExpires) == "" || first.Header().Get(HeaderExpires) != again.Header().Get(HeaderExpires) {
			t.Errorf("expiry %q, then %q", first.Header().Get(HeaderExpires), again.Header().Get(HeaderExpires))
		}
		f.wantExecutions(1)
		for name, q := range map[string]request{
			"body":       {body: `{"amount":2}`},
			"path":       {url: "http://api.example/refund"},
			"query":      {url: "http://api.example/pay?a=1"},
			"host":       {url: "http://other.example/pay"},
			"method":     {method: http.MethodPut},
			"media type": {contentType: "text/plain"},
		} {
			r := f.do(q)
			if r.want(t, 409, CodeKeyReused); r.Header().Get(HeaderJob) != first.Header().Get(HeaderJob) {
				t.Errorf("other %s: job %q", name, r.Header().Get(HeaderJob))
			}
			if r.Header().Get("Retry-After") != "" {
				t.Errorf("other %s: a reused key invites to retry", name)
			}
		}
		f.wantExecutions(1)
		f.do(request{owner: "bob"}).wantBody(t, 200, "execution 2", false)
		f.wantExecutions(2)
	})
}

func TestSpacesAreApart(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.do(request{})
		c := f.route.Config
		c.Space = "other"
		f.route, _ = NewRoute(f.gateway, c)
		f.do(request{}).wantBody(t, 200, "execution 2", false)
	})
}

func TestQuotedAndBareKeyAreOne(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		var sent []string
		f.serve = func(_ http.ResponseWriter, r *http.Request) error {
			sent = r.Header["Idempotency-Key"]
			return nil
		}
		f.do(request{key: `"k 1"`}).want(t, 400, CodeKeyInvalid)
		f.do(request{key: `"k1"`}).wantBody(t, 200, "", false)
		f.do(request{key: `k1`}).wantBody(t, 200, "", true)
		f.wantExecutions(1)
		if len(sent) != 1 || sent[0] != `"k1"` {
			t.Errorf("upstream saw the key %q", sent)
		}
	})
}

func TestDoubleClick(t *testing.T) {
	for name, deaf := range map[string]bool{"with hints": false, "without hints": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.mem.deaf = deaf
				f.serve = sleepy(time.Second, f)
				var all sync.WaitGroup
				for range 50 {
					all.Go(func() {
						r := f.do(request{})
						if r.Code != 200 || r.Body.String() != "execution 1" {
							t.Errorf("got %d %s", r.Code, r.Body)
						}
					})
				}
				all.Wait()
				f.wantExecutions(1)
			})
		})
	}
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

func TestTimeoutIsUnknownAndTheLateResultWins(t *testing.T) {
	bubble(t, Config{Timeout: time.Second}, func(t *testing.T, f *fixture) {
		f.serve = sleepy(5*time.Second, f)
		started := time.Now()
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		if took := time.Since(started); took != time.Second {
			t.Errorf("answered after %v", took)
		}
		synctest.Wait()
		if s := f.mem.job().State(f.store.Now()); s != keystore.JobUnknown {
			t.Errorf("job is %s", s)
		}
		if len(f.mem.index) != 1 {
			t.Error("the unknown job is not in the index")
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
		time.Sleep(5 * time.Second)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
		if f.incs.of(IncidentLateResult) != 1 {
			t.Error("the late result was not counted")
		}
	})
}

func TestLingerEnds(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
		f.serve = func(_ http.ResponseWriter, r *http.Request) error {
			<-r.Context().Done()
			return context.Cause(r.Context())
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		time.Sleep(2 * time.Minute)
		a := f.mem.job().LastAttempt()
		if a.State != keystore.AttemptUnknown || a.Ended.IsZero() || a.Reason != errLingerOver.Error() {
			t.Errorf("attempt is %s, ended %v: %s", a.State, a.Ended, a.Reason)
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
		f.wantExecutions(1)
	})
}

func TestCAD06ClientLeaves(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, r *http.Request) error {
			select {
			case <-time.After(3 * time.Second):
				_, err := io.WriteString(w, "done")
				return err
			case <-r.Context().Done(): // what a reverse proxy does when its client has gone
				w.WriteHeader(499)
				return nil
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.do(request{ctx: ctx})
		time.Sleep(3 * time.Second)
		f.do(request{}).wantBody(t, 200, "done", true)
		f.wantExecutions(1)
	})
}

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

func TestBypass(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.do(request{key: "none"}).wantBody(t, 200, "execution 1", false)
		f.do(request{key: "none"}).wantBody(t, 200, "execution 2", false)
		f.do(request{method: http.MethodGet}).wantBody(t, 200, "execution 3", false)
		f.do(request{method: http.MethodOptions}).wantBody(t, 200, "execution 4", false)
		if len(f.mem.records) != 0 {
			t.Error("an unprotected request left a record")
		}
		f.route.KeyRequired = true
		f.do(request{key: "none"}).want(t, 400, CodeKeyMissing)
		f.do(request{method: http.MethodOptions, key: "none"}).wantBody(t, 200, "execution 5", false)
		f.do(request{owner: "nobody"}).want(t, 400, CodeOwnerMissing)
		f.do(request{header: http.Header{"Upgrade": {"websocket"}}}).want(t, 400, CodeKeyInvalid)
		f.do(request{header: http.Header{"Idempotency-Key": {"a", "b"}}}).want(t, 400, CodeKeyInvalid)
		f.do(request{header: http.Header{"Idempotency-Key": {""}}}).want(t, 400, CodeKeyInvalid)
		f.wantExecutions(5)
	})
}

// Two or more identical 4xx and 5xx answers are told apart by the replay's marker.
func TestOUT06ReplayedFailureIsMarked(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			http.Error(w, "broken", http.StatusInternalServerError)
			return nil
		}
		first := f.do(request{})
		if first.Code != 500 || first.Header().Get(HeaderReplayed) != "" || first.Header().Get(HeaderAnsweredAt) != "" {
			t.Errorf("first: %d %v", first.Code, first.Header())
		}
		time.Sleep(time.Minute)
		again := f.do(request{})
		if again.Code != 500 || again.Header().Get(HeaderReplayed) != "true" {
			t.Errorf("again: %d %v", again.Code, again.Header())
		}
		at, err := http.ParseTime(again.Header().Get(HeaderAnsweredAt))
		if err != nil || time.Since(at) < 59*time.Second || time.Since(at) > 61*time.Second {
			t.Errorf("answered at %q", again.Header().Get(HeaderAnsweredAt))
		}
		f.wantExecutions(1)
	})
}

func TestErrorOfAnAttemptWithoutEffectPasses(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		refused := errors.New("connection refused")
		f.serve = func(http.ResponseWriter, *http.Request) error { return refused }
		f.fail = Failure{Status: 502, DialFailed: true}
		if r := f.do(request{}); !errors.Is(r.err, refused) || r.Header().Get(HeaderJob) == "" {
			t.Errorf("got %v, %v", r.err, r.Header())
		}
		f.serve = nil
		r := f.do(request{}).wantBody(t, 200, "execution 2", false)
		j := f.mem.job()
		if len(j.Attempts) != 2 || j.Attempts[0].State != keystore.AttemptFailed || j.ID != r.Header().Get(HeaderJob) {
			t.Errorf("attempts %+v", j.Attempts)
		}
	})
}

func TestOUT05UnknownIsNotFailed(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(http.ResponseWriter, *http.Request) error { return errors.New("127.0.0.1:9081: EOF") }
		f.fail = Failure{Status: 502}
		for range 2 {
			r := f.do(request{}).want(t, 504, CodeOutcomeUnknown)
			if strings.Contains(r.Body.String(), "9081") || !strings.Contains(r.Body.String(), string(AdviceWaitForResolution)) {
				t.Errorf("problem: %s", r.Body)
			}
			if r.Header().Get(HeaderJob) == "" || r.Header().Get("Retry-After") != "" {
				t.Errorf("headers: %v", r.Header())
			}
		}
		f.wantExecutions(1)
	})
}

func TestPanicIsUnknownAndDoesNotEndTheProcess(t *testing.T) {
	for name, value := range map[string]any{"abort": http.ErrAbortHandler, "other": "boom"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, f *fixture) {
				f.serve = func(w http.ResponseWriter, _ *http.Request) error {
					w.Header().Set("Content-Length", "100")
					_, _ = io.WriteString(w, "partial")
					panic(value)
				}
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				f.wantExecutions(1)
			})
		})
	}
}

func TestShortAnswerIsUnknown(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		f.serve = func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Length", "100")
			_, err := io.WriteString(w, "partial")
			return err
		}
		f.do(request{}).want(t, 504, CodeOutcomeUnknown)
	})
}
