package proxy

import (
	"maps"
	"net/http"
)

// mayReplay asks the site whether a stored answer may be given to this request,
// and reports whether it may. If not, the request has been answered, or the
// error is to be.
//
// The request is the client's own, with its body. What the check sets in the
// answer's header counts only if the answer is the check's own: the stored one is
// given as it was, to a request of the method that it has come with.
func (c *call) mayReplay() (bool, error) {
	if c.x.ReplayCheck == nil {
		return true, nil
	}
	verdict := c.account.Verdict
	c.account.Verdict = VerdictReplayRefused // also if it panics
	w := &checkWriter{ResponseWriter: c.w, header: c.w.Header().Clone()}
	method, spent, body := c.r.Method, c.r.Body, c.body.open()
	c.r.Body = body
	defer func() {
		c.r.Method, c.r.Body = method, spent
		body.Close()
	}()
	passed, err := c.x.ReplayCheck(w, c.r)
	switch {
	case err != nil, w.wrote:
		return false, err
	case !passed:
		return false, refuseReplay()
	}
	c.account.Verdict = verdict
	return true, nil
}

// checkWriter is the response writer of a check. Its header becomes the answer's
// when an answer is begun.
type checkWriter struct {
	http.ResponseWriter
	header http.Header
	wrote  bool
}

// Header implements http.ResponseWriter.
func (w *checkWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Informational answers are dropped:
// whether an answer of the check's will follow is not known yet.
func (w *checkWriter) WriteHeader(status int) {
	if w.wrote || (status >= 100 && status < 200 && status != http.StatusSwitchingProtocols) {
		return
	}
	w.wrote = true
	h := w.ResponseWriter.Header()
	clear(h)
	maps.Copy(h, w.header)
	removeOwnHeaders(h)
	w.header = h // for trailers
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *checkWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// FlushError implements what http.ResponseController looks for.
func (w *checkWriter) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap gives http.ResponseController the rest.
func (w *checkWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
