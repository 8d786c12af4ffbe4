package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// trial is one generated request and the answer to it.
type trial struct {
	name     string
	client   protocol // which the client speaks
	upstream protocol // which is spoken with the upstream
	sends    sending
	gets     reply
	keyed    bool
	coded    bool // the answer is compressed
}

func (x *trial) String() string {
	return fmt.Sprintf("%s: over %s and %s, %s %s %.100q, %d bytes %s %v, answered %d %.100q, %d bytes %s %v",
		x.name, x.client, x.upstream,
		x.sends.method, x.sends.target, x.sends.fields, len(x.sends.body), x.sends.framing, x.sends.trailer,
		x.gets.status, x.gets.fields, len(x.gets.body), x.gets.framing, x.gets.trailer)
}

// The methods that a generated request can have. All are protected in this test.
var trialMethods = []string{
	"POST", "POST", "POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS", "PROPFIND", "MKCOL", "REPORT", "LOCK", "M-SEARCH", "X_ODD",
}

// The statuses of which an answer is kept.
var trialStatuses = []int{
	200, 200, 200, 201, 202, 203, 204, 204, 205, 206, 207, 208, 226, 299, 300, 301, 302, 303, 304, 304, 304, 305, 307, 308, 399,
	400, 402, 404, 405, 406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 422, 423, 424, 426, 428, 431, 451, 497,
	500, 501, 505, 506, 507, 508, 510, 511, 555,
}

var trialPaths = []string{
	"/pay", "/", "/a%2Fb/c", "/a%2fb", "//a//b///", "/a/./b/../c", "/%2e%2e/a/%2E", "/a/..%2f..%2fb", "/caf%C3%A9/%e2%82%ac",
	"/a;v=1/b;w", "/a%20b+c", "/~x/!$&'()*,=:@-._", "/a|b^c", "/%00/%7F%ff", "/index.php/x", "/a%25b%2525", "/a\\b", "/café",
}

var trialQueries = []string{
	"", "", "?", "?a=1&b=2&a=3", "?a;b=1", "?q=%zz&%", "?q=a+b%20c&&=&x", "?q=\"<>\"{}|^`", "?a=1?b=2", "?q=é", "?x=%00%0d%0a", "?/../", "?q=a%2fb%2Fc",
}

var trialHosts = []string{"shop.example", "Shop.Example", "shop.example:8080", "127.0.0.1", "xn--caf-dma.example", "[::1]:9"}

// sameName is that of a field which is in some headers, and in some trailers too.
const sameName = "X-Request-Id"

// generator makes trials. What it makes depends on its seed alone.
type generator struct{ *rand.Rand }

// one reports whether something is to be done that is done once in n times.
func (g generator) one(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g generator, from []T) T { return from[g.IntN(len(from))] }

func (g generator) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return b
}

func (g generator) content() []byte {
	switch g.IntN(6) {
	case 0:
		return nil
	case 1:
		return []byte(`{"amount":1,"text":"caf\u00e9"}`)
	case 2:
		return g.bytes(1 + g.IntN(300))
	case 3:
		return g.bytes(4096)
	case 4:
		return []byte(strings.Repeat("a line of text\r\n", 1+g.IntN(3000)))
	}
	return g.bytes(300<<10 + g.IntN(100))
}

