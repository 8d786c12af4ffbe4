package faultnet

import (
	"bufio"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	done           chan struct{} // closed by cut
	left           chan struct{} // closed when the client has gone
	once           sync.Once

	// pending holds what is to become of the replies to come, in the order of
	// their commands.
	pending chan reply

	unanswered atomic.Int64 // commands that the client has sent and waits for
	group      *group       // that is being gathered; forward's own
}

// reply is what becomes of the server's next reply.
type reply struct {
	lose   Action        // LoseReplyAndCut, LoseReplyAndHang, or zero
	answer string        // given instead of one from the server
	came   chan struct{} // closed when it has come; may be nil
	stream bool          // from here on the server speaks unasked
	group  *group        // to wait for before it is given; may be nil
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{
		proxy: p, client: client, server: server,
		done: make(chan struct{}), left: make(chan struct{}), pending: make(chan reply, 1<<16),
	}
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// run forwards until either side is done.
func (l *link) run() {
	var back sync.WaitGroup
	back.Go(l.backward)
	l.forward()
	close(l.pending)
	close(l.left)
	// The client has gone. What was forwarded may still be answered: a parked
	// command reports that. An endless stream ends with the server's side.
	select {
	case <-l.done:
	default:
		_ = l.server.SetReadDeadline(time.Now().Add(2 * time.Second))
	}
	back.Wait()
	l.cut()
}

// forward takes the client's commands to the server.
func (l *link) forward() {
	in := bufio.NewReader(l.client)
	for {
		raw, name, err := readCommand(in)
		if err != nil {
			return
		}
		if l.unanswered.Add(1) == 1 {
			l.proxy.takeOff(name)
		}
		r := reply{group: l.gather(name)}
		if f := l.proxy.meet(name); f != nil {
			switch f.Do {
			case LoseReplyAndCut, LoseReplyAndHang:
				r.lose = f.Do
			case CutBefore:
				l.cut()
				return
			case Delay:
				select {
				case <-time.After(f.Delay):
				case <-l.done:
					return
				}
			case Answer:
				r.answer = f.Reply
				l.pending <- r
				continue
			case park:
				close(f.parked.arrived)
				<-f.parked.gate
				r.came = f.parked.passed
			}
		}
		r.stream = name == "SUBSCRIBE" || name == "PSUBSCRIBE" || name == "MONITOR"
		l.pending <- r
		if _, err := l.server.Write(raw); err != nil {
			return
		}
	}
}

// backward takes the server's replies to the client, or loses them.
func (l *link) backward() {
	in := bufio.NewReader(l.server)
	for r := range l.pending {
		if r.answer != "" {
			l.give([]byte(r.answer), r.group)
			continue
		}
		if r.stream {
			_, _ = io.Copy(l.client, in)
			l.cut()
			return
		}
		raw, err := readValue(in)
		if err != nil {
			l.cut()
			return
		}
		if r.came != nil {
			close(r.came)
		}
		switch r.lose {
		case LoseReplyAndCut:
			l.cut()
			return
		case LoseReplyAndHang:
			select { // nothing more ever comes back on this connection
			case <-l.done:
			case <-l.left:
			}
			return
		}
		l.give(raw, r.group)
	}
}
