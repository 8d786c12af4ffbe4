package e2e

import (
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"strconv"
	"time"
)

// chunks returns the chunks in which the script has an answer sent, each when its
// time has come; nil if its length is to be sent instead.
func (u *upstream) chunks(body string, script http.Header) iter.Seq[string] {
	if n, err := strconv.Atoi(script.Get("Up-Events")); err == nil {
		return func(yield func(string) bool) {
			for i := range n {
				if gate := script.Get("Up-Step"); gate != "" {
					<-u.gate(fmt.Sprintf("%s-%d", gate, i+1))
				}
				if d, err := time.ParseDuration(script.Get("Up-Interval")); err == nil {
					time.Sleep(d)
				}
				if (script.Get("Up-Die") == "truncate" && i == n/2) || !yield(event(i+1)) {
					return
				}
			}
		}
	}
	n, err := strconv.Atoi(script.Get("Up-Chunked"))
	if err != nil {
		return nil
	}
	return func(yield func(string) bool) {
		for i := range n {
			if script.Get("Up-Die") == "truncate" && i == n/2 || !yield(body[i*len(body)/n:(i+1)*len(body)/n]) {
				return
			}
		}
	}
}

// event is what the upstream sends as an event, from 1.
func event(n int) string { return fmt.Sprintf("id: %d\ndata: event %d\n\n", n, n) }

// events are the first n of them.
func events(n int) (all string) {
	for i := range n {
		all += event(i + 1)
	}
	return all
}

// sendChunks sends an answer in chunks. Cut, it ends without the chunk that says
// that it is whole. It reports whether the connection goes on.
func sendChunks(c net.Conn, head string, chunks iter.Seq[string], cut bool) bool {
	if _, err := io.WriteString(c, head); err != nil {
		return false
	}
	for chunk := range chunks {
		if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(chunk), chunk); err != nil {
			return false
		}
	}
	if cut {
		return false
	}
	_, err := io.WriteString(c, "0\r\n\r\n")
	return err == nil
}