func compressed(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// trial makes the i-th trial. Every pair of protocols has its turn.
func (g generator) trial(i int) *trial {
	x := &trial{
		name:   fmt.Sprintf("case-%d", i),
		client: protocols[i%4], upstream: protocols[i/4%4],
		keyed: !g.one(12),
	}
	x.sends = g.request(x)
	x.gets = g.answer(x)
	return x
}

func (g generator) request(x *trial) sending {
	s := sending{
		method: pick(g, trialMethods), target: pick(g, trialPaths) + pick(g, trialQueries), host: pick(g, trialHosts),
		framing: pick(g, []string{"none", "length", "length", "unannounced"}),
	}
	if s.method == http.MethodPost && g.one(20) {
		s.target = "http://" + s.host + s.target // what is sent to proxies, and every server has to take
		if x.client != h1 {
			s.target = strings.TrimPrefix(s.target, "http://"+s.host)
		}
	}
	if s.framing != "none" {
		s.body = g.content()
	}
	if s.framing == "unannounced" && len(s.body) == 0 && x.client != h1 {
		s.framing = "none" // net/http tells the two apart by waiting
	}
	if s.framing == "unannounced" && g.one(2) {
		s.trailer = []field{{"X-Checksum", "abc"}, {"X-Multi-Trailer", "1"}, {"X-Multi-Trailer", "2"}}
		s.quiet = x.client == h1 && g.one(2) // net/http announces all it sends
	}
	add := func(name string, values ...string) {
		for _, value := range values {
			s.fields = append(s.fields, field{name, value})
		}
	}
	add(caseHeader, x.name)
	add("X-Owner", "alice")
	if x.keyed {
		add(pick(g, []string{"Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"}), pick(g, []string{x.name, `"` + x.name + `"`}))
	}
	g.common(add, x.client == h1)
	optional := []func(){
		func() {
			add("Accept-Encoding", pick(g, []string{"gzip", "gzip, deflate, br", "identity", "br;q=1.0, *;q=0", ""}))
		},
		func() { add("User-Agent", pick(g, []string{"curl/8", "a (b; c) d/1"})) },
		func() { add("Accept", "text/html, */*;q=0.1", "application/json") },
		func() { add("Cookie", "a=1; b=2; c=\"x y\"") },
		func() { add("Authorization", "Basic YTpi") },
		func() { add("Range", "bytes=0-9") },
		func() { add("If-None-Match", `W/"x"`, `"y"`) },
		func() { add("Te", pick(g, []string{"trailers", "trailers, deflate;q=0.5"})) },
		func() { add("X-Forwarded-For", "10.0.0.1", "10.0.0.2"); add("X-Forwarded-Proto", "gopher") },
		func() { add("Forwarded", "for=10.0.0.1") },
		func() { add("Via", "1.1 other") },
		func() { add("Content-Encoding", "gzip") },
		func() { add("Priority", "u=1, i") },
		func() {
			if x.keyed { // the gateway doesn't pass it otherwise
				add("Early-Data", "1")
			}
		},
		func() { add("Max-Forwards", "3") },
		func() {
			if s.framing != "none" && len(s.body) > 0 {
				add("Expect", "100-continue")
			}
		},
		func() {
			add("Content-Type", pick(g, []string{"application/json", "text/plain; charset=UTF-8", "multipart/form-data; boundary=\"x y\"", "", "no type"}))
		},
	}
	g.some(optional)
	if x.client == h1 {
		g.some([]func(){
			func() { add("Connection", "X-Hop, keep-alive"); add("X-Hop", "request") },
			func() { add("Keep-Alive", "timeout=5") },
			func() { add("Proxy-Connection", "keep-alive") },
		})
	} else {
		for i, f := range s.fields {
			if f.name == "Te" {
				s.fields[i].value = "trailers" // others are not allowed there
			}
		}
	}
	return s
}

// common adds lines that requests and answers can have.
func (g generator) common(add func(name string, values ...string), spelled bool) {
	g.some([]func(){
		func() { add("X-Multi", "1", "2", "1", "") },
		func() { add("X-Long", strings.Repeat("l", 3000)) },
		func() { add("X-Empty", "") },
		func() { add("X-Spaced", "a,b ,  c\td") },
		func() { add("X-Latin", "caf\xe9 \xff") },
		func() { add("Cache-Control", "no-cache", "max-age=0") },
		func() { add(sameName, "1234") },
		func() {
			if spelled {
				add("x-loWer-CASE", "1", "2")
				add("X_Underscore.dot", "1")
			}
		},
	})
}

// some does each of these one time in three.
func (g generator) some(all []func()) {
	for _, do := range all {
		if g.one(3) {
			do()
		}
	}
}

func (g generator) answer(x *trial) reply {
	r := reply{status: pick(g, trialStatuses), framing: pick(g, []string{"length", "length", "unannounced"})}
	add := func(name string, values ...string) {
		for _, value := range values {
			r.fields = append(r.fields, field{name, value})
		}
	}
	r.body = g.content()
	add("Date", "Sun, 06 Nov 1994 08:49:37 GMT")
	if !g.one(4) || r.status == http.StatusNotModified {
		add("Content-Type", pick(g, []string{"application/json", "text/html; charset=utf-8", "application/octet-stream", "x", "", "text/event-stream"}))
	}
	if g.one(4) {
		x.coded = true
		r.body = compressed(r.body)
		add("Content-Encoding", "gzip")
	}
	switch r.status {
	case http.StatusNoContent:
		r.body, r.framing = nil, "none"
		if g.one(2) && x.upstream == h1 {
			add("Content-Length", "0")
		}
	case http.StatusNotModified:
		r.framing = "none"
		if g.one(2) && x.client == h1 && x.upstream == h1 { // net/http can't read such answers over HTTP/2
			add("Content-Length", "1234") // that of what was not modified
		}
	case http.StatusResetContent:
		r.body = nil
	}
	if r.framing == "unannounced" && g.one(2) {
		r.trailer = []field{{"X-Sum", "1"}, {"X-Multi-Trailer", "1"}, {"X-Multi-Trailer", "2"}, {sameName, "5678"}}
		r.quiet = g.one(2)
	}
	if g.one(8) {
		r.early = [][]int{{103}, {103}, {102, 103, 103}, {199}}[g.IntN(4)]
		r.hints = []field{{"Link", "</a.css>; rel=preload"}, {"Link", "</b.js>; rel=preload"}, {"X-Hint", "1"}}
	}
	g.common(add, x.upstream == h1)
	g.some([]func(){
		func() { add("Link", "</1>; rel=a", "</2>; rel=b") },
		func() { add("Set-Cookie", "a=1; Path=/", "b=2") },
		func() { add("Vary", "Accept", "Origin") },
		func() { add("Etag", pick(g, []string{`"x"`, `W/"y"`})) },
		func() { add("Location", "/orders/1?x=%2F") },
		func() { add("Server", "legacy/1.0") },
		func() { add("Via", "1.0 inner") },
		func() { add("Www-Authenticate", "Basic realm=\"x\"", "Bearer") },
		func() { add("Age", "7") },
		func() { add("Warning", `199 - "a"`, `299 - "b"`) },
		func() { add("Content-Language", "de") },
		func() { add("Accept-Ranges", "bytes") },
		func() { add("Alt-Svc", `h3=":1"`) },
		func() { add("Retry-After", "3") },
		func() { add("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT") },
		func() { add("Server-Timing", "db;dur=1", "app;dur=2") },
	})
	if x.upstream == h1 {
		g.some([]func(){
			func() { add("Connection", "X-Hop"); add("X-Hop", "answer") },
			func() { add("Keep-Alive", "timeout=5") },
		})
		if g.one(2) {
			add("Connection", "close")
		}
	}
	if closes := slices.Contains(r.fields, field{"Connection", "close"}); closes && r.framing == "unannounced" {
		r.trailer = nil // there is no room for one
	}
	return r
}
