package proxy

import (
	ordered "container/list"
	"slices"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// cache keeps jobs whose answer this gateway has just given, once it was recorded, or
// given again, so that the next replay needs no store. It holds what the store has said and nothing else, for a
// limited time: a completed job is the same until it expires, or until somebody
// forgets it. What is encrypted in the store is so here.
//
// Nil is one that keeps nothing.
type cache struct {
	max int64 // bytes
	ttl time.Duration

	mu      sync.Mutex
	used    int64
	entries map[keystore.Name]*ordered.Element
	order   ordered.List // of *cached, the one used last first
}

// cached is a job in the cache: as its record until it is asked for, which few ever are.
// That is one piece of memory without a pointer in it, where a job is dozens of pieces
// that the collector goes through each time.
type cached struct {
	name    keystore.Name
	record  []byte        // nil where job is there
	job     *keystore.Job // nil where record is there
	size    int64
	until   time.Time
	expires keystore.Time
	forget  uint64 // how often jobs had been forgotten on this gateway when it was read
}

const (
	// cachedOverhead is about what a job takes in memory besides what is of any length,
	// and packedOverhead what its record does.
	cachedOverhead = 1 << 10
	packedOverhead = 1 << 8
	// maxPacked bounds the bodies that are copied for the sake of what is around them.
	maxPacked = 8 << 10
)

func newCache(size int64, ttl time.Duration) *cache {
	if size <= 0 || ttl <= 0 {
		return nil
	}
	return &cache{max: size, ttl: ttl, entries: make(map[keystore.Name]*ordered.Element)}
}

// get returns the completed job under this name, nil where it is not known or too
// old. Forgets is how often this gateway has forgotten jobs up to now.
func (c *cache) get(name keystore.Name, now keystore.Time, forgets uint64) *keystore.Job {
	if c == nil {
		return nil
	}
	known, job, record := c.find(name, now, forgets)
	if known == nil || job != nil {
		return job
	}
	job, err := keystore.DecodeRecord(name, record)
	if err != nil { // the store has it still
		return nil
	}
	c.unpack(known, job)
	return job
}

// find returns what there is under a name, and as what.
func (c *cache) find(name keystore.Name, now keystore.Time, forgets uint64) (known *cached, job *keystore.Job, record []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[name]
	if e == nil {
		return nil, nil, nil
	}
	known = e.Value.(*cached)
	if known.forget != forgets || !time.Now().Before(known.until) || known.expires <= now {
		c.drop(e)
		return nil, nil, nil
	}
	c.order.MoveToFront(e)
	return known, known.job, known.record
}

// unpack keeps a job that was asked for in place of its record: it may be asked for
// again and again.
func (c *cache) unpack(known *cached, job *keystore.Job) {
	size := sizeOf(job)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[known.name]; e == nil || e.Value != known || known.job != nil || size > c.max/4 {
		return
	}
	c.used += size - known.size
	known.job, known.record, known.size = job, nil, size
	c.makeRoom()
}

// put keeps a job that is completed, as the store has shown it to a request that
// began then, when jobs had been forgotten that often.
func (c *cache) put(j *keystore.Job, forgets uint64, began time.Time) {
	if c == nil || j == nil || j.CompletedBy.IsZero() || j.Result == nil || j.Expires.IsZero() {
		return
	}
	known := &cached{name: j.Name, job: j, until: began.Add(c.ttl), expires: j.Expires, forget: forgets}
	if known.size = sizeOf(j); known.size > c.max/4 { // it would be there instead of many others
		return
	}
	known.pack()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[j.Name]; e != nil {
		before := e.Value.(*cached)
		if before.forget > forgets || before.forget == forgets && before.until.After(known.until) {
			return // what is there was read after it
		}
		c.drop(e)
	}
	c.entries[j.Name] = c.order.PushFront(known)
	c.used += known.size
	c.makeRoom()
}

// pack makes a job its record, which a store has in the same form, unless its body is
// so large that a copy would cost more.
func (k *cached) pack() {
	if len(k.job.Result.Body) > maxPacked {
		return
	}
	record, err := keystore.EncodeRecord(k.job)
	if size := int64(packedOverhead + cap(record)); err == nil && size < k.size {
		k.record, k.job, k.size = record, nil, size
	}
}

// makeRoom drops what was used least lately. The caller holds mu.
func (c *cache) makeRoom() {
	for c.used > c.max {
		c.drop(c.order.Back())
	}
}

func (c *cache) drop(e *ordered.Element) {
	known := c.order.Remove(e).(*cached)
	delete(c.entries, known.name)
	c.used -= known.size
}

// sizeOf is about what a completed job takes. Much of it is as long as clients, upstreams
// and operators choose.
func sizeOf(j *keystore.Job) int64 {
	asked := &j.Request
	size := cachedOverhead + len(j.ID) + len(j.Space) + len(j.KeySent) + len(j.Fingerprint.Settings) +
		len(asked.Method) + len(asked.Host) + len(asked.Path) + len(asked.MediaType) + len(asked.Label)
	if j.KeySealed != nil {
		size += len(j.KeySealed.By) + cap(j.KeySealed.Box)
	}
	size += cap(j.Result.Body) + len(j.Result.SealedBy)
	for _, fields := range []map[string][]string{j.Result.Header, j.Result.Trailer} {
		for name, values := range fields {
			size += len(name) + 64
			for _, value := range values {
				size += len(value) + 64
			}
		}
	}
	for i := range j.Attempts {
		a := &j.Attempts[i]
		size += 512 + len(a.Provider) + len(a.Reason) + len(a.Evidence.Upstream) + len(a.Lookups.Note) + len(a.Trace)
		if a.Resolution != nil {
			size += len(a.Resolution.Actor) + len(a.Resolution.Evidence)
		}
		if a.Violation != nil {
			size += len(a.Violation.Path) + len(a.Violation.Expected) + len(a.Violation.Found)
		}
	}
	return int64(size)
}

// remembered answers the request without the store where the one decision function
// says of what is known here that it is a replay, or that it has to wait for an
// attempt that this gateway runs. Everything else is for the store to say.
func (c *call) remembered(name keystore.Name) (done bool, err error) {
	now := c.g.store.Now()
	if j := c.known.get(name, now, c.forgets); j != nil && c.ask(j, now) == keystore.Replay {
		c.recalled = true
		return true, c.replay(j)
	}
	j := c.g.running(name)
	if j == nil || c.ask(j, now) != keystore.Wait {
		return false, nil
	}
	found, err := c.wait(j)
	switch {
	case err != nil:
		return true, err
	case found == nil:
		return true, refuseLost(j)
	case overBy(found, now) && c.ask(found, c.g.store.Now()) == keystore.NotExecuted:
		// The news of that was only late: this request has come after it, maybe because
		// its client has been told, and has made no claim yet.
		c.account.Verdict = ""
		return false, nil
	}
	return true, c.judge(found, time.Time{})
}

// overBy reports whether all attempts of a job had ended by then, and were decided on.
func overBy(j *keystore.Job, then keystore.Time) bool {
	return !slices.ContainsFunc(j.Attempts, func(a keystore.Attempt) bool {
		return a.Ended.IsZero() || a.Ended > then || (a.Resolution != nil && a.Resolution.At > then)
	})
}

// running returns the job under this name as it is known of whoever waits for it
// here; nil where nobody does.
func (g *Gateway) running(name keystore.Name) *keystore.Job {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rm := g.rooms[name]; rm != nil {
		return rm.job
	}
	return nil
}
