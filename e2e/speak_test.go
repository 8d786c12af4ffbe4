package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// sending is a request as a client is to send it.
type sending struct {
	method, target, host string
	fields               []field
	body                 []byte
	framing              string // length, unannounced, or none at all
	trailer              []field
	quiet                bool // the trailer is not announced
}

// speaker is a client that speaks all protocols and does nothing by itself.
type speaker struct {
	transports map[protocol]http.RoundTripper
}

func newSpeaker(t *testing.T) *speaker {
	t.Helper()
	trusting := &tls.Config{InsecureSkipVerify: true}
	cleartext := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	cleartext.Protocols.SetUnencryptedHTTP2(true)
	encrypted := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols), TLSClientConfig: trusting.Clone()}
	encrypted.Protocols.SetHTTP2(true)
	third := &http3.Transport{DisableCompression: true, TLSClientConfig: trusting.Clone(), QUICConfig: &quic.Config{MaxIdleTimeout: 10 * patience}}
	t.Cleanup(func() {
		cleartext.CloseIdleConnections()
		encrypted.CloseIdleConnections()
		third.Close()
	})
	return &speaker{map[protocol]http.RoundTripper{h2c: cleartext, h2: encrypted, h3: third}}
}

// everyProtocol starts a gateway that can be spoken to in every protocol, and
// returns a client for each.
func everyProtocol(t *testing.T, s site) (g *gateway, clients map[protocol]*client) {
	t.Helper()
	encrypted := s
	_, encrypted.certificate = certificate(t)
	g = startGatewayWith(t, "servers {\nprotocols h1 h2 h2c h3\n}", s, encrypted)
	clients = map[protocol]*client{h1: g.client()}
	for p, transport := range newSpeaker(t).transports {
		url := g.url(0)
		if p.encrypted() {
			url = g.url(1)
		}
		clients[p] = &client{t: t, url: url, c: &http.Client{Transport: transport}}
	}
	return g, clients
}

// send sends a request and returns what came back.
func (s *speaker) send(p protocol, addr string, r sending) (message, error) {
	if p == h1 {
		return sendByHand(addr, r)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	seen := make(message)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			if status != http.StatusContinue {
				seen.interim(status, lines(http.Header(h)))
			}
			return nil
		},
	})
	scheme := "http"
	if p.encrypted() {
		scheme = "https"
	}
	// An opaque URL is sent as it is.
	path, query, asks := strings.Cut(r.target, "?")
	u := &url.URL{Scheme: scheme, Host: addr, Opaque: "//" + r.host + path, RawQuery: query, ForceQuery: asks}
	req := (&http.Request{Method: r.method, URL: u, Host: r.host, Header: make(http.Header)}).WithContext(ctx)
	req.Header["User-Agent"] = []string{""} // none, unless there is one below
	for _, f := range r.fields {
		name := http.CanonicalHeaderKey(f.name)
		if name == "User-Agent" {
			req.Header[name] = nil
		}
		req.Header[name] = append(req.Header[name], f.value)
	}
	switch r.framing {
	case "length":
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
		if len(r.body) == 0 {
			req.Body = http.NoBody
		}
	case "unannounced":
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(r.body)), -1
	}
	for _, f := range r.trailer {
		if req.Trailer == nil {
			req.Trailer = make(http.Header)
		}
		req.Trailer.Add(f.name, f.value)
	}
	resp, err := s.transports[p].RoundTrip(req)
	if err != nil {
		return seen, err
	}
	defer resp.Body.Close()
	seen.set("status", strconv.Itoa(resp.StatusCode))
	seen.head(lines(resp.Header))
	seen.announce(names(resp.Trailer))
	body, err := io.ReadAll(resp.Body)
	_, announced := resp.Header["Content-Length"]
	seen.framed(resp.ContentLength, announced, bodyless(r.method, resp.StatusCode))
	seen.body(body)
	seen.trailer(lines(resp.Trailer))
	return seen, err
}

func (m message) interim(status int, head []field) {
	for _, f := range head {
		m.add(fmt.Sprintf("interim %d %s", status, f.name), f.value)
	}
}

func bodyless(method string, status int) bool {
	return method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified
}

// sendByHand sends a request over HTTP/1.1 exactly as it is meant, and sees the
// answer as it is sent.
func sendByHand(addr string, r sending) (message, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	var out, body strings.Builder
	fmt.Fprintf(&out, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.method, r.target, r.host)
	writeFields(&out, r.fields)
	switch r.framing {
	case "length":
		fmt.Fprintf(&out, "Content-Length: %d\r\n", len(r.body))
		body.Write(r.body)
	case "unannounced":
		out.WriteString("Transfer-Encoding: chunked\r\n")
		if len(r.trailer) > 0 && !r.quiet {
			out.WriteString("Trailer: " + announcement(r.trailer) + "\r\n")
		}
		writeChunked(&body, r.body, r.trailer)
	}
	out.WriteString("\r\n")
	waits := false
	for _, f := range r.fields {
		waits = waits || strings.EqualFold(f.name, "Expect")
	}
	if !waits {
		out.WriteString(body.String())
	}
	if _, err := io.WriteString(c, out.String()); err != nil {
		return nil, err
	}
	in := bufio.NewReader(c)
	seen := make(message)
	for {
		start, head, err := readHead(in)
		if err != nil {
			return seen, err
		}
		word, _, _ := strings.Cut(strings.TrimPrefix(start, "HTTP/1.1 "), " ")
		status, err := strconv.Atoi(word)
		switch {
		case err != nil:
			return seen, errors.New("not an answer: " + start)
		case status == http.StatusContinue && waits:
			if _, err := io.WriteString(c, body.String()); err != nil {
				return seen, err
			}
			waits = false
		case status < 200:
			seen.interim(status, head)
		default:
			seen.set("status", word)
			seen.head(head)
			seen.spell(head)
			if !bodyless(r.method, status) {
				return seen, readMessageBody(in, head, seen, true)
			}
			seen.body(nil)
			seen.framed(0, false, true)
			for _, f := range head {
				if strings.EqualFold(f.name, "Content-Length") {
					seen.set("framing", "length "+f.value)
				}
			}
			return seen, nil
		}
	}
}
