package e2e

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// message is what one side has seen of a request or an answer: every part that
// can be told apart, by its name, whatever the protocol.
type message map[string][]string

// field is a line of a header or a trailer.
type field struct{ name, value string }

// head notes a header's lines. What frames the body is noted apart, since every
// protocol has its own way for that.
func (m message) head(lines []field) {
	for _, f := range lines {
		name := http.CanonicalHeaderKey(f.name)
		switch name {
		case "Content-Length", "Transfer-Encoding", "Host":
		case "Trailer":
			m.announce(strings.Split(f.value, ","))
		default:
			m.add("header "+name, f.value)
		}
	}
}

// announce notes which trailers a header has announced.
func (m message) announce(names []string) {
	for _, name := range names {
		m.add("announced", http.CanonicalHeaderKey(strings.TrimSpace(name)))
	}
	slices.Sort(m["announced"])
}

func (m message) trailer(lines []field) {
	for _, f := range lines {
		m.add("trailer "+http.CanonicalHeaderKey(f.name), f.value)
	}
}

// spell notes in which spelling a header's names were sent.
func (m message) spell(lines []field) {
	for _, f := range lines {
		if name := http.CanonicalHeaderKey(f.name); name != f.name {
			m.add("spelling "+name, f.name)
		}
	}
}

func (m message) set(name, value string) { m[name] = []string{value} }
func (m message) add(name, value string) { m[name] = append(m[name], value) }

func (m message) body(b []byte) {
	m.set("body", fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b)))
}

// framed notes how a body's end was told. Without a body, an announced length of
// nothing is not the same as none.
func (m message) framed(length int64, announced, ended bool) {
	switch {
	case announced:
		m.set("framing", "length "+strconv.FormatInt(length, 10))
	case ended:
		m.set("framing", "none")
	default:
		m.set("framing", "unannounced")
	}
}

func (m message) value(name string) string { return strings.Join(m[name], "\n") }

// delta is one part in which two messages differ.
type delta struct {
	part      string
	want, got []string
	of        *trial
}

func (d delta) String() string { return fmt.Sprintf("%s: want %q, got %q", d.part, d.want, d.got) }

// differences returns the parts in which two messages differ.
func differences(of *trial, want, got message) (all []delta) {
	parts := maps.Clone(want)
	maps.Copy(parts, got)
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		if !slices.Equal(want[part], got[part]) {
			all = append(all, delta{part, want[part], got[part], of})
		}
	}
	return all
}

// lines returns a header's lines, in no order of the names.
func lines(h http.Header) (all []field) {
	for name, values := range h {
		for _, value := range values {
			all = append(all, field{name, value})
		}
	}
	return all
}

func names(h http.Header) (all []string) {
	for name := range h {
		all = append(all, name)
	}
	return all
}

// readHead reads an HTTP/1.1 message up to its body, as it was sent.
func readHead(in *bufio.Reader) (start string, head []field, err error) {
	if start, err = readLine(in); err != nil {
		return start, nil, err
	}
	head, err = readFields(in)
	return start, head, err
}

func readFields(in *bufio.Reader) (all []field, err error) {
	for {
		line, err := readLine(in)
		if err != nil || line == "" {
			return all, err
		}
		name, value, _ := strings.Cut(line, ":")
		all = append(all, field{name, strings.Trim(value, " \t")})
	}
}

// readMessageBody reads an HTTP/1.1 body and notes it. Where the head doesn't
// say how long it is, it is as long as the connection, or there is none.
func readMessageBody(in *bufio.Reader, head []field, m message, untilClose bool) error {
	var length, encoding string
	for _, f := range head {
		switch http.CanonicalHeaderKey(f.name) {
		case "Content-Length":
			length = f.value
		case "Transfer-Encoding":
			encoding = f.value
		}
	}
	var body []byte
	var trailer []field
	var err error
	switch {
	case encoding != "":
		body, trailer, err = readChunked(in)
		m.set("framing", "unannounced")
		if length != "" {
			m.set("framing", "both "+encoding+" and "+length)
		}
	case length != "":
		n, _ := strconv.Atoi(length)
		body = make([]byte, n)
		_, err = io.ReadFull(in, body)
		m.set("framing", "length "+length)
	case untilClose:
		body, err = io.ReadAll(in)
		m.set("framing", "until close")
	default:
		m.set("framing", "none")
	}
	m.body(body)
	m.trailer(trailer)
	return err
}

func readChunked(in *bufio.Reader) (body []byte, trailer []field, err error) {
	for {
		line, err := readLine(in)
		if err != nil {
			return body, nil, err
		}
		size, _, _ := strings.Cut(line, ";")
		n, err := strconv.ParseInt(size, 16, 32)
		if err != nil {
			return body, nil, fmt.Errorf("length of a chunk: %w", err)
		}
		if n == 0 {
			trailer, err = readFields(in)
			return body, trailer, err
		}
		chunk := make([]byte, n+2)
		if _, err = io.ReadFull(in, chunk); err != nil {
			return body, nil, err
		}
		body = append(body, chunk[:n]...)
	}
}

// writeChunked writes a body in two chunks, and its trailer.
func writeChunked(w *strings.Builder, body []byte, trailer []field) {
	half := len(body) / 2
	for _, chunk := range [][]byte{body[:half], body[half:]} {
		if len(chunk) > 0 {
			fmt.Fprintf(w, "%x\r\n%s\r\n", len(chunk), chunk)
		}
	}
	w.WriteString("0\r\n")
	writeFields(w, trailer)
	w.WriteString("\r\n")
}

func writeFields(w *strings.Builder, all []field) {
	for _, f := range all {
		w.WriteString(f.name + ": " + f.value + "\r\n")
	}
}

// announcement is the header that announces a trailer.
func announcement(trailer []field) string {
	var all []string
	for _, f := range trailer {
		if !slices.Contains(all, f.name) {
			all = append(all, f.name)
		}
	}
	return strings.Join(all, ", ")
}
