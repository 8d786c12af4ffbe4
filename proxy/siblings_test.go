package proxy

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// stores are the real ones, each on a backend of its own.
var stores = map[string]func(t *testing.T) keystore.Store{
	"redis": func(t *testing.T) keystore.Store {
		s, err := redisstore.Open(redisstore.Options{URL: redistest.Start(t).URL()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
	"bolt": func(t *testing.T) keystore.Store {
		s, err := boltstore.Open(filepath.Join(t.TempDir(), "jobs.db"), boltstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	},
}

// claimed is the job of the fixture's request k1 by alice, with its first
// attempt starting.
func (f *fixture) claimed(token keystore.Token) *keystore.Job {
	r := httptest.NewRequest(http.MethodPost, "http://api.example/pay", nil)
	r.Header.Set("Content-Type", "application/json")
	body, err := readBody(strings.NewReader(`{"amount":1}`), -1, 1<<10, 1<<10)
	if err != nil {
		f.t.Fatal(err)
	}
	defer body.release()
	fingerprint, err := f.route.recipe.fingerprint(r, body)
	if err != nil {
		f.t.Fatal(err)
	}
	name := keystore.NameOf(f.route.Space, "alice", "k1")
	j := keystore.NewJob(keystore.Job{
		Name: name, ID: keystore.NewJobID(name), Space: f.route.Space, KeySent: "k1",
		Fingerprint: fingerprint, Retention: f.route.Retention,
	}, f.attempt(token))
	j.WriteID = keystore.NewWriteID()
	return j
}

func (f *fixture) attempt(token keystore.Token) keystore.NewAttempt {
	return keystore.NewAttempt{Token: token, At: f.store.Now(), Lease: f.route.Lease, Listen: f.route.Timeout + f.route.Linger}
}

// sibling adds a second attempt to a job whose first has become unknown, as a
// racing route does.
func (f *fixture) sibling(j *keystore.Job, first, second keystore.Token) *keystore.Job {
	unknown := j.Report(keystore.Report{Token: first, Outcome: keystore.OutcomeUnknown, Listening: true, At: f.store.Now()}).Next
	next := unknown.Start(f.attempt(second))
	next.WriteID = keystore.NewWriteID()
	return next
}

// sibling is an attempt, and where what comes of it is told.
type sibling struct {
	*attempt
	reply chan reply
}

// startSibling starts the attempt with this token against an upstream of its own.
func (f *fixture) startSibling(job *keystore.Job, token keystore.Token, serve func(w http.ResponseWriter, r *http.Request) error) sibling {
	r := httptest.NewRequest(http.MethodPost, "http://api.example/pay", nil)
	body, err := readBody(strings.NewReader(`{"amount":1}`), -1, 1<<10, 1<<10)
	if err != nil {
		f.t.Fatal(err)
	}
	defer body.release()
	now := time.Now()
	told := make(chan reply, 1)
	return sibling{f.route.dispatch(dispatch{
		claimed: claimed{job, token, now}, request: r, keySent: job.KeySent, deadline: now.Add(f.route.Timeout),
		body: body, provider: &fixture{t: f.t, serve: serve}, hints: make(chan hint, hintsHeld),
		tell:   func(r reply) bool { told <- r; return true },
		follow: func(*attempt) (next keystore.NewAttempt, ok bool) { return next, false },
	}), told}
}

// Two attempts of one job, each against an upstream of its own: whichever
// finishes first wins, whichever was started first.
func TestReverseOrder(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		for name, order := range map[string][2]int{"the first finishes first": {0, 1}, "the second finishes first": {1, 0}} {
			t.Run(store+", "+name, func(t *testing.T) {
				t.Parallel()
				f := newFixtureOn(t, open(t), Config{})
				var logged bytes.Buffer
				f.gateway.log = slog.New(slog.NewTextHandler(&logged, nil))

				finish := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
				tokens := [2]keystore.Token{keystore.NewToken(), keystore.NewToken()}
				var upstreams [2]*wire
				var attempts [2]sibling
				job := f.claimed(tokens[0])
				if _, created, err := f.store.Create(t.Context(), job); !created || err != nil {
					t.Fatal(created, err)
				}
				for i := range attempts {
					upstreams[i] = newWire(t, func(_ int32, _ string, conn net.Conn) bool {
						<-finish[i]
						return ok(conn, "answer of "+string(rune('A'+i)))
					})
					if i == 1 {
						next := f.sibling(job, tokens[0], tokens[1])
						if _, swapped, err := f.store.Swap(t.Context(), job.WriteID, next); !swapped || err != nil {
							t.Fatal(swapped, err)
						}
						job = next
					}
					f.through(upstreams[i].url())
					attempts[i] = f.startSibling(job, tokens[i], f.serve)
				}
				for _, i := range order {
					close(finish[i])
					<-attempts[i].done
				}
				winner, loser := order[0], order[1]
				want := "answer of " + string(rune('A'+winner))
				if rep := <-attempts[winner].reply; rep.answer == nil || string(rep.answer.Body) != want || !rep.recorded {
					t.Errorf("the winner was told %+v", rep)
				}
				if rep := <-attempts[loser].reply; !rep.superseded {
					t.Errorf("the loser was told %+v", rep)
				}
				f.do(request{}).wantBody(t, 200, want, true)

				j, err := f.store.Get(t.Context(), job.Name)
				if err != nil {
					t.Fatal(err)
				}
				lost := j.Attempt(tokens[loser])
				if j.CompletedBy != tokens[winner] || lost.State != keystore.AttemptDiscarded || lost.Evidence.Status != 200 || lost.Ended.IsZero() {
					t.Errorf("completed by the winner: %t, the loser: %+v", j.CompletedBy == tokens[winner], lost)
				}
				if f.incs.of(IncidentDiscarded) != 1 || !strings.Contains(logged.String(), "discarded") {
					t.Errorf("counted %d, logged %q", f.incs.of(IncidentDiscarded), &logged)
				}
				for i, u := range upstreams {
					if u.executions.Load() != 1 {
						t.Errorf("upstream %d: %d executions", i, u.executions.Load())
					}
				}
			})
		}
	}
}

// Two siblings that commit in the same instant: exactly one is told that it won,
// and it did.
func TestSiblingsCommitInTheSameInstant(t *testing.T) {
	t.Parallel()
	const tries, atOnce = 10_000, 64
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixtureOn(t, open(t), Config{})
			try := func(n int) {
				var siblings [2]*attempt
				var tokens [2]keystore.Token
				for i := range tokens {
					tokens[i] = keystore.NewToken()
				}
				job := f.claimed(tokens[0])
				job.Name = keystore.NameOf("main", "alice", string(rune(n))) // one job a try
				job.ID = keystore.NewJobID(job.Name)
				job = f.sibling(job, tokens[0], tokens[1])
				if _, created, err := f.store.Create(t.Context(), job); !created || err != nil {
					t.Errorf("created %t, %v", created, err)
					return
				}
				var won [2]keystore.Effect
				var both sync.WaitGroup
				start := make(chan struct{})
				for i := range siblings {
					siblings[i] = &attempt{g: f.gateway, route: f.route, name: job.Name, token: tokens[i], job: job}
					both.Go(func() {
						<-start
						settled, err := siblings[i].report(t.Context(), keystore.Report{
							Token: tokens[i], Outcome: keystore.OutcomeFinal, At: f.store.Now(),
							Response: &keystore.Response{Status: 200, Body: []byte{byte(i)}, Size: 1},
						}, 5)
						if err != nil {
							t.Errorf("try %d: %v", n, err)
						}
						won[i] = settled.Effect
					})
				}
				close(start)
				both.Wait()
				j, err := f.store.Get(t.Context(), job.Name)
				if err != nil || j == nil {
					t.Errorf("try %d: %v", n, err)
					return
				}
				for i := range won {
					told := won[i] == keystore.EffectWon || won[i] == keystore.EffectAlreadyWon
					if told != (j.CompletedBy == tokens[i]) || (told && !bytes.Equal(j.Result.Body, []byte{byte(i)})) {
						t.Errorf("try %d: sibling %d was told %q; it won: %t", n, i, won[i], j.CompletedBy == tokens[i])
					}
				}
			}
			next := make(chan int)
			var workers sync.WaitGroup
			for range atOnce {
				workers.Go(func() {
					for n := range next {
						try(n)
					}
				})
			}
			for n := range tries {
				next <- n
			}
			close(next)
			workers.Wait()
		})
	}
}

