package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// listener is a client that reads its answer while it comes.
type listener struct {
	t    *testing.T
	resp *http.Response
	in   *bufio.Reader
	body strings.Builder
}

// listen sends a request and returns as soon as the answer's head is there.
func (c *client) listen(r request) *listener {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	c.t.Cleanup(cancel)
	req, err := c.request(ctx, r)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.c.Do(req)
	if err != nil {
		c.t.Fatalf("no answer came: %v", err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	l := &listener{t: c.t, resp: resp}
	l.in = bufio.NewReader(io.TeeReader(resp.Body, &l.body))
	return l
}

// next waits for an event and checks that it is the n-th.
func (l *listener) next(n int) {
	l.t.Helper()
	var got string
	for !strings.HasSuffix(got, "\n\n") {
		line, err := l.in.ReadString('\n')
		if err != nil {
			l.t.Fatalf("instead of event %d: %v", n, err)
		}
		got += line
	}
	if got != event(n) {
		l.t.Fatalf("got %q, want event %d", got, n)
	}
}

// end reads the rest, and returns the answer as a whole.
func (l *listener) end() answer {
	_, err := io.Copy(io.Discard, l.in)
	return answer{status: l.resp.StatusCode, header: l.resp.Header, body: l.body.String(), err: err}
}

func stream(key string, n string) request {
	return post(key).tell("Up-Header", "Content-Type: text/event-stream").tell("Up-Events", n)
}

// REP-13: an event stream reaches the client event by event, each before the next
// one is sent, and its head before the first. When it has ended it is the job's
// result: a duplicate that waited and a later repetition get the whole.
func TestREP13EventsReachTheClientAsTheyComeAndTheWholeIsReplayed(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		g := startGateway(t, to(up).on(store))
		c := g.client()
		r := stream("sse", "4").tell("Up-Step", "step")
		first := c.listen(r)
		if h := first.resp.Header; h.Get("Idempotency-Job") == "" || h.Get("Content-Type") != "text/event-stream" {
			t.Errorf("the answer's head: %v", h)
		}
		var second *pending
		for n := 1; n <= 4; n++ {
			up.release(fmt.Sprintf("step-%d", n))
			first.next(n)
			if n == 1 {
				second = g.client().start(r)
				g.awaitWaiting(1)
			}
		}
		whole := first.end()
		if whole.err != nil || whole.body != events(4) {
			t.Fatalf("the first client got %q, %v", whole.body, whole.err)
		}
		wantReplay(t, whole, second.answer())
		wantReplay(t, whole, c.do(r))
		up.want("sse", 1)
	})
}

// REP-13: also where the site compresses its answers.
func TestREP13EventsReachTheClientThroughEncode(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	s := to(up)
	s.handler = "encode gzip\n" + s.handler
	c := startGateway(t, s).client()
	r := stream("sse", "3").tell("Up-Step", "step")
	first := c.listen(r)
	if !first.resp.Uncompressed {
		t.Error("the answer was not compressed, so that this proves nothing")
	}
	for n := 1; n <= 3; n++ {
		up.release(fmt.Sprintf("step-%d", n))
		first.next(n)
	}
	wantReplay(t, first.end(), c.do(r))
	up.want("sse", 1)
}

// A stream takes as long as it takes: the timeouts of other answers end with its
// beginning, and it is delivered, and kept, as a whole.
func TestStreamLongerThanTimeoutAndLinger(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("timeout", "500ms").with("linger", "200ms").with("lease", "1s")).client()
		r := stream("long", "30").tell("Up-Interval", "100ms")
		first := c.do(r)
		if first.err != nil || first.body != events(30) {
			t.Fatalf("got %q, %v", first.body, first.err)
		}
		wantReplay(t, first, c.do(r))
		up.want("long", 1)
	})
}

// REP-07: what was cut is never a result, whether it had announced its length,
// came in chunks, or as a stream of which the client has seen the half. A client
// that was shown a part sees a broken transfer, and for everybody it is unknown.
func TestREP07CutAnswerIsNoResult(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		for key, r := range map[string]request{
			"length": post("length").tell("Up-Die", "truncate"),
			"chunks": post("chunks").tell("Up-Die", "truncate").tell("Up-Chunked", "4"),
		} {
			wantUnknown(t, c.do(r))
			wantUnknown(t, c.do(r))
			up.want(key, 1)
		}
		cut := stream("events", "10").tell("Up-Die", "truncate")
		a := c.do(cut)
		if a.err == nil || a.body != events(5) {
			t.Errorf("the client takes %q for the whole stream", a.body)
		}
		wantUnknown(t, untilCode(t, c, cut, "outcome-unknown"))
		up.want("events", 1)
	})
}

