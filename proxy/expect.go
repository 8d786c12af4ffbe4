package proxy

import (
	"net/http"
	"strings"
)

// answerUnread makes sure that an answer reaches a client at once that waits for
// leave to send its body (Expect: 100-continue), although nothing of that is
// going to be read. net/http first waits for the rest of a body, unless the
// connection is to be closed after the answer, or it sees who waits; it does not
// where the body was wrapped on its way here, as Caddy does.
func answerUnread(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		w.Header().Set("Connection", "close")
	}
}
