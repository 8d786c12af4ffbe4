package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// The headers that the gateway sets.
const (
	HeaderJob        = "Idempotency-Job"         // the job's id
	HeaderAttempt    = "Idempotency-Attempt"     // to the upstream: the attempt's number and a digest of its token
	HeaderExpires    = "Idempotency-Expires"     // when the job will be forgotten
	HeaderReplayed   = "Idempotent-Replayed"     // true on a replay
	HeaderAnsweredAt = "Idempotency-Answered-At" // on a replay: when the answer was first given
	HeaderRecorded   = "Idempotency-Recorded"    // false: the answer could not be kept in time
	HeaderRefused    = "Idempotency-Refused"     // on a refusal: its code, whatever form a site gives to its body
)

var ownHeaders = []string{HeaderJob, HeaderAttempt, HeaderExpires, HeaderReplayed, HeaderAnsweredAt, HeaderRecorded, HeaderRefused}

// removeOwnHeaders takes away what only the gateway may say.
func removeOwnHeaders(h http.Header) {
	for _, name := range ownHeaders {
		delete(h, name)
	}
}

// hopByHop are the fields that concern one connection only (RFC 9110, section
// 7.6.1), with those that older peers still use.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// notStored are end-to-end fields that belong to one delivery or one caller's
// session, and so have no place in a replay.
var notStored = []string{
	"Set-Cookie", "Set-Cookie2", "Www-Authenticate", "Proxy-Authenticate", "Authentication-Info",
	"Proxy-Authentication-Info", "Date", "Age", "Alt-Svc",
}

// endToEnd returns a copy of an answer's header without what concerns one
// connection only, and without what only the gateway may say.
func endToEnd(h http.Header) http.Header {
	if h == nil {
		return nil
	}
	out := make(http.Header, len(h))
	eachEndToEnd(h, func(name string, lines []string) { out[name] = lines })
	return out
}

// eachEndToEnd calls f with the fields that endToEnd has, whose lines are copies.
func eachEndToEnd(h http.Header, f func(name string, lines []string)) {
	values := make([]string, 0, valuesOf(h))
	connection := h["Connection"]
	for name, lines := range h {
		switch {
		case notEndToEnd[name], strings.HasPrefix(name, http.TrailerPrefix): // a trailer's value, set early
		case connection != nil && lists(connection, name):
		case lines == nil:
			f(name, nil)
		default:
			from := len(values)
			values = append(values, lines...)
			f(name, values[from:len(values):len(values)])
		}
	}
}

// lists reports whether the lines of a header list the name of a field.
func lists(lines []string, name string) bool {
	for _, line := range lines {
		for listed := range strings.SplitSeq(line, ",") {
			if http.CanonicalHeaderKey(strings.TrimSpace(listed)) == name {
				return true
			}
		}
	}
	return false
}

// valuesOf is how many lines a header has.
func valuesOf(h http.Header) (n int) {
	for _, lines := range h {
		n += len(lines)
	}
	return n
}

// notEndToEnd are the fields that concern one connection, and those that only the
// gateway may set. That an answer is a refusal stays with it: it is one of a gateway
// behind this one, and judged as such.
var notEndToEnd = func() map[string]bool {
	names := make(map[string]bool)
	for _, name := range slices.Concat(hopByHop, ownHeaders) {
		names[name] = name != HeaderRefused
	}
	return names
}()

// storable returns the answer as it is stored: what a replay gives. Of the
// fields that are not stored by default it has those to keep.
func storable(answer *keystore.Response, keep ...string) *keystore.Response {
	stored := *answer
	stored.Header, stored.Trailer = endToEnd(answer.Header), endToEnd(answer.Trailer)
	for _, name := range notStored {
		if !slices.ContainsFunc(keep, func(kept string) bool { return strings.EqualFold(kept, name) }) {
			delete(stored.Header, name)
			delete(stored.Trailer, name)
		}
	}
	if answer.Size > 0 { // without a body it may announce that of a GET
		delete(stored.Header, "Content-Length")
	}
	if names := announced(answer); len(names) > 0 {
		stored.Header["Trailer"] = slices.DeleteFunc(names, func(name string) bool {
			return slices.Contains(notStored, name) && stored.Trailer[name] == nil
		})
	}
	return &stored
}