// REP-07: that a part is not the whole shows in every protocol, also where the site
// compresses, which ends the part in good order as far as it is concerned.
func TestREP07CutAnswerIsBrokenInEveryProtocol(t *testing.T) {
	t.Parallel()
	for name, around := range map[string]string{"alone": "", "with encode around": "encode gzip\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t)
			s := to(up).with("max_response_body", "100KB")
			s.handler = around + s.handler
			_, clients := everyProtocol(t, s)
			for p, c := range clients {
				for kind, r := range map[string]request{
					"events":  stream(string(p)+"-events", "4"),
					"nothing": stream(string(p)+"-nothing", "1"),
					"large":   post(string(p)+"-large").tell("Up-Body", "1000000").tell("Up-Header", "Content-Type: text/plain"),
				} {
					r = r.tell("Up-Die", "truncate").tell("Accept-Encoding", "gzip")
					if a := c.do(r); a.err == nil {
						t.Errorf("over %s, the client takes %d bytes of %s for the whole", p, len(a.body), kind)
					}
					wantUnknown(t, untilCode(t, c, r, "outcome-unknown"))
					up.want(r.key, 1)
				}
			}
		})
	}
}

// A stream whose upstream falls silent is cut after stream_idle.
func TestSilentStreamIsUnknown(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up).with("stream_idle", "300ms")).client()
	r := stream("silent", "2").tell("Up-Step", "step")
	first := c.listen(r)
	up.release("step-1")
	first.next(1)
	if a := first.end(); a.err == nil {
		t.Errorf("the client takes %q for the whole stream", a.body)
	}
	wantUnknown(t, c.do(r))
	up.want("silent", 1)
}

// A client that reads nothing holds neither the attempt nor its duplicates up:
// the answer is kept when the upstream has sent it, and the client gets the whole
// when it reads on.
func TestSlowClientOfAStreamKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	const n = 2_000_000 // more than all buffers on the way take
	up := newUpstream(t)
	c := startGateway(t, to(up).with("max_response_body", "64MiB")).client()
	r := post("slow").tell("Up-Header", "Content-Type: text/event-stream").tell("Up-Body", fmt.Sprint(8*n)).tell("Up-Chunked", "1000")
	slow := c.listen(r)
	again := c.do(r)
	if len(again.body) != 8*n {
		t.Fatalf("a repetition got %d bytes, %v", len(again.body), again.err)
	}
	if slow.body.Len() > n {
		t.Fatal("the client had read by then")
	}
	wantReplay(t, slow.end(), again)
	up.want("slow", 1)
}

// REP-08, REP-09: an answer that is too large to be kept is passed on whole,
// also in chunks or as a stream of events. It leaves a mark that it was executed:
// repetitions are told so, and not executed.
func TestREP08REP09TooLargeInChunksAndAsAStream(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("max_response_body", "1000B")).client()
		for key, r := range map[string]request{
			"length": post("length").tell("Up-Body", "3000000"),
			"chunks": post("chunks").tell("Up-Body", "3000000").tell("Up-Chunked", "100"),
			"events": post("events").tell("Up-Body", "3000000").tell("Up-Chunked", "100").tell("Up-Header", "Content-Type: text/event-stream"),
		} {
			if a := c.do(r); a.err != nil || a.status != http.StatusOK || len(a.body) != 3_000_000 {
				t.Errorf("%s: got %d bytes with status %d, %v", key, len(a.body), a.status, a.err)
			}
			wantRefusal(t, untilCode(t, c, r, "result-not-kept"), http.StatusGone, "result-not-kept")
			up.want(key, 1)
		}
	})
}

// HTTP/1.0 tells the end of an answer by the end of its connection. There, a
// stream that was cut ends with a reset: a client must not take it for the whole.
func TestCutStreamIsBrokenForHTTP10Too(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up))
	for key, die := range map[string]string{"whole": "Up-Die: never", "cut": "Up-Die: truncate"} {
		c := g.dial(0)
		c.headOf("HTTP/1.0", key, "X-Owner: alice", "Content-Length: 0", "Up-Header: Content-Type: text/event-stream", "Up-Events: 4", "Up-Step: "+key, die)
		for n := 1; n <= 4; n++ {
			if n == 2 { // once the client has the first one
				for line := ""; line != "\n"; {
					var err error
					if line, err = c.in.ReadString('\n'); err != nil {
						t.Fatal(err)
					}
				}
			}
			up.release(fmt.Sprintf("%s-%d", key, n))
		}
		_, err := io.Copy(io.Discard, c.in)
		if (err == nil) != (key == "whole") {
			t.Errorf("%s: the connection ends with %v", key, err)
		}
		up.want(key, 1)
	}
}

// A stream that the end of the process cuts is unknown, and its client sees that
// it is not whole.
func TestStreamThatTheEndOfTheProcessCuts(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "grace_period 1s", to(up).with("lease", "1h"))
	r := stream("cut", "2").tell("Up-Step", "step")
	first := g.client().listen(r)
	up.release("step-1")
	first.next(1)
	if err := g.terminate(); err != nil {
		t.Errorf("the gateway ended with %v", err)
	}
	if a := first.end(); a.err == nil {
		t.Errorf("the client takes %q for the whole stream", a.body)
	}
	g.restart()
	wantUnknown(t, g.client().do(r))
	up.want("cut", 1)
}
