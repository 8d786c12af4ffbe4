package proxy

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

// screen refuses requests that can neither be protected nor pass.
func (rt *Route) screen(r *http.Request, keyed bool) *Refusal {
	switch {
	case keyed && switchesProtocols(r):
		return refuseRequest(CodeKeyInvalid, "A request to switch protocols can't be repeated safely; send it without "+rt.KeyHeader+".")
	case !keyed && !rt.KeyRequired && rt.protects(r.Method) && inEarlyData(r):
		return refuseEarly(rt.KeyHeader)
	}
	return nil
}

// switchesProtocols reports whether the request wants its connection, or a
// stream of it, for something that is no answer. An offer of h2c alone is none:
// some clients make it with every request.
func switchesProtocols(r *http.Request) bool {
	if r.Method == http.MethodConnect { // with HTTP/2 and 3, web sockets come so
		return true
	}
	for _, line := range r.Header["Upgrade"] {
		for protocol := range strings.SplitSeq(line, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.EqualFold(protocol, "h2c") {
				return true
			}
		}
	}
	return false
}

// inEarlyData reports whether the request came before its TLS handshake was
// over, here or at a server before this one (RFC 8470): whoever has recorded it
// can send it again.
func inEarlyData(r *http.Request) bool {
	return r.TLS != nil && !r.TLS.HandshakeComplete || r.Header.Get("Early-Data") == "1"
}

// screenTrailer keeps what only the gateway may say out of the trailer of a request
// that passes, whose body is read as it comes. Without an announced one nothing of it
// is passed on.
func screenTrailer(r *http.Request) {
	removeOwnHeaders(r.Trailer)
	if r.Trailer != nil && r.Body != nil && r.Body != http.NoBody {
		r.Body = &screenedBody{r.Body, r.Trailer}
	}
}

// screenedBody is a body at whose end its server has filled in the trailer, with
// fields too that were not announced.
type screenedBody struct {
	io.ReadCloser
	trailer http.Header
}

// Read implements io.Reader.
func (b *screenedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		removeOwnHeaders(b.trailer)
	}
	return n, err
}
