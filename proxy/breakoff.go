package proxy

import (
	"net"
	"net/http"
)

// breakOff ends an answer that is not whole so that its client sees that.
func (c *call) breakOff() {
	if !c.r.ProtoAtLeast(1, 1) {
		reset(c.w)
	}
	panic(http.ErrAbortHandler)
}

// reset resets the client's connection. HTTP/1.0 tells the end of an answer by
// that of its connection, so that an orderly one would be a clean end.
func reset(w http.ResponseWriter) {
	for { // those who wrap the writer may wrap the connection too, and hide what it can do
		wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = wrapped.Unwrap()
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	for {
		wrapped, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = wrapped.NetConn()
	}
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}
