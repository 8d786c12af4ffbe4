package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// unknownFor makes the fixture's request k1 unknown, with an upstream that
// answers after this long.
func (f *fixture) unknownFor(d time.Duration) *keystore.Job {
	f.t.Helper()
	f.serve = func(w http.ResponseWriter, r *http.Request) error {
		select {
		case <-time.After(d):
			_, err := fmt.Fprintf(w, "execution %d", f.executions.Load())
			return err
		case <-r.Context().Done():
			return context.Cause(r.Context())
		}
	}
	f.do(request{}).want(f.t, 504, CodeOutcomeUnknown)
	synctest.Wait()
	f.serve = nil
	return f.mem.job()
}

func decide(j *keystore.Job, as keystore.AttemptState) Decision {
	d := Decision{Job: j.ID, As: as, Actor: "alice", Evidence: "bank statement"}
	if as == keystore.AttemptSucceeded {
		d.Response = &keystore.Response{Status: 201, Header: http.Header{"Content-Type": {"text/plain"}}, Body: []byte("charged")}
	}
	return d
}

func TestResolve(t *testing.T) {
	for as, retry := range map[keystore.AttemptState]string{
		keystore.AttemptSucceeded: "charged",
		keystore.AttemptFailed:    "execution 2",
		keystore.AttemptCancelled: "execution 2",
	} {
		t.Run(as.String(), func(t *testing.T) {
			bubble(t, Config{Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
				j := f.unknownFor(time.Hour)
				j, err := f.gateway.Resolve(t.Context(), decide(j, as))
				if err != nil {
					t.Fatal(err)
				}
				a := j.Attempts[0]
				if a.State != as || a.Resolution == nil || a.Resolution.Actor != "alice" || a.Resolution.Evidence != "bank statement" {
					t.Errorf("attempt %+v", a)
				}
				if f.incs.told(EventResolved) != 1 || f.incs.told(EventOutcomeUnknown) != 1 {
					t.Errorf("events %+v", f.incs.events)
				}
				r := f.do(request{})
				if r.Body.String() != retry || r.Header().Get(HeaderJob) != j.ID {
					t.Errorf("a retry got %d %s of job %s", r.Code, r.Body, r.Header().Get(HeaderJob))
				}
				if n := f.mem.job().AttemptCount(); (n == 2) != (as != keystore.AttemptSucceeded) {
					t.Errorf("%d attempts", n)
				}
				if _, err := f.gateway.Resolve(t.Context(), decide(j, as)); !errors.Is(err, keystore.ErrNotResolvable) {
					t.Errorf("a second decision: %v", err)
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

func TestDecisionsThatAreRefused(t *testing.T) {
	bubble(t, Config{Timeout: time.Second}, func(t *testing.T, f *fixture) {
		j := f.unknownFor(time.Minute)
		for name, c := range map[string]struct {
			change func(*Decision)
			want   error
		}{
			"no actor":               {func(d *Decision) { d.Actor = "" }, ErrDecision},
			"no evidence":            {func(d *Decision) { d.Evidence = "" }, ErrDecision},
			"as unknown":             {func(d *Decision) { d.As = keystore.AttemptUnknown }, ErrDecision},
			"failed with a response": {func(d *Decision) { d.Response = new(keystore.Response) }, ErrDecision},
			"succeeded without one":  {func(d *Decision) { d.As = keystore.AttemptSucceeded }, ErrDecision},
			"another job":            {func(d *Decision) { d.Job = keystore.NewJobID(j.Name) }, ErrNoJob},
			"no job id":              {func(d *Decision) { d.Job = "x" }, ErrNoJob},
			"an attempt that is not": {func(d *Decision) { d.Attempt = 7 }, ErrNoAttempt},
		} {
			d := decide(j, keystore.AttemptFailed)
			c.change(&d)
			if _, err := f.gateway.Resolve(t.Context(), d); !errors.Is(err, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s := f.mem.job().LastAttempt().State; s != keystore.AttemptUnknown {
			t.Errorf("attempt is %s", s)
		}
		time.Sleep(2 * time.Minute)

		f.serve = sleepy(time.Minute, f)
		f.route.Timeout = time.Hour
		go f.do(request{key: "k2"})
		synctest.Wait()
		running, err := f.gateway.JobOf(t.Context(), keystore.Digester{}, "main", "alice", `"k2"`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.gateway.Resolve(t.Context(), decide(running, keystore.AttemptFailed)); !errors.Is(err, keystore.ErrNotResolvable) {
			t.Errorf("a starting attempt: %v", err)
		}
		time.Sleep(2 * time.Minute)
	})
}

// A success after the attempt was given up for failed or cancelled, and after
// another one has run, is thrown away, kept as evidence, and told as what it is.
func TestLateSuccessContradicts(t *testing.T) {
	for _, as := range []keystore.AttemptState{keystore.AttemptCancelled, keystore.AttemptFailed} {
		t.Run(as.String(), func(t *testing.T) {
			bubble(t, Config{Timeout: time.Second, Linger: time.Hour}, func(t *testing.T, f *fixture) {
				j := f.unknownFor(time.Minute)
				if _, err := f.gateway.Resolve(t.Context(), decide(j, as)); err != nil {
					t.Fatal(err)
				}
				f.do(request{}).wantBody(t, 200, "execution 2", false)
				time.Sleep(2 * time.Minute)
				a := f.mem.job().Attempts[0]
				if a.State != keystore.AttemptDiscarded || a.Evidence.Status != 200 || a.Ended.IsZero() {
					t.Errorf("late attempt %+v", a)
				}
				if f.incs.told(EventContradicted) != 1 || f.incs.of(IncidentContradicted) != 1 || f.incs.told(EventLateResult) != 0 {
					t.Errorf("events %+v", f.incs.events)
				}
				f.do(request{}).wantBody(t, 200, "execution 2", true)
				f.wantExecutions(2)
			})
		})
	}
}

func TestLateSuccessAfterFailedTakesTheEmptySlot(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Hour}, func(t *testing.T, f *fixture) {
		j := f.unknownFor(time.Minute)
		if _, err := f.gateway.Resolve(t.Context(), decide(j, keystore.AttemptFailed)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		f.wantExecutions(1)
		if f.incs.told(EventContradicted) != 1 {
			t.Errorf("events %+v", f.incs.events)
		}
	})
}

func TestLateAnswerAfterSucceededIsEvidence(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Hour}, func(t *testing.T, f *fixture) {
		j := f.unknownFor(time.Minute)
		if _, err := f.gateway.Resolve(t.Context(), decide(j, keystore.AttemptSucceeded)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		f.do(request{}).wantBody(t, 201, "charged", true)
		if f.incs.told(EventContradicted) != 1 || f.mem.job().Attempts[0].Evidence.Status != 200 {
			t.Errorf("events %+v, attempt %+v", f.incs.events, f.mem.job().Attempts[0])
		}
	})
}

// Two operators decide at once, and one against a late result: exactly one wins,
// and the other is told what has happened.
func TestDecisionsRace(t *testing.T) {
	t.Parallel()
	const races = 1000
	for name, open := range stores {
		for _, against := range []string{"another operator", "a late result"} {
			t.Run(name+" against "+against, func(t *testing.T) {
				t.Parallel()
				f := newFixtureOn(t, open(t), Config{})
				try := func(n int) {
					token := keystore.NewToken()
					job := f.claimed(token)
					job.Name = keystore.NameOf("main", "alice", strconv.Itoa(n))
					job.ID = keystore.NewJobID(job.Name)
					job = job.Report(keystore.Report{Token: token, Outcome: keystore.OutcomeUnknown, Listening: true, At: f.store.Now()}).Next
					job.WriteID = keystore.NewWriteID()
					if _, created, err := f.store.Create(t.Context(), job); !created || err != nil {
						t.Errorf("created %t, %v", created, err)
						return
					}
					start := make(chan struct{})
					var both sync.WaitGroup
					var errs [2]error
					var told [2]*keystore.Job
					operator := func(i int, as keystore.AttemptState) {
						both.Go(func() {
							<-start
							d := decide(job, as)
							d.Actor = strconv.Itoa(i)
							told[i], errs[i] = f.gateway.Resolve(t.Context(), d)
						})
					}
					operator(0, keystore.AttemptCancelled)
					var late keystore.Settlement
					if against == "another operator" {
						operator(1, keystore.AttemptSucceeded)
					} else {
						a := &attempt{g: f.gateway, route: f.route, name: job.Name, token: token, job: job}
						both.Go(func() {
							<-start
							late, errs[1] = a.report(t.Context(), keystore.Report{
								Token: token, Outcome: keystore.OutcomeFinal, At: f.store.Now(), Response: &keystore.Response{Status: 200},
							}, 5)
						})
					}
					close(start)
					both.Wait()
					j, err := f.store.Get(t.Context(), job.Name)
					if err != nil || j == nil {
						t.Errorf("try %d: %v", n, err)
						return
					}
					res := j.Attempts[0].Resolution
					if against == "another operator" {
						if (errs[0] == nil) == (errs[1] == nil) {
							t.Errorf("try %d: %v and %v", n, errs[0], errs[1])
							return
						}
						winner, loser := 0, 1
						if errs[1] == nil {
							winner, loser = 1, 0
						}
						if res == nil || res.Actor != strconv.Itoa(winner) {
							t.Errorf("try %d: %d was told that it decided, the record says %+v", n, winner, res)
						}
						if !errors.Is(errs[loser], keystore.ErrNotResolvable) || told[loser].Attempts[0].State != j.Attempts[0].State {
							t.Errorf("try %d: the other was told %v", n, errs[loser])
						}
						return
					}
					switch {
					case errs[1] != nil:
						t.Errorf("try %d: late result: %v", n, errs[1])
					case late.Effect == keystore.EffectWon && (!errors.Is(errs[0], keystore.ErrNotResolvable) || res != nil || j.CompletedBy != token):
						t.Errorf("try %d: the late result won, the operator was told %v", n, errs[0])
					case late.Effect == keystore.EffectDiscarded && (errs[0] != nil || !late.Contradicts || !j.CompletedBy.IsZero()):
						t.Errorf("try %d: the operator won, and was told %v", n, errs[0])
					case late.Effect != keystore.EffectWon && late.Effect != keystore.EffectDiscarded:
						t.Errorf("try %d: the late result was %s", n, late.Effect)
					}
				}
				next := make(chan int)
				var workers sync.WaitGroup
				for range 16 {
					workers.Go(func() {
						for n := range next {
							try(n)
						}
					})
				}
				for n := range races {
					next <- n
				}
				close(next)
				workers.Wait()
			})
		}
	}
}

// A decision whose first send may have been applied is not reported as certainly
// not applied because its second send was refused.
func TestDecisionInDoubt(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
		j := f.unknownFor(time.Hour)
		sent := 0
		f.mem.fail(func(op string) error {
			if op == "swap" && sent > 0 {
				return errors.Join(errInjected, keystore.ErrNotApplied)
			}
			return nil
		}, func(op string) error {
			if op == "swap" {
				sent++
				return errInjected
			}
			return nil
		})
		_, err := f.gateway.Resolve(t.Context(), decide(j, keystore.AttemptCancelled))
		f.mem.fail(nil, nil)
		if !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, keystore.ErrNotApplied) {
			t.Errorf("got %v", err)
		}
		if s := f.mem.job().Attempts[0].State; s != keystore.AttemptCancelled {
			t.Errorf("attempt is %s", s)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestForget(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Hour}, func(t *testing.T, f *fixture) {
		j := f.unknownFor(time.Minute)
		if err := f.gateway.Forget(t.Context(), j.ID, "alice"); !errors.Is(err, keystore.ErrNotForgettable) {
			t.Errorf("an unknown job: %v", err)
		}
		if _, err := f.gateway.Resolve(t.Context(), decide(j, keystore.AttemptSucceeded)); err != nil {
			t.Fatal(err)
		}
		if err := f.gateway.Forget(t.Context(), j.ID, "alice"); !errors.Is(err, keystore.ErrNotForgettable) {
			t.Errorf("while its attempt may report: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if err := f.gateway.Forget(t.Context(), j.ID, ""); !errors.Is(err, ErrDecision) {
			t.Errorf("by nobody: %v", err)
		}
		if err := f.gateway.Forget(t.Context(), j.ID, "alice"); err != nil {
			t.Error(err)
		}
		if err := f.gateway.Forget(t.Context(), j.ID, "alice"); !errors.Is(err, ErrNoJob) {
			t.Errorf("twice: %v", err)
		}
		f.do(request{}).wantBody(t, 200, "execution 2", false)
	})
}

func TestJobsAndStats(t *testing.T) {
	bubble(t, Config{Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
		f.do(request{key: "done"})
		time.Sleep(time.Hour)
		f.unknownFor(time.Hour)
		time.Sleep(2 * time.Minute)
		for _, c := range []struct {
			filter JobFilter
			want   int
		}{
			{JobFilter{}, 2},
			{JobFilter{State: keystore.JobUnknown}, 1},
			{JobFilter{State: keystore.JobCompleted}, 1},
			{JobFilter{State: keystore.JobRunning}, 0},
			{JobFilter{Space: "main"}, 2},
			{JobFilter{Space: "other"}, 0},
			{JobFilter{Provider: "other"}, 0},
			{JobFilter{MinAge: 30 * time.Minute}, 1},
		} {
			jobs, next, err := f.gateway.Jobs(t.Context(), c.filter, "", 100)
			if err != nil || next != "" || len(jobs) != c.want {
				t.Errorf("%+v: %d jobs, next %q, %v", c.filter, len(jobs), next, err)
			}
		}
		s, err := f.gateway.Stats()
		if err != nil || s.Unknown != 1 || s.Running != 0 || s.Attempts != 0 || s.OldestUnknown != 2*time.Minute+time.Second {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
