package caddymodule

import (
	"strings"
	"testing"
)

func TestReadResponse(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nA: 1\r\nA: 2\r\n\r\nhello",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nA: 1\r\nA: 2\r\n\r\nhello",
		"HTTP/2 201\nA: 1\nA: 2\n\nhello",
		"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 5\r\nA: 1\r\nA: 2\r\n\r\nhello",                         // curl behind a proxy
		"HTTP/1.1 308 Permanent Redirect\r\nContent-Length: 171\r\nLocation: /b\r\n\r\nHTTP/2 401 \r\n\r\nHTTP/2 201 \r\na: 1\r\na: 2\r\n\r\nhello", // curl -L --anyauth
		"HTTP/3 201 \r\nTransfer-Encoding: chunked\r\na: 1\r\na: 2\r\n\r\nhello",
	} {
		r, err := readResponse(strings.NewReader(text))
		if err != nil || r.Status != 201 || string(r.BodyBase64) != "hello" || len(r.Header["A"]) != 2 {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
	const inside = "HTTP/1.1 201 Created\r\n\r\nhello"
	if r, err := readResponse(strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n" + inside)); err != nil || r.Status != 200 || string(r.BodyBase64) != inside {
		t.Errorf("a body that is a response itself: %+v, %v", r, err)
	}
	for _, text := range []string{
		"", "hello", `{"status":200}`, "HTTP/1.1 x Created\r\n\r\n", "HTTP/1.1 201 Created", "HTTP/1.1 201 Created\r\nA: 1\r\n", "HTTP/1.1 201 Created\r\nA\r\n\r\n",
		"HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello\n", "HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 201 Created\r\n", "HTTP/1.1 100 Continue\r\n\r\n",
	} {
		if r, err := readResponse(strings.NewReader(text)); err == nil {
			t.Errorf("%q: taken as %+v", text, r)
		}
	}
}
