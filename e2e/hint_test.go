package e2e

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"testing"
)

// REP-16: an early hint of the upstream reaches the client before the answer. It
// is no part of that: status and header are those of the answer alone, for the
// first client and in a replay, which has no hints.
func TestREP16EarlyHintsAreNotTheAnswer(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "servers {\nprotocols h1 h2c\n}", to(up))
	for key, h2 := range map[string]bool{"h1": false, "h2": true} {
		transport := new(http.Transport)
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetHTTP1(!h2)
		transport.Protocols.SetUnencryptedHTTP2(h2)
		t.Cleanup(transport.CloseIdleConnections)
		c := &client{t: t, url: g.url(0), c: &http.Client{Transport: transport}}
		r := post(key).tell("Up-Hint", "Link: </a.css>; rel=preload").tell("Up-Hint", "Link: </b.css>; rel=preload").
			tell("Up-Hold", key).tell("Up-Status", "404")
		hints := make(chan string, 10)
		ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
			Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
				if status != http.StatusEarlyHints {
					t.Errorf("%s: got %d", key, status)
				}
				hints <- h.Get("Link")
				return nil
			},
		})
		answers := make(chan answer, 1)
		go func() { answers <- c.doContext(ctx, r) }()
		for _, want := range []string{"</a.css>; rel=preload", "</b.css>; rel=preload"} {
			if got := <-hints; got != want { // before the upstream answers
				t.Errorf("%s: got the hint %q, want %q", key, got, want)
			}
		}
		up.release(key)
		first := <-answers
		again := c.doContext(ctx, r)
		wantReplay(t, first, again)
		for _, a := range []answer{first, again} {
			if a.status != http.StatusNotFound || a.header.Get("Link") != "" {
				t.Errorf("%s: got %d %v", key, a.status, a.header)
			}
		}
		if len(hints) != 0 {
			t.Errorf("%s: a hint too many", key)
		}
		up.want(key, 1)
	}
}