// CheckKeptHeader reports why a header can't be among those that are kept.
func CheckKeptHeader(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return errors.New("not the name of a header field")
	case slices.Contains(ownHeaders, canonical):
		return errors.New("headers of that name are the gateway's own; remove it")
	case slices.Contains(hopByHop, canonical), canonical == "Content-Length":
		return errors.New("about the connection, which is another one at each repetition; remove it")
	case !slices.Contains(notStored, canonical):
		return fmt.Errorf("kept anyway; remove it (only %s are not)", strings.Join(notStored, ", "))
	}
	return nil
}

// writeAnswer gives an answer with its body to a client, whose request had this
// method.
func writeAnswer(w http.ResponseWriter, method string, answer *keystore.Response) error {
	length := int64(-1)
	if int64(len(answer.Body)) == answer.Size {
		length = answer.Size
	}
	writeHead(w, answer, length)
	if method == http.MethodHead || !bodyAllowed(answer.Status) {
		// Otherwise a server may announce a length of nothing, which is not what
		// the answer to a GET would have.
		_ = http.NewResponseController(w).Flush()
		return nil
	}
	if len(answer.Body) > 0 {
		if _, err := w.Write(answer.Body); err != nil {
			return err
		}
	}
	writeTrailer(w, answer.Trailer)
	return nil
}

// writeHead gives an answer's head to a client. A length of its body that is not
// known yet is negative.
func writeHead(w http.ResponseWriter, answer *keystore.Response, length int64) {
	h := w.Header()
	delete(h, "Server") // the answer has it, unless a handler has taken it away
	eachEndToEnd(answer.Header, func(name string, values []string) {
		if addable[name] {
			values = append(slices.Clip(h[name]), values...)
		}
		h[name] = values
	})
	if names := announced(answer); bodyAllowed(answer.Status) && len(names)+len(answer.Trailer) > 0 {
		if len(names) > 0 {
			h["Trailer"] = names
		}
		setTrailer(h, answer.Trailer)
		delete(h, "Content-Length") // HTTP/1.1 has no trailers after a body of a known length
	} else if bodyAllowed(answer.Status) && length > 0 { // net/http knows whether to say that there is nothing
		h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	}
	if _, typed := answer.Header["Content-Type"]; !typed {
		h["Content-Type"] = nil // keeps net/http from guessing one
	}
	w.WriteHeader(answer.Status)
}

// announced are the names of the trailers that an answer's header says will come.
func announced(answer *keystore.Response) []string {
	if len(answer.Header["Trailer"]) == 0 {
		return nil
	}
	all := make(http.Header)
	for _, line := range answer.Header["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			all[http.CanonicalHeaderKey(strings.TrimSpace(name))] = nil
		}
	}
	all = endToEnd(all)
	removeOwnHeaders(all)
	return slices.Sorted(maps.Keys(all))
}

// addable are lists to which handlers around this one may have added already.
var addable = map[string]bool{"Vary": true, "Via": true, "Link": true, "Set-Cookie": true, "Server-Timing": true, "Warning": true}

// setTrailer sets the fields that come after the body.
func setTrailer(h, trailer http.Header) {
	for name, values := range trailer {
		h[http.TrailerPrefix+name] = values
	}
}

// writeTrailer gives the client what comes after the body, once that is written.
func writeTrailer(w http.ResponseWriter, trailer http.Header) {
	h := w.Header()
	setTrailer(h, trailer)
	for _, name := range h["Trailer"] {
		delete(h, name) // net/http would take a field of the head for a line of the trailer
	}
}

// setJobHeaders tells the client which job its request belongs to.
func setJobHeaders(h http.Header, j *keystore.Job) {
	if j == nil {
		return
	}
	h[HeaderJob] = []string{j.ID}
	if !j.CompletedBy.IsZero() && !j.Expires.IsZero() {
		h[HeaderExpires] = []string{httpDate(j.Expires.Std())}
	}
}

// httpDate formats an instant as HTTP does (RFC 9110, section 5.6.7). Many answers tell
// of the same seconds: when a job of now will have expired, and when one was answered
// that many ask for.
func httpDate(t time.Time) string {
	second := t.Unix()
	slot := &dates[uint64(second)%uint64(len(dates))]
	if known := slot.Load(); known != nil && known.second == second {
		return known.text
	}
	d := &date{second, t.UTC().Format(http.TimeFormat)}
	slot.Store(d)
	return d.text
}

// date is a second as HTTP writes it.
type date struct {
	second int64
	text   string
}

// dates are those that were written last.
var dates [256]atomic.Pointer[date]
