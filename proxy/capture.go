package proxy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// capture is the response writer of one attempt. It has a header map of its own,
// keeps the answer up to a limit, and never lets the attempt feel that a client
// has gone. Whoever waits for the answer is given it while it is still captured
// if it is an event stream, or as soon as it has outgrown the limit.
type capture struct {
	header http.Header
	limit  int64
	head   bool // the request's method is HEAD: a length without a body is whole
	// passOn is called once, when an answer is to be passed on, with its head. It
	// returns what takes the body to the client, or nil if nobody waits any more.
	passOn func(head *keystore.Response) *feed
	// inform passes on an informational answer, if anybody waits for it.
	inform func(status int, header http.Header)

	mu      sync.Mutex
	status  int
	sent    http.Header // as it was when the status was written
	body    []byte      // as far as there is memory of its own for it
	more    gathered    // the body, where nobody knows how large it will be
	size    int64
	offered bool  // passOn has been called
	feed    *feed // nil: it is passed on to nobody
	over    bool
	closed  bool
}

func newCapture(method string, limit int64) *capture {
	return &capture{
		header: make(http.Header), limit: limit, head: method == http.MethodHead,
		inform: func(int, http.Header) {},
	}
}

// Header implements http.ResponseWriter.
func (c *capture) Header() http.Header { return c.header }

// WriteHeader implements http.ResponseWriter. Informational answers are not the
// answer, and are not kept. To continue (100) was told by whoever has read the
// request's body.
func (c *capture) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *capture) writeHeader(status int) {
	if c.status != 0 || c.closed {
		return
	}
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		if status != http.StatusContinue {
			c.inform(status, c.header.Clone())
		}
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does, which could not write it
	}
	c.status = status
	c.sent = c.header.Clone()
	if declared, err := strconv.ParseInt(c.sent.Get("Content-Length"), 10, 64); err == nil && bodyAllowed(status) && !c.head && 0 < declared && declared <= c.limit {
		c.body = make([]byte, 0, declared) // growing would copy it several times
	}
	if bodyAllowed(status) && !c.head && isEventStream(c.sent) {
		c.offer()
	}
}

// offer passes the answer on from its head on, if anybody waits for it.
func (c *capture) offer() {
	if !c.offered {
		c.offered = true
		c.feed = c.passOn(c.response())
	}
}

// Write implements http.ResponseWriter.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, http.ErrHandlerTimeout
	}
	c.writeHeader(http.StatusOK)
	c.size += int64(len(p))
	if c.size <= c.limit {
		if c.feed == nil && cap(c.body) == 0 {
			return c.more.Write(p)
		}
		c.body = append(c.body, p...)
		if c.feed != nil {
			c.feed.keep(c.body)
		}
		return len(p), nil
	}
	if !c.over {
		c.over = true
		c.offer()
		if c.feed != nil {
			c.feed.keep(c.whole())
		}
		c.body = nil
		c.more.drop()
	}
	if c.feed != nil {
		c.feed.push(p)
	}
	return len(p), nil
}

// FlushError implements what http.ResponseController looks for. Nothing is held
// back that a flush would have to push.
func (c *capture) FlushError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(http.StatusOK)
	return nil
}

// Flush implements http.Flusher.
func (c *capture) Flush() { _ = c.FlushError() }

// begun reports whether an answer was begun.
func (c *capture) begun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status != 0
}

// finish ends the capture, so that nothing is added any more, and returns the
// answer, nil if none was begun, and whether it is whole. A handler that returns
// without having written anything has answered 200, as everywhere in net/http.
func (c *capture) finish(returned bool) (answer *keystore.Response, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if returned {
		c.writeHeader(http.StatusOK)
	}
	c.closed = true
	if c.status == 0 {
		return nil, false
	}
	answer = c.response()
	answer.Body = c.whole()
	answer.NotKept = c.over
	answer.Trailer = c.trailer()
	complete = returned && c.status != http.StatusSwitchingProtocols
	if declared := c.sent.Get("Content-Length"); declared != "" && bodyAllowed(c.status) && !c.head {
		if n, err := strconv.ParseInt(declared, 10, 64); err != nil || n != c.size {
			complete = false
		}
	}
	return answer, complete
}

// abandon ends the capture without an answer, while the handler may go on: what it
// says of the header is left alone, since it may be at it.
func (c *capture) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.body = nil
	c.more.drop()
}

// whole takes what is kept of the body.
func (c *capture) whole() []byte {
	if c.more.size > 0 {
		c.body = c.more.take()
	}
	return c.body
}

func (c *capture) response() *keystore.Response {
	return &keystore.Response{
		Status:   c.status,
		Header:   c.sent,
		Size:     c.size,
		Answered: keystore.TimeOf(time.Now()),
	}
}

// trailer returns the fields that were set as trailers, in both of the ways that
// net/http has for it.
func (c *capture) trailer() http.Header {
	trailer := make(http.Header)
	for name, values := range c.header {
		if after, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			trailer[http.CanonicalHeaderKey(after)] = values
		}
	}
	for _, line := range c.sent.Values("Trailer") {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values, ok := c.header[name]; ok {
				trailer[name] = values
			}
		}
	}
	delete(trailer, HeaderRefused) // nobody has judged the answer by what comes after it
	if len(trailer) == 0 {
		return nil
	}
	return endToEnd(trailer)
}

// isEventStream reports whether an answer's parts are waited for one by one.
func isEventStream(h http.Header) bool {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(t), "text/event-stream")
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
