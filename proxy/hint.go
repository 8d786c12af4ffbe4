package proxy

import (
	"maps"
	"net/http"
)

// hint is an informational answer (1xx). It is nothing of a job's result.
type hint struct {
	status int
	header http.Header
}

// hintsHeld is how many hints wait for a client that is slow to take them. It
// can do without more.
const hintsHeld = 16

// inform passes a hint on to the request that started the attempt, without
// waiting for it, nor for anybody to listen.
func (a *attempt) inform(status int, header http.Header) {
	select {
	case a.hints <- hint{status, header}:
	default:
	}
}

// inform gives the client a hint. The header of the answer to come is put aside
// for that, and is then as it was.
func (c *call) inform(h hint) {
	if !c.r.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 does not know such answers
	}
	header := c.w.Header()
	own := maps.Clone(header)
	clear(header)
	maps.Copy(header, endToEnd(h.header))
	removeOwnHeaders(header)
	c.w.WriteHeader(h.status)
	clear(header)
	maps.Copy(header, own)
}
