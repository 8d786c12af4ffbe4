package proxy

import (
	"context"
	"net/http/httptrace"
	"sync"
	"sync/atomic"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// trace watches what the transports below an attempt do. Its hooks compose with
// those that others put into the same context, and fire for every round trip
// below us, also after the attempt has returned.
type trace struct {
	asked, connected, shut, wrote, firstByte atomic.Int32

	// tooLate says whether it is too late to dispatch. It is asked at the last
	// moments at which nothing has been sent yet.
	tooLate func() bool
	// abandon ends the attempt's context.
	abandon func()

	mu       sync.Mutex
	upstream string
}

// with returns a context in which the trace watches.
func (t *trace) with(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(addr string) {
			t.asked.Add(1)
			t.setUpstream(addr)
			if t.tooLate() {
				t.abandon()
			}
		},
		GotConn: func(info httptrace.GotConnInfo) {
			// A cancelled context does not keep a transport from using a
			// connection that it has got already. A closed one does, and
			// nothing has been written to it for this request.
			if t.tooLate() {
				t.abandon()
				if info.Conn != nil {
					t.shut.Add(1)
					t.connected.Add(1)
					info.Conn.Close()
					return
				}
			}
			t.connected.Add(1)
			if info.Conn != nil && info.Conn.RemoteAddr() != nil {
				t.setUpstream(info.Conn.RemoteAddr().String())
			}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				t.wrote.Add(1)
			}
		},
		GotFirstResponseByte: func() { t.firstByte.Add(1) },
	})
}

func (t *trace) setUpstream(addr string) {
	t.mu.Lock()
	t.upstream = addr
	t.mu.Unlock()
}

// soughtInVain reports whether connections were asked for and none was
// obtained on which anything could have been sent.
func (t *trace) soughtInVain() bool {
	return t.asked.Load() > 0 && t.usable() == 0
}

// usable is how many connections were obtained and not shut before use.
func (t *trace) usable() int32 { return t.connected.Load() - t.shut.Load() }

// evidence returns what was seen up to now.
func (t *trace) evidence() keystore.Evidence {
	t.mu.Lock()
	defer t.mu.Unlock()
	return keystore.Evidence{
		Upstream:  t.upstream,
		Hooked:    t.asked.Load() > 0,
		Asked:     int(t.asked.Load()),
		Connected: int(t.usable()),
		Wrote:     int(t.wrote.Load()),
		FirstByte: int(t.firstByte.Load()),
	}
}
