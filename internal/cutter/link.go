package cutter

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection through the cutter.
type link struct {
	cutter         *Cutter
	client, server net.Conn
	once           sync.Once
	done           chan struct{} // closed by cut

	mu     sync.Mutex
	first  []byte      // what the client has sent first
	doomed atomic.Bool // the next answer is not passed on
}

// is reports whether the link is one that a fault means.
func (l *link) is(word string) bool {
	if word == "" {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.first, []byte(word))
}

// firstBytes is how much of what a client sends is remembered.
const firstBytes = 1 << 10

func (l *link) remember(piece []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = append(l.first, piece[:min(len(piece), firstBytes-len(l.first))]...)
}

// cut ends the connection for both sides, the way it ends when a machine is gone:
// with a reset, so that nobody takes it for an orderly end.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.done)
		for _, c := range []net.Conn{l.client, l.server} {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = c.Close()
		}
	})
}

// run forwards until both sides are done.
func (l *link) run() {
	var back sync.WaitGroup
	back.Go(func() { l.pump(l.server, l.client, false) })
	l.pump(l.client, l.server, true)
	back.Wait()
	l.cut()
}

// pump takes what one side sends to the other.
func (l *link) pump(from, to net.Conn, fromClient bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if fromClient {
				l.remember(buf[:n])
			}
			if !l.forward(buf[:n], to, fromClient) {
				l.cut()
				return
			}
		}
		if err != nil {
			// One side has nothing more to say, and may go on listening.
			if tcp, ok := to.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			return
		}
	}
}

// forward sends one piece on, and reports whether the connection goes on.
func (l *link) forward(piece []byte, to net.Conn, fromClient bool) bool {
	if !fromClient && l.doomed.Load() {
		return false
	}
	for {
		f, healed := l.cutter.meet(l, fromClient)
		switch f.Do {
		case CutBefore:
			return false
		case CutAfter:
			l.doomed.Store(true)
		case Delay:
			if !l.sleep(f.Delay) {
				return false
			}
		case BlackHole:
			select {
			case <-healed:
				continue
			case <-l.done:
				return false
			}
		case Drip:
			return l.drip(piece, to, f.Delay, healed)
		}
		_, err := to.Write(piece)
		return err == nil
	}
}

func (l *link) drip(piece []byte, to net.Conn, pause time.Duration, healed <-chan struct{}) bool {
	for len(piece) > 0 {
		n := min(drop, len(piece))
		select {
		case <-healed:
			n = len(piece)
		default:
		}
		if _, err := to.Write(piece[:n]); err != nil {
			return false
		}
		if piece = piece[n:]; len(piece) > 0 && !l.sleep(pause) {
			return false
		}
	}
	return true
}

// sleep reports whether the connection is still there afterwards.
func (l *link) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-l.done:
		return false
	}
}
