// Package cutter puts a faulty network between any two programs in tests: a TCP
// proxy on the loopback that knows nothing of what it carries, and delays it, cuts
// connections, swallows everything, or lets it through drop by drop.
package cutter

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Action is what happens to what is sent through a [Cutter].
type Action int

// The actions.
const (
	// Delay holds each piece back for Fault.Delay.
	Delay Action = iota + 1
	// CutBefore cuts the connection when the client sends something, which is not
	// forwarded.
	CutBefore
	// CutAfter forwards what the client sends, and cuts the connection when the
	// answer to it comes, which is not.
	CutAfter
	// BlackHole lets nothing through in either direction, and closes nothing. What
	// was sent arrives when the fault is over, as over a network that repeats it.
	BlackHole
	// Drip lets a few bytes through at a time, with Fault.Delay after each.
	Drip
)

// Fault says what happens to the connections.
type Fault struct {
	Do Action
	// Chance is the probability with which a piece of what the client sends is hit.
	// Zero: all are.
	Chance float64
	// Delay belongs to the actions that need it.
	Delay time.Duration
	// Of is a word by which a connection is known: it is in what its client sends
	// first. Empty: all are meant.
	Of string
}

// drop is how many bytes go through at a time with [Drip].
const drop = 64

// Cutter stands between clients and a server. Create it with [New].
type Cutter struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex
	faults []Fault
	rnd    *rand.Rand
	healed chan struct{} // closed when the faults in force are over
	closed bool
	hits   map[Action]int
	links  map[*link]struct{}
}

// New starts a cutter in front of the server at target (host:port). It is stopped
// at the test's end. The seed makes its draws repeatable.
func New(t testing.TB, target string, seed uint64) *Cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("cutter: listen: %v", err)
	}
	c := &Cutter{
		listener: listener, target: target, rnd: rand.New(rand.NewPCG(seed, 0)),
		healed: make(chan struct{}), hits: make(map[Action]int), links: make(map[*link]struct{}),
	}
	c.wg.Go(c.accept)
	t.Cleanup(c.close)
	return c
}

// Addr is where clients connect to (host:port).
func (c *Cutter) Addr() string { return c.listener.Addr().String() }

// Set puts faults into force in place of those before; none heals. Of several the
// first that hits acts.
func (c *Cutter) Set(faults ...Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = faults
	close(c.healed)
	c.healed = make(chan struct{})
}

// Cut cuts the connections there are now that are known by this word, or all of them
// if it is empty.
func (c *Cutter) Cut(of string) {
	c.mu.Lock()
	links := make([]*link, 0, len(c.links))
	for l := range c.links {
		if l.is(of) {
			links = append(links, l)
		}
	}
	c.mu.Unlock()
	for _, l := range links {
		l.cut()
	}
}

// Hits is how often an action has hit something.
func (c *Cutter) Hits(a Action) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hits[a]
}

// meet returns what is to become of a piece that a link is about to forward, and
// when the faults in force are over.
func (c *Cutter) meet(l *link, fromClient bool) (f Fault, healed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		if !fromClient && (f.Do == CutBefore || f.Do == CutAfter) || !l.is(f.Of) {
			continue
		}
		if f.Chance > 0 && c.rnd.Float64() >= f.Chance {
			continue
		}
		c.hits[f.Do]++
		return f, c.healed
	}
	return Fault{}, c.healed
}

func (c *Cutter) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.wg.Go(func() { c.serve(client) })
	}
}

func (c *Cutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", c.target, 5*time.Second)
	if err != nil {
		// A server that is not there refuses: so does this.
		if tcp, ok := client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		return
	}
	l := &link{cutter: c, client: client, server: server, done: make(chan struct{})}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		server.Close()
		return
	}
	c.links[l] = struct{}{}
	c.mu.Unlock()
	l.run()
	c.mu.Lock()
	delete(c.links, l)
	c.mu.Unlock()
}

func (c *Cutter) close() {
	_ = c.listener.Close()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.Cut("")
	c.wg.Wait()
}
