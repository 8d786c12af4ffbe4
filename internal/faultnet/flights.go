package faultnet

import (
	"strings"
	"time"
)

// A client that sends many commands before it reads their replies has to wait
// for the network only once. Such a bundle is a flight here. From outside it is
// not to be seen where a bundle ends: while its end is still being written, its
// beginning can have been answered. So for an exact count the replies have to be
// kept back until a whole bundle is there.

// silence is for how long a client has to have sent nothing before it is taken to
// wait for replies that are kept back.
const silence = 500 * time.Millisecond

// Flights is how many flights have begun with a command of this name. A flight
// begins with a command that comes on a connection where every earlier one has
// been answered. That is never too few, and too many where replies come while the
// client is still sending; see [Proxy.Gather].
func (p *Proxy) Flights(command string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flights[strings.ToUpper(command)]
}

// Gather keeps the replies to commands of this name back until n of them have
// come on one connection since the last that were. A client that sends n of them
// before it waits is not held up, and [Proxy.Flights] counts it exactly. One that
// waits for a reply before gets it after half a second of silence.
func (p *Proxy) Gather(command string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gathers[strings.ToUpper(command)] = n
}

// takeOff counts a flight.
func (p *Proxy) takeOff(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flights[command]++
}

// group is a number of commands whose replies are kept back together.
type group struct {
	left  int
	ready chan struct{} // closed when the replies can be given
	quiet *time.Timer
}

// gather returns the group whose replies this command's has to wait for, if any.
func (l *link) gather(command string) *group {
	l.proxy.mu.Lock()
	n := l.proxy.gathers[command]
	l.proxy.mu.Unlock()
	if l.group != nil {
		if l.group.quiet.Stop() {
			l.group.quiet.Reset(silence)
		} else {
			l.group = nil // its replies are being given
		}
	}
	if n == 0 {
		return nil
	}
	if l.group == nil {
		g := &group{left: n, ready: make(chan struct{})}
		g.quiet = time.AfterFunc(silence, func() { close(g.ready) })
		l.group = g
	}
	g := l.group
	if g.left--; g.left == 0 {
		l.group = nil
		if g.quiet.Stop() {
			close(g.ready)
		}
	}
	return g
}

// give passes a reply on to the client, once its group is complete.
func (l *link) give(raw []byte, g *group) {
	if g != nil {
		select {
		case <-g.ready:
		case <-l.done:
		}
	}
	l.unanswered.Add(-1)
	_, _ = l.client.Write(raw) // a client that has gone is noticed by forward
}
