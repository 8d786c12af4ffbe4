package e2e

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// CAD-02: a request body is taken whole, up to the limit, or refused before
// anything is claimed.
func TestCAD02RequestBodyIsTakenWholeOrRefused(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("max_request_body", "1000B")).client()
		sized := func(key string, n int) request {
			return post(key).as(func(r *request) { r.body = strings.Repeat("x", n) })
		}
		wantExecuted(t, c.do(sized("fits", 1000)))
		if got := len(up.of("fits")[0].body); got != 1000 {
			t.Errorf("the upstream got %d bytes of 1000", got)
		}
		a := c.do(sized("too-large", 1001))
		wantRefusal(t, a, http.StatusRequestEntityTooLarge, "request-too-large")
		if a.job() != "" {
			t.Errorf("a request that was refused before its claim has the job %s", a.job())
		}
		up.want("too-large", 0)
		// The key was not taken by that.
		wantExecuted(t, c.do(sized("too-large", 10)))
	})
}

// CAD-01: what the gateway has read to know the request by, the upstream gets as
// it was sent: with its length, for every method, and also where it is empty.
func TestCAD01UpstreamGetsTheBodyAsItWasSent(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up)).client()
	for key, r := range map[string]request{
		"small":  post("small"),
		"empty":  post("empty").as(func(r *request) { r.body = "" }),
		"delete": post("delete").as(func(r *request) { r.method = http.MethodDelete }),
		"file":   post("file").as(func(r *request) { r.body = strings.Repeat("0123456789abcdef", 64<<10) }), // past what is held in memory
	} {
		a := c.do(r)
		wantExecuted(t, a)
		wantReplay(t, a, c.do(r))
		up.want(key, 1)
		e := up.of(key)[0]
		if e.body != r.body || !strings.HasPrefix(e.line, r.method+" /pay ") {
			t.Errorf("%s: the upstream got %q with %d bytes, want %d", key, e.line, len(e.body), len(r.body))
		}
	}
}

// CAD-03: another limit on the way to the gateway, which shows only while the
// body is read, is the client's mistake too: 413, and nothing is claimed.
func TestCAD03LimitOfTheSiteIsNoFaultOfTheUpstream(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	s := to(up)
	s.handler = "request_body {\nmax_size 1KB\n}\n" + s.handler
	g := startGateway(t, s)
	large := post("limited").as(func(r *request) { r.body = strings.Repeat("x", 5000) })
	if a := g.client().do(large); a.status != http.StatusRequestEntityTooLarge { // by its length: Caddy's own
		t.Errorf("a length beyond the site's limit: %d %s", a.status, a.body)
	}
	c := g.dial(0)
	c.head("limited", "X-Owner: alice", "Transfer-Encoding: chunked")
	c.send("1388", large.body, "0", "")
	wantRefusal(t, c.answer(), http.StatusRequestEntityTooLarge, "request-too-large")
	up.want("limited", 0)
	// The key was not taken by that.
	wantExecuted(t, g.client().do(post("limited")))
	up.want("limited", 1)
}

// FP-13: never is a part of a body taken for the whole. Bodies that differ after
// what is held in memory differ, and ones that are too large are refused.
func TestFP13BodiesAreToldApartByTheirLastByte(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up).with("max_request_body", "1024B").with("buffer", "100B")).client()
	ending := func(key, end string) request {
		return post(key).as(func(r *request) { r.body = strings.Repeat("x", 1023) + end })
	}
	wantExecuted(t, c.do(ending("last", "A")))
	wantRefusal(t, c.do(ending("last", "B")), http.StatusConflict, "key-reused")
	up.want("last", 1)
	for _, end := range []string{"xA", "xB"} {
		wantRefusal(t, c.do(ending("over", end)), http.StatusRequestEntityTooLarge, "request-too-large")
	}
	up.want("over", 0)
}

// REP-10: an answer is kept whole or not at all, wherever the limit falls: never
// is a character cut in two.
func TestREP10AnswersAreNotCutAtTheLimit(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		const limit = 1001
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("max_response_body", fmt.Sprint(limit)+"B")).client()
		for n := limit/2 - 1; n <= limit/2+2; n++ {
			body, key := strings.Repeat("é", n), fmt.Sprint(n)
			r := post(key).tell("Up-Bytes", hex.EncodeToString([]byte(body)))
			first := c.do(r)
			if first.err != nil || first.body != body {
				t.Errorf("%d characters: got %d bytes, %v", n, len(first.body), first.err)
			}
			if len(body) <= limit {
				wantReplay(t, first, c.do(r))
			} else {
				wantRefusal(t, untilCode(t, c, r, "result-not-kept"), http.StatusGone, "result-not-kept")
			}
			up.want(key, 1)
		}
	})
}