// An attempt that lost, and to whose report the reply was lost too, finds itself
// discarded already when it reports again. It must not take that for its own
// success.
func TestLostReplyToADiscard(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, f *fixture) {
		tokens := [2]keystore.Token{keystore.NewToken(), keystore.NewToken()}
		finish := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
		var attempts [2]sibling
		job := f.claimed(tokens[0])
		if _, created, err := f.store.Create(t.Context(), job); !created || err != nil {
			t.Fatal(created, err)
		}
		for i := range attempts {
			if i == 1 {
				next := f.sibling(job, tokens[0], tokens[1])
				if _, swapped, err := f.store.Swap(t.Context(), job.WriteID, next); !swapped || err != nil {
					t.Fatal(swapped, err)
				}
				job = next
			}
			attempts[i] = f.startSibling(job, tokens[i], func(w http.ResponseWriter, _ *http.Request) error {
				<-finish[i]
				_, err := fmt.Fprint(w, "answer ", i)
				return err
			})
		}
		close(finish[0])
		<-attempts[0].done
		f.mem.fail(nil, onceFor("swap", 1, errInjected))
		close(finish[1])
		<-attempts[1].done
		if rep := <-attempts[1].reply; !rep.superseded {
			t.Errorf("the loser was told %+v", rep)
		}
		f.do(request{}).wantBody(t, 200, "answer 0", true)
	})
}
