package proxy

import (
	"crypto/sha256"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// capture is the response writer of one attempt. It has a header map of its own,
// keeps the answer up to a limit, and never lets the attempt feel that a client
// has gone. An answer that outgrows the limit is passed on from there to whoever
// waits for it, if anybody still does.
type capture struct {
	header http.Header
	limit  int64
	head   bool // the request's method is HEAD: a length without a body is whole
	// overflow is called once, when the answer outgrows the limit. It takes the
	// answer's head and what was kept of the body, and returns where the rest
	// goes, or nil if nobody waits any more.
	overflow func(head *keystore.Response) *io.PipeWriter
	// pass writes a part of the rest; with nil nobody takes it any more.
	pass func(w *io.PipeWriter, p []byte) error

	mu      sync.Mutex
	status  int
	sent    http.Header // as it was when the status was written
	body    []byte
	size    int64
	sum     hash.Hash
	passing *io.PipeWriter
	over    bool
	closed  bool
}

func newCapture(method string, limit int64) *capture {
	return &capture{header: make(http.Header), limit: limit, head: method == http.MethodHead, sum: sha256.New()}
}

// Header implements http.ResponseWriter.
func (c *capture) Header() http.Header { return c.header }

// WriteHeader implements http.ResponseWriter. Informational answers are not the
// answer, and are not kept.
func (c *capture) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *capture) writeHeader(status int) {
	if c.status != 0 || c.closed || (status >= 100 && status < 200 && status != http.StatusSwitchingProtocols) {
		return
	}
	c.status = status
	c.sent = c.header.Clone()
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
	_, _ = c.sum.Write(p)
	if !c.over {
		if c.size <= c.limit {
			c.body = append(c.body, p...)
			return len(p), nil
		}
		c.over = true
		head := c.response()
		head.Body = c.body
		c.passing = c.overflow(head)
		c.body = nil
	}
	if c.pass(c.passing, p) != nil {
		c.passing = nil // the client has gone; the rest is only counted
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
	answer.Body = c.body
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

func (c *capture) response() *keystore.Response {
	return &keystore.Response{
		Status:   c.status,
		Header:   c.sent,
		Size:     c.size,
		Answered: keystore.TimeOf(time.Now()),
	}
}

// digest is that of the body up to now.
func (c *capture) digest() (d keystore.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Sum(d[:0])
	return d
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
	if len(trailer) == 0 {
		return nil
	}
	return trailer.Clone()
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
