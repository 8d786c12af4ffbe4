// Package faultnet puts a faulty network between a Redis client and its server
// in tests: a TCP proxy on the loopback that understands just enough of the
// protocol to lose, hold, delay or count single commands.
package faultnet

import (
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Action is what a [Fault] does to a command it matches.
type Action int

// The actions.
const (
	// LoseReplyAndCut forwards the command, waits until the server has answered,
	// throws the answer away and cuts the connection: the command was executed,
	// and the client sees an EOF.
	LoseReplyAndCut Action = iota + 1
	// LoseReplyAndHang does the same but leaves the connection open and silent:
	// the client sees nothing until its own patience ends.
	LoseReplyAndHang
	// CutBefore cuts the connection without forwarding the command.
	CutBefore
	// Delay holds the command back for Fault.Delay, then forwards it.
	Delay
	// Answer gives Fault.Reply, in the protocol's own form, without forwarding
	// the command.
	Answer

	park // see Proxy.Park
)

// Fault says what happens to which commands.
type Fault struct {
	// Command is the name of the commands it matches, in any case. Empty: all.
	Command string
	// Do is what happens to them.
	Do Action
	// Skip is how many of them pass before.
	Skip int
	// Times is to how many of them. Zero: all that match as long as the fault is
	// in force.
	Times int
	// Chance, if not zero, is the probability with which a matching command is
	// hit; Seed makes the draws repeatable.
	Chance float64
	Seed   uint64
	// Delay and Reply belong to the actions of the same name.
	Delay time.Duration
	Reply string
}

type fault struct {
	Fault
	rnd    *rand.Rand
	parked *Parked
}

// Proxy stands between clients and a server. Create it with [New].
type Proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex
	target   string
	closed   bool
	faults   []*fault
	counts   map[string]int
	flights  map[string]int
	gathers  map[string]int // see Gather
	accepted int
	links    map[*link]struct{}
	parked   []*Parked
}

// New starts a proxy in front of the server at target (host:port). It is
// stopped at the test's end.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("faultnet: listen: %v", err)
	}
	p := &Proxy{
		listener: listener, target: target,
		counts: make(map[string]int), flights: make(map[string]int), gathers: make(map[string]int),
		links: make(map[*link]struct{}),
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is where clients connect to (host:port).
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Redirect sends connections made from now on to another server, as when a name
// comes to point elsewhere. Existing connections stay where they are.
func (p *Proxy) Redirect(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Inject puts a fault into force, until remove is called or its Times are used
// up. Of several faults that match a command the one injected first acts.
func (p *Proxy) Inject(f Fault) (remove func()) {
	return p.inject(&fault{Fault: f})
}

func (p *Proxy) inject(f *fault) (remove func()) {
	if f.Chance != 0 {
		f.rnd = rand.New(rand.NewPCG(f.Seed, 0))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drop(f)
	}
}

func (p *Proxy) drop(f *fault) {
	for i := range p.faults {
		if p.faults[i] == f {
			p.faults = append(p.faults[:i:i], p.faults[i+1:]...)
			return
		}
	}
}

// Parked is a command that is held before it is forwarded.
type Parked struct {
	arrived chan struct{}
	gate    chan struct{}
	passed  chan struct{}
	once    sync.Once
}

// Arrived is closed when the command has come.
func (k *Parked) Arrived() <-chan struct{} { return k.arrived }

// Release lets the command go on to the server, even if the client that sent it
// has gone away meanwhile.
func (k *Parked) Release() { k.once.Do(func() { close(k.gate) }) }

// Answered is closed when the server has answered the released command.
func (k *Parked) Answered() <-chan struct{} { return k.passed }

// Park holds the next command of this name until it is released.
func (p *Proxy) Park(command string) *Parked {
	k := &Parked{arrived: make(chan struct{}), gate: make(chan struct{}), passed: make(chan struct{})}
	p.inject(&fault{Fault: Fault{Command: command, Do: park, Times: 1}, parked: k})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parked = append(p.parked, k)
	return k
}

// Count is how many commands of this name clients have sent so far.
func (p *Proxy) Count(command string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[strings.ToUpper(command)]
}

// Counts is how many commands clients have sent so far, by name in upper case.
func (p *Proxy) Counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Accepted is how many connections clients have made so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// CutAll cuts every connection there is now.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.cut()
	}
}

// meet counts a command and returns the fault that hits it, if any.
func (p *Proxy) meet(command string) *fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[command]++
	for _, f := range p.faults {
		if f.Command != "" && !strings.EqualFold(f.Command, command) {
			continue
		}
		if f.rnd != nil && f.rnd.Float64() >= f.Chance {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				p.drop(f)
			}
		}
		return f
	}
	return nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.accepted++
		target := p.target
		p.mu.Unlock()
		p.wg.Go(func() { p.serve(client, target) })
	}
}

func (p *Proxy) serve(client net.Conn, target string) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	l := newLink(p, client, server)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	parked := p.parked
	p.mu.Unlock()
	for _, k := range parked {
		k.Release()
	}
	p.CutAll()
	p.wg.Wait()
}
