package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// moment is one between the first attempt and the second at which a gateway is
// killed, while several of its jobs are there.
type moment struct {
	name   string
	before func(f *failingOver)                // the requests are sent
	await  func(f *failingOver, keys []string) // and have come to the moment
	after  func(f *failingOver)                // the gateway was restarted
}

// failingOver is a gateway whose primary refuses everything, in one way or
// another, so that the fallback is asked.
type failingOver struct {
	t                 *testing.T
	g                 *gateway
	net               *faultnet.Proxy // before it
	store             keystore.Store  // of the gateway, on Redis
	primary, fallback *upstream
	parked            []*faultnet.Parked
	undo              func()
	tell              func(r request) request
}

const atAMoment = 16 // jobs: no more than there are connections to the store

// park holds the writes that change a record.
func (f *failingOver) park() {
	f.parked = nil
	for range atAMoment {
		f.parked = append(f.parked, f.net.Park("EVALSHA"))
	}
}

func (f *failingOver) awaitParked() {
	for _, k := range f.parked {
		select {
		case <-k.Arrived():
		case <-time.After(patience):
			f.t.Fatal("a write has not come")
		}
	}
}

// unpark lets the writes of a gateway that is dead go on to the server.
func (f *failingOver) unpark() {
	for _, k := range f.parked {
		k.Release()
		select {
		case <-k.Answered():
		case <-time.After(patience):
			f.t.Fatal("a write was not answered")
		}
	}
	f.parked = nil
}

// followed waits until each job has a second attempt.
func (f *failingOver) followed(keys []string) {
	for _, key := range keys {
		eventually(f.t, "the failover of "+key+" is written", func() bool {
			j := getJob(f.t, f.store, key)
			return j != nil && len(j.Attempts) == 2
		})
	}
}

func (f *failingOver) lose() {
	f.undo = f.net.Inject(faultnet.Fault{Command: "EVALSHA", Do: faultnet.LoseReplyAndHang})
}

var momentsOfAFailover = []moment{
	{
		name:   "the primary is at work",
		before: func(f *failingOver) { f.tell = func(r request) request { return r.tell("Hold-Primary", "never") } },
		await: func(f *failingOver, keys []string) {
			for _, key := range keys {
				f.primary.reached(key, 1)
			}
		},
	},
	{
		name:   "the failover is sent, and lands after the death",
		before: (*failingOver).park,
		await:  func(f *failingOver, _ []string) { f.awaitParked() },
		after:  (*failingOver).unpark,
	},
	{
		name:   "the failover is sent, and lands before the restart",
		before: (*failingOver).park,
		await:  func(f *failingOver, _ []string) { f.awaitParked(); f.g.kill(); f.unpark() },
	},
	{
		name:   "the failover has landed, and its reply is lost",
		before: (*failingOver).lose,
		await:  (*failingOver).followed,
		after:  func(f *failingOver) { f.undo() },
	},
	{
		name:   "the fallback is at work",
		before: func(f *failingOver) { f.tell = func(r request) request { return r.tell("Hold-Fallback", "never") } },
		await: func(f *failingOver, keys []string) {
			for _, key := range keys {
				f.fallback.reached(key, 1)
			}
		},
	},
	{
		name:   "the fallback has answered, and the commit lands after the death",
		before: func(f *failingOver) { f.tell = func(r request) request { return r.tell("Hold-Fallback", "commit") } },
		await: func(f *failingOver, keys []string) {
			for _, key := range keys {
				f.fallback.reached(key, 1)
			}
			f.park()
			f.fallback.release("commit")
			f.awaitParked()
		},
		after: (*failingOver).unpark,
	},
}

// However a gateway is killed between the first attempt of a job and the second,
// at 200 moments: the fallback is executed once at most, also by the repetitions
// that come after; and what a client was told, it is told again.
func TestKilledBetweenAttemptsExecutesOnce(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		redis := startRedis(t)
		f := &failingOver{t: t, net: faultnet.New(t, redis.Addr()), store: redis.open()}
		// Each write on a connection of its own, since one that is held would hold
		// those that share its round trip.
		f.start(storeAt(f.net.Addr()) + " {\n\tpipelining off\n}")
		f.killed(momentsOfAFailover, 97)
	})
	t.Run("bolt", func(t *testing.T) {
		t.Parallel()
		f := &failingOver{t: t}
		f.start("bolt")
		f.killed(nil, 97)
	})
}

