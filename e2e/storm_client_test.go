package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/e2e/history"
)

// The routes of a storm. A key begins with the name of its route.
const (
	plainRoute    = "plain"    // one provider
	failoverRoute = "failover" // another one if the first has certainly done nothing
	racingRoute   = "racing"   // another one if the first is slow
	lookupRoute   = "lookup"   // asks its upstream about what is unknown
	briefRoute    = "brief"    // keeps answers for seconds only
)

// retentions are how long routes keep answers.
var retentions = map[string]time.Duration{
	plainRoute: 24 * time.Hour, failoverRoute: 24 * time.Hour, racingRoute: 24 * time.Hour, lookupRoute: 24 * time.Hour, briefRoute: 6 * time.Second,
}

func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, "-")
	return kind
}

// intent is what somebody wants, and repeats until it is known what became of it.
type intent struct {
	key     string
	request request
}

// newIntent draws one.
func newIntent(rnd *rand.Rand, number int) *intent {
	route := plainRoute
	switch n := rnd.IntN(100); {
	case n < 20:
		route = failoverRoute
	case n < 30:
		route = racingRoute
	case n < 38:
		route = lookupRoute
	case n < 44:
		route = briefRoute
	}
	i := &intent{key: fmt.Sprintf("%s-%d", route, number)}
	i.request = post(i.key).as(func(r *request) {
		r.path = "/" + route
		r.body = fmt.Sprintf(`{"order":%q}`, i.key)
		for _, provider := range []string{"primary", "fallback"} {
			r.headers.Set("Script-"+provider, drawScript(rnd))
		}
	})
	return i
}

// drawScript draws how an upstream behaves: well, as a rule.
func drawScript(rnd *rand.Rand) string {
	s := fmt.Sprintf("sleep=%dms", rnd.IntN(15))
	switch n := rnd.IntN(100); {
	case n < 6:
		s = fmt.Sprintf("sleep=%dms", 100+rnd.IntN(900))
	case n < 7:
		s = fmt.Sprintf("sleep=%dms", 1900+rnd.IntN(2500)) // about as long as anybody waits
	}
	switch n := rnd.IntN(100); {
	case n < 8:
		s += fmt.Sprintf(" refuse=%d", 1+rnd.IntN(2))
	case n < 9:
		s += " die=noreply"
	case n < 10:
		s += " die=truncate"
	case n < 11:
		s += " status=502"
	case n < 13:
		s += " status=500"
	case n < 15:
		s += fmt.Sprintf(" size=%d", 20000+rnd.IntN(40000))
	}
	return s
}

// other returns the request of somebody who uses the key for something else.
func (i *intent) other() request {
	return i.request.as(func(r *request) { r.body = fmt.Sprintf(`{"order":"another than %s"}`, i.key) })
}

// crowd is the clients of a storm.
type crowd struct {
	s *storm

	mu       sync.Mutex
	intents  []*intent
	requests []history.Request
}

// add returns a new intent.
func (c *crowd) add(rnd *rand.Rand) *intent {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := newIntent(rnd, len(c.intents)+1)
	c.intents = append(c.intents, i)
	return i
}

// again returns an intent that somebody comes back to: mostly a recent one.
func (c *crowd) again(rnd *rand.Rand) *intent {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.intents)
	switch {
	case n == 0:
		return nil
	case rnd.IntN(4) > 0:
		return c.intents[n-1-rnd.IntN(min(n, 100))]
	default:
		return c.intents[rnd.IntN(n)]
	}
}

// recent returns the keys of the latest intents.
func (c *crowd) recent(n int) (keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.intents[max(0, len(c.intents)-n):] {
		keys = append(keys, i.key)
	}
	return keys
}

// work sends requests until the storm is over.
func (c *crowd) work(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		switch n := rnd.IntN(100); {
		case n < 35:
			if i := c.again(rnd); i != nil {
				r := i.request
				if rnd.IntN(12) == 0 {
					r = i.other()
				}
				c.ask(rnd.IntN(len(c.s.posts)), r, 0, false)
			}
		default:
			c.pursue(ctx, rnd, c.add(rnd))
		}
		time.Sleep(time.Duration(rnd.IntN(int(2 * c.s.pause))))
	}
}

// pursue sends a request as an SDK does: again, with the same key, until there is
// an answer, or it has lost patience. Some click twice, some hang up and come back.
func (c *crowd) pursue(ctx context.Context, rnd *rand.Rand, i *intent) {
	at, twice := rnd.IntN(len(c.s.posts)), rnd.IntN(8) == 0
	for try := range 6 {
		var hangUp time.Duration
		if rnd.IntN(16) == 0 {
			hangUp = time.Duration(rnd.IntN(100)) * time.Millisecond
		}
		var second sync.WaitGroup
		if twice {
			with := i.request
			if rnd.IntN(10) == 0 {
				with = i.other()
			}
			beside := rnd.IntN(len(c.s.posts))
			second.Go(func() { c.ask(beside, with, 0, false) })
		}
		a := c.ask(at, i.request, hangUp, false)
		second.Wait()
		switch {
		case a.err != nil:
			at++ // another gateway may be there
		case settled(a), a.code() == "outcome-unknown", ctx.Err() != nil:
			return
		}
		backoff := 20 * time.Millisecond << try
		time.Sleep(backoff/2 + time.Duration(rnd.Int64N(int64(backoff))))
	}
}

// settled reports whether an answer is the last word on its key.
func settled(a answer) bool {
	return a.err == nil && ((a.code() == "" && !passed(a)) || a.code() == "result-not-kept")
}

// passed reports whether an answer is that of an attempt which certainly did nothing:
// the upstream's own word, or that it could not be reached.
func passed(a answer) bool {
	return a.code() == "" && (a.status == http.StatusTooManyRequests || (a.status > 500 && a.body == ""))
}

// longest is how long a client waits for an answer.
const longest = 6 * time.Second

// ask sends one request, to the gateway with this number, and writes down what came
// of it. A client that hangs up does so after that time.
func (c *crowd) ask(at int, r request, hangUp time.Duration, last bool) answer {
	wait := longest
	if hangUp > 0 {
		wait = hangUp
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	began := c.s.now()
	a := c.s.posts[at%len(c.s.posts)].client.doContext(ctx, r)
	h := history.Request{Key: r.key, Asked: r.body, Began: began, Ended: c.s.now(), Last: last}
	if a.err == nil {
		h.Heard, h.Status, h.Code, h.Job = true, a.status, a.code(), a.job()
		h.Replayed, h.Passed = a.replayed(), passed(a)
		h.Unrecorded = a.header.Get("Idempotency-Recorded") == "false"
		if h.Code == "" {
			h.Answer = digest(a.body)
		}
	}
	c.mu.Lock()
	c.requests = append(c.requests, h)
	c.mu.Unlock()
	return a
}

// finish asks for every key once more, now that all is well, until there is an
// answer.
func (c *crowd) finish(workers int) {
	c.mu.Lock()
	intents := c.intents
	c.mu.Unlock()
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for n := worker; n < len(intents); n += workers {
				deadline := time.Now().Add(3 * patience)
				for try := 0; ; try++ {
					a := c.ask(n+try, intents[n].request, 0, true)
					if settled(a) || time.Now().After(deadline) {
						break
					}
					// A key can have been taken by the request for something else.
					if a.code() == "key-reused" && settled(c.ask(n+try, intents[n].other(), 0, true)) {
						break
					}
					time.Sleep(min(20*time.Millisecond<<min(try, 5), 500*time.Millisecond))
				}
			}
		})
	}
	all.Wait()
}
