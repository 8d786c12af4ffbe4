package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// On a racing route the first acceptable answer is everybody's, whichever provider
// was asked first, and stays it though the other one answers afterwards.
func TestRaceIsWonByTheFirstAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		holds    map[string]string // what holds a provider's answer back
		winner   string
		attempts []string
	}{
		"the second": {map[string]string{"a": "gate"}, "b", []string{"a discarded", "b succeeded"}},
		"the first":  {map[string]string{"a": "first", "b": "gate"}, "a", []string{"a succeeded", "b discarded"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, func(t *testing.T, store string) {
				ups := map[string]*upstream{"a": newUpstream(t), "b": newUpstream(t)}
				var racers []named
				for _, name := range []string{"a", "b"} {
					racer := named{name: name, up: ups[name], before: "header Racer " + name}
					if name == "b" {
						racer.before += "\nrequest_header Up-Sleep 500ms"
					}
					if gate := c.holds[name]; gate != "" {
						racer.before += "\nrequest_header Up-Hold " + gate
					}
					racers = append(racers, racer)
				}
				g := startGateway(t, between("store "+store+"\n"+unproven+"race after 1s", racers...))
				first := g.client().start(post("race"))
				ups["a"].reached("race", 1)
				waiter := g.client().start(post("race"))
				ups["b"].reached("race", 1)
				if c.holds["a"] == "first" {
					ups["a"].release("first")
				}
				a := first.answer()
				wantExecuted(t, a)
				if a.header.Get("Racer") != c.winner {
					t.Errorf("the answer is that of %s", a.header.Get("Racer"))
				}
				t.Logf("answered after %s", a.took)
				wantReplay(t, a, waiter.answer())
				eventually(t, "the loser has been ended", func() bool { return g.stacks("proxy.(*attempt).run+") == 0 })
				ups["a"].release("gate")
				ups["b"].release("gate")
				wantReplay(t, a, g.client().do(post("race")))
				g.wantAttempts(a, c.attempts...)
				ups["a"].want("race", 1)
				ups["b"].want("race", 1)
			})
		})
	}
}

// Random races of clients over two gateways: whoever is told an answer is told the
// one that the job has, byte for byte.
func TestRandomRacesOverTwoGateways(t *testing.T) {
	t.Parallel()
	const jobs, clients, atOnce = 2000, 4, 16
	a, b, redis := newUpstream(t), newUpstream(t), startRedis(t)
	racer := func(name string, up *upstream) named {
		return named{name: name, up: up, before: "request_header Up-Sleep {header.Sleep-" + name + "}\nrequest_header Up-Status {header.Status-" + name + "}\nrequest_header Up-Die {header.Die-" + name + "}"}
	}
	s := between("store "+redis.store()+"\n"+unproven+"timeout 30s\nrace after 10ms", racer("A", a), racer("B", b))
	one, two := startGateway(t, s).client(), startGateway(t, s).client()
	store := redis.open()
	var all sync.WaitGroup
	var mu sync.Mutex
	ends := make(map[string]int)
	slots := make(chan struct{}, atOnce)
	for n := range jobs {
		key := fmt.Sprintf("race-%d", n)
		r := post(key)
		for _, name := range []string{"A", "B"} {
			r = r.tell("Sleep-"+name, fmt.Sprintf("%dms", rand.N(40)))
			switch rand.N(6) {
			case 0:
				r = r.tell("Status-"+name, "429")
			case 1:
				r = r.tell("Die-"+name, "noreply")
			}
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			answers := volley(clients, r, one, two)
			answers = append(answers, one.do(r), two.do(r))
			j := getJob(t, store, key)
			told := ""
			for _, x := range answers {
				switch {
				case x.err != nil:
					t.Errorf("%s: %v", key, x.err)
				case x.status != http.StatusOK: // it had failed or was unknown at that time
				case j.Result == nil:
					t.Errorf("%s: a client was told %s, and the job has no result", key, x.body)
				case x.body != string(j.Result.Body):
					t.Errorf("%s: a client was told %s, the result is %s", key, x.body, j.Result.Body)
				default:
					told = x.body
				}
			}
			if j.Result != nil && answers[clients].status != http.StatusOK {
				t.Errorf("%s: there is a result, and a repetition was told %d", key, answers[clients].status)
			}
			winners := 0
			for i := range j.Attempts {
				if j.Attempts[i].State == keystore.AttemptSucceeded {
					winners++
				}
			}
			if (winners == 1) != (j.Result != nil) || winners > 1 || (told == "") != (j.Result == nil) {
				t.Errorf("%s: %d winners, told %q", key, winners, told)
			}
			mu.Lock()
			defer mu.Unlock()
			ends[fmt.Sprintf("%s after %d attempts", j.State(store.Now()), len(j.Attempts))]++
		})
	}
	all.Wait()
	t.Logf("%v", ends)
}