// start starts the gateway. Its first site's primary says no, and the second's
// can't be reached.
func (f *failingOver) start(store string) {
	f.t.Helper()
	f.primary, f.fallback = newUpstream(f.t), newUpstream(f.t)
	const script = "request_header Up-Sleep {header.Sleep-%[1]s}\nrequest_header Up-Hold {header.Hold-%[1]s}\n"
	options := "store " + store + "\n" + unproven + "lease 3s\nwait 100ms\ntimeout 60s\n"
	back := named{name: "fallback", up: f.fallback, before: fmt.Sprintf(script, "Fallback")}
	f.g = startGatewayWith(f.t, "",
		between(options, named{name: "primary", up: f.primary, before: fmt.Sprintf(script, "Primary") + "request_header Up-Status 429"}, back),
		between(options, named{name: "primary", up: newRefusingUpstream(f.t)}, back))
	wantExecuted(f.t, f.g.client().do(post("warm"))) // a Redis server knows the scripts from now on
}

// killed kills the gateway at these moments, and so often at others, and checks
// what has become of all the jobs.
func (f *failingOver) killed(moments []moment, atChance int) {
	t, g, fallback := f.t, f.g, f.fallback
	told := make(map[string]answer)
	var mu sync.Mutex
	sites := make(map[string]int)
	var keys []string
	die := func(site int, m moment) {
		f.tell = func(r request) request { return r }
		if m.before != nil {
			m.before(f)
		}
		var all sync.WaitGroup
		var now []string
		for range atAMoment {
			key := fmt.Sprintf("killed-%d", len(keys))
			now, keys = append(now, key), append(keys, key)
			sites[key] = site
			r := f.tell(post(key))
			all.Go(func() {
				if a := g.clientOf(site).do(r); a.err == nil {
					mu.Lock()
					told[key] = a
					mu.Unlock()
				}
			})
		}
		m.await(f, now)
		g.kill()
		all.Wait()
		g.restart()
		for _, key := range now { // who repeats at once
			all.Go(func() { g.clientOf(site).do(post(key)) })
		}
		all.Wait()
		if m.after != nil {
			m.after(f)
		}
	}
	for _, m := range moments {
		die(0, m)
	}
	for i := range atChance {
		die(i%2, moment{
			before: func(f *failingOver) {
				f.tell = func(r request) request {
					return r.tell("Sleep-Primary", rand.N(20*time.Millisecond).String()).tell("Sleep-Fallback", rand.N(20*time.Millisecond).String())
				}
			},
			await: func(*failingOver, []string) { time.Sleep(rand.N(60 * time.Millisecond)) },
		})
	}

	ends := make(map[string]int)
	var all sync.WaitGroup
	slots := make(chan struct{}, 20)
	for _, key := range keys {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			c := g.clientOf(sites[key])
			var a answer
			eventually(t, key+" is settled", func() bool {
				a = c.do(post(key))
				return a.err == nil && (a.status == http.StatusOK || a.code() == "outcome-unknown")
			})
			again := c.do(post(key))
			executed := len(fallback.of(key))
			switch before, was := told[key]; {
			case was && before.status == http.StatusOK && (a.body != before.body || !a.replayed()):
				t.Errorf("%s was told %s, and now %d %s", key, before.body, a.status, a.body)
			case a.status == http.StatusOK && (executed != 1 || again.body != a.body || !again.replayed()):
				t.Errorf("%s was executed %d times, told %s, and then %s", key, executed, a.body, again.body)
			case a.status != http.StatusOK && again.code() != "outcome-unknown":
				t.Errorf("%s was unknown, and now there is %d %s", key, again.status, again.body)
			}
			if executed > 1 {
				t.Errorf("%s was executed %d times", key, executed)
			}
			if asked := len(f.primary.of(key)); asked > 1 { // it is unknown, or the fallback is next
				t.Errorf("the primary was asked for %s %d times", key, asked)
			}
			end := ""
			for _, attempt := range g.look(again.job()).Attempts {
				end += attempt.Provider + " " + attempt.State + ", "
			}
			mu.Lock()
			defer mu.Unlock()
			ends[fmt.Sprintf("%sfallback executed %d", end, executed)]++
		})
	}
	all.Wait()
	for end, n := range ends {
		t.Logf("%d: %s", n, end)
	}
}
