package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// trace watches what the transports below an attempt do. Its hooks compose with
// those that others put into the same context, and fire for every round trip
// below us, also after the attempt has returned.
type trace struct {
	asked, connected, shut, headers, wrote, firstByte atomic.Int32

	// untold counts those who have put hooks of their own over these, as a reverse
	// proxy does before each round trip, and have asked for no connection with them: it
	// went through a transport that tells nothing.
	untold atomic.Int32

	// tooLate says whether it is too late to dispatch. It is asked at the last
	// moments at which nothing has been sent yet.
	tooLate func() bool
	// abandon ends the attempt's context.
	abandon func(cause error)

	// Since a proxy has begun its round trip:
	read     atomic.Bool // the request's body was read
	inquired atomic.Bool // a header told the method of the request that it is about, as that of forward_auth does
	// bodyless says that the request has no body to read, so that only such a header
	// tells a question about it from the request itself. Where that has such a header as
	// well, nothing does.
	bodyless, inquiring bool

	mu       sync.Mutex
	upstream string
	last     net.Conn
	trips    trips
}

// with returns a context in which the trace watches.
func (t *trace) with(ctx context.Context) context.Context {
	hooks := &httptrace.ClientTrace{
		GetConn: func(addr string) {
			t.asked.Add(1)
			t.setUpstream(addr)
			if t.tooLate() {
				t.abandon(errTooLate)
			}
		},
		GotConn: func(info httptrace.GotConnInfo) {
			t.connected.Add(1)
			switch {
			case t.tooLate():
				t.refuse(info.Conn, errTooLate)
			case t.sendsAgain():
				t.refuse(info.Conn, errSentAgain)
			default:
				t.remember(info.Conn)
			}
		},
		WroteHeaders: func() { t.headers.Add(1) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				t.wrote.Add(1)
			}
		},
		GotFirstResponseByte: func() { t.firstByte.Add(1) },
	}
	if t.bodyless && !t.inquiring {
		hooks.WroteHeaderField = func(name string, _ []string) {
			if strings.EqualFold(name, headerInquires) {
				t.inquired.Store(true)
			}
		}
	}
	return &watched{trace: t, hooks: hooks, Context: httptrace.WithClientTrace(ctx, hooks)}
}

// headerInquires has the method of the request that a question of Caddy's forward_auth
// is about.
const headerInquires = "X-Forwarded-Method"

// watched is a context that notices when somebody puts hooks over the trace's.
type watched struct {
	context.Context
	trace *trace
	hooks *httptrace.ClientTrace
}

// Value implements context.Context.
func (w *watched) Value(key any) any {
	if key == hooksKey && calledBy("net/http/httptrace.WithClientTrace") {
		return w.composed()
	}
	return w.Context.Value(key)
}

// composed returns the trace's hooks for somebody to put others over them. They are that
// one's own: others may ask for connections meanwhile, or later, with or without hooks.
func (w *watched) composed() *httptrace.ClientTrace {
	w.trace.beginTrip()
	w.trace.untold.Add(1)
	own, told := *w.hooks, new(atomic.Bool)
	own.GetConn = func(addr string) {
		w.hooks.GetConn(addr)
		if told.CompareAndSwap(false, true) {
			w.trace.untold.Add(-1)
		}
	}
	return &own
}

// hooksKey is the key under which net/http/httptrace keeps hooks in a context.
var hooksKey = func() (key any) {
	httptrace.ContextClientTrace(keyTold{context.Background(), &key})
	return key
}()

type keyTold struct {
	context.Context
	key *any
}

func (k keyTold) Value(key any) any {
	*k.key = key
	return nil
}

// calledBy reports whether a function is among the nearest callers. It is asked
// during every attempt, and most are near.
func calledBy(function string) bool {
	const near = 6
	var pcs [16]uintptr
	n := runtime.Callers(3, pcs[:near]) // of this, and of whoever asks
	if slices.ContainsFunc(pcs[:n], isOf(function)) {
		return true
	}
	n = runtime.Callers(3+near, pcs[:])
	return slices.ContainsFunc(pcs[:n], isOf(function))
}

// callSites are the places in the code that were among the callers, by function,
// with whether they are in it. There are as many of them as the code has.
var callSites sync.Map

type callSite struct {
	pc       uintptr
	function string
}

// isOf tells of a place in the code whether it is in a function, or in one that the
// compiler has put there in its place.
func isOf(function string) func(pc uintptr) bool {
	return func(pc uintptr) bool {
		site := callSite{pc, function}
		if known, ok := callSites.Load(site); ok {
			return known.(bool)
		}
		found := false
		frames := runtime.CallersFrames([]uintptr{pc})
		for more := true; more && !found; {
			var frame runtime.Frame
			frame, more = frames.Next()
			found = frame.Function == function
		}
		callSites.Store(site, found)
		return found
	}
}

// refuse keeps a transport from using a connection that it has just obtained,
// and on which nothing has been written yet for this request.
//
// A context that has ended keeps HTTP/2 from it, which asks once more before it
// writes. HTTP/1 does not always ask; its connection, which nobody else uses, is
// closed. HTTP/2 without TLS looks the same from here, so that its connection is
// closed too, although others may be using it: that nothing is sent matters more
// than that they would have been answered.
func (t *trace) refuse(conn net.Conn, cause error) {
	t.abandon(cause)
	s, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	if ok && s.ConnectionState().NegotiatedProtocol == "h2" || closeUnused(conn) {
		t.shut.Add(1)
	}
}

// closeUnused reports whether the connection could be closed. What HTTP/3 gives
// for one can't, and panics; of that it is not known whether it would be used.
func closeUnused(conn net.Conn) (closed bool) {
	defer func() {
		if recover() != nil {
			closed = false
		}
	}()
	conn.Close()
	return true
}

// sendsAgain reports whether something below is about to send again, by itself, a
// request that may have been executed: a connection has died before the first byte
// of an answer. net/http then does so with a request that has no body, if it carries
// a key or has a safe method (net/http, Request.isReplayable); a reverse proxy that
// retries does so with a GET, or what it is told to retry, if it has kept the body.
// Without a connection that died, another one is another request: a chain may make
// several.
func (t *trace) sendsAgain() bool {
	if t.headers.Load() <= t.firstByte.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return isClosed(t.last)
}

// isClosed reports whether a connection was closed on this side; true where that
// can't be told.
func isClosed(conn net.Conn) bool {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = wrapped.NetConn()
	}
	s, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

func (t *trace) remember(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = conn
	if conn != nil && conn.RemoteAddr() != nil {
		t.upstream = conn.RemoteAddr().String()
	}
}

func (t *trace) setUpstream(addr string) {
	t.mu.Lock()
	t.upstream = addr
	t.mu.Unlock()
}

// soughtInVain reports whether connections were asked for and none was
// obtained on which anything could have been sent.
func (t *trace) soughtInVain() bool {
	return t.asked.Load() > 0 && t.usable() == 0 && t.unseen() == 0
}

// unseen is how many round trips went through transports that tell nothing.
func (t *trace) unseen() int32 { return t.untold.Load() }

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