// REP-11: bytes in, bytes out, whatever they are and say that they are.
func TestREP11BytesAreKeptAsTheyAre(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store)).client()
		var all []byte
		for i := range 512 {
			all = append(all, byte(255-i))
		}
		for key, kind := range map[string]string{"pdf": "application/pdf", "text": "text/plain; charset=utf-8", "json": "application/json"} {
			r := post(key).tell("Up-Bytes", hex.EncodeToString(all)).tell("Up-Header", "Content-Type: "+kind)
			first := c.do(r)
			wantExecuted(t, first)
			if first.body != string(all) {
				t.Errorf("%s: the first client got other bytes", key)
			}
			wantReplay(t, first, c.do(r))
			up.want(key, 1)
		}
	})
}

// REP-09: an answer too large to be kept is passed on whole, and the request is
// not executed again for that. Later repetitions are told that it was executed.
func TestREP09AnswerTooLargeToKeepIsNotExecutedAgain(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("max_response_body", "1000B")).client()
		kept := c.do(post("kept").tell("Up-Body", "1000"))
		if kept.status != http.StatusOK || len(kept.body) != 1000 {
			t.Fatalf("want 1000 bytes, got %d with status %d", len(kept.body), kept.status)
		}
		wantReplay(t, kept, c.do(post("kept")))
		large := c.do(post("large").tell("Up-Body", "300000"))
		if large.err != nil || large.status != http.StatusOK || len(large.body) != 300000 {
			t.Fatalf("want 300000 bytes, got %d with status %d, %v", len(large.body), large.status, large.err)
		}
		var again answer
		eventually(t, "the end of the answer has been recorded", func() bool {
			again = c.do(post("large"))
			return again.code() != "in-flight"
		})
		wantRefusal(t, again, http.StatusGone, "result-not-kept")
		if p := again.problem(); p.Advice != "already-done" || p.Job != large.job() {
			t.Errorf("want the job and that it is done, got %+v", p)
		}
		up.want("kept", 1)
		up.want("large", 1)
	})
}

// A broken transfer of an answer that is passed on reaches the client as such,
// and the job is unknown.
func TestAnswerThatIsPassedOnAndCutIsUnknown(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	c := startGateway(t, to(up).with("max_response_body", "1000B").with("wait", "10s")).client()
	a := c.do(post("cut").tell("Up-Body", "300000").tell("Up-Die", "truncate"))
	if a.err == nil {
		t.Errorf("the client takes %d of 300000 bytes for the whole answer", len(a.body))
	}
	wantUnknown(t, c.do(post("cut")))
	up.want("cut", 1)
}

// CAD-08: a handler that aborts does so by a panic. In a goroutine of ours, that
// would end the process; and whether it had done something before, nobody knows.
func TestCAD08AbortDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "", to(up), site{handler: "abort /pay"})
	wantUnknown(t, g.clientOf(1).do(post("aborted")))
	wantUnknown(t, g.clientOf(1).do(post("aborted")))
	wantExecuted(t, g.client().do(post("after")))
}

// What can't be protected is not passed on: whoever sends a key counts on it.
func TestRequestThatCanNotBeProtectedIsRefused(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGatewayWith(t, "", to(up), to(up).with("key", "required"))
	for name, change := range map[string]func(*request){
		"owner-missing": func(r *request) { r.owner = "" },
		"key-invalid":   func(r *request) { r.key = "with space" },
	} {
		a := g.client().do(post("refused").as(change))
		wantRefusal(t, a, http.StatusBadRequest, name)
		if p := a.problem(); p.Advice != "fix-request" {
			t.Errorf("%s: want the advice to mend the request, got %+v", name, p)
		}
	}
	keyless := post("refused").as(func(r *request) { r.key = "" })
	wantRefusal(t, g.clientOf(1).do(keyless), http.StatusBadRequest, "key-missing")
	up.want("refused", 0)
	if a := g.client().do(keyless); a.status != http.StatusOK || a.job() != "" {
		t.Errorf("want a request without a key to pass untouched, got %d %v", a.status, a.header)
	}
	up.want("refused", 1)
}

// API-08: a completed job is forgotten after its retention, and the client was
// told when. An unknown one is not: time proves nothing about it.
func TestAPI08OnlySettledJobsAreForgotten(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, store string) {
		up := newUpstream(t)
		c := startGateway(t, to(up).on(store).with("timeout", "1s").with("linger", "100ms").with("retention", "2s")).client()
		wantUnknown(t, c.do(post("unknown").tell("Up-Die", "noreply")))
		first := c.do(post("settled"))
		wantExecuted(t, first)
		eventually(t, "the completed job has been forgotten", func() bool {
			a := c.do(post("settled"))
			return a.status == http.StatusOK && a.job() != first.job()
		})
		up.want("settled", 2)
		wantUnknown(t, c.do(post("unknown")))
		up.want("unknown", 1)
	})
}
