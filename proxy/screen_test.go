package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A connection that becomes something else has no answer that could be stored. It
// passes without a key, if the route lets the method pass, and is refused with one.
func TestREP14SwitchingProtocols(t *testing.T) {
	t.Parallel()
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	for _, c := range []struct {
		method           string
		header           http.Header
		key              string
		required, passes bool
		code             string
	}{
		{method: "GET", header: upgrade, key: "none", passes: true},
		{method: "GET", header: upgrade, key: "none", required: true, passes: true},
		{method: "GET", header: upgrade, code: CodeKeyInvalid},
		{method: "GET", header: upgrade, required: true, code: CodeKeyInvalid},
		{method: "POST", header: upgrade, key: "none", passes: true},
		{method: "POST", header: upgrade, key: "none", required: true, code: CodeKeyMissing},
		{method: "POST", header: upgrade, code: CodeKeyInvalid},
		{method: "POST", header: upgrade, required: true, code: CodeKeyInvalid},
		{method: "OPTIONS", header: http.Header{"Upgrade": {"TLS/1.0"}}, code: CodeKeyInvalid},
		{method: "GET", header: http.Header{"Upgrade": {"h2c", "websocket"}}, code: CodeKeyInvalid},
		{method: "GET", header: http.Header{"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"}}, passes: true},
		// With HTTP/2 and 3, web sockets come so.
		{method: "CONNECT", header: http.Header{":protocol": {"websocket"}}, key: "none", passes: true},
		{method: "CONNECT", header: http.Header{":protocol": {"websocket"}}, key: "none", required: true, passes: true},
		{method: "CONNECT", header: http.Header{":protocol": {"websocket"}}, code: CodeKeyInvalid},
		{method: "CONNECT", code: CodeKeyInvalid},
	} {
		t.Run(fmt.Sprintf("%s %v %s %t", c.method, c.header, c.key, c.required), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Config{KeyRequired: c.required})
			res := f.do(request{method: c.method, key: c.key, header: c.header})
			if c.passes {
				res.wantBody(t, 200, "execution 1", false)
				f.wantExecutions(1)
			} else {
				res.want(t, 400, c.code)
				f.wantExecutions(0)
			}
			if c.code == CodeKeyInvalid && !strings.Contains(res.Body.String(), "switch protocols") {
				t.Errorf("no reason in %s", res.Body)
			}
			if len(f.mem.records) != 0 {
				t.Error("it left a record")
			}
		})
	}
}

// What passes is not wrapped: whoever takes over the connection finds the server's
// own response writer, and the request's own header.
func TestREP14WhatPassesIsUntouched(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	type writer struct{ http.ResponseWriter }
	w := &writer{}
	header := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Te": {"trailers"}, "Accept-Encoding": {"br"}}
	f.serve = func(got http.ResponseWriter, r *http.Request) error {
		if got != http.ResponseWriter(w) {
			t.Errorf("the response writer is a %T", got)
		}
		for name := range header {
			if r.Header.Get(name) != header.Get(name) {
				t.Errorf("%s is %q", name, r.Header[name])
			}
		}
		return nil
	}
	if err := f.deliver(w, request{method: "GET", key: "none", header: header}); err != nil {
		t.Error(err)
	}
	f.wantExecutions(1)
}

// Whoever has recorded a request in TLS early data can send it again. With a key
// that does no harm. Without one it is to come again after the handshake.
func TestSEC13EarlyData(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]request{
		"here":                   {early: true},
		"at a server before":     {header: http.Header{"Early-Data": {"1"}}},
		"at both, whatever else": {early: true, header: http.Header{"Early-Data": {"1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Config{})
			early.key = "none"
			res := f.do(early).want(t, 425, CodeTooEarly)
			if !strings.Contains(res.Body.String(), `"retry-same-key"`) {
				t.Errorf("no advice in %s", res.Body)
			}
			f.wantExecutions(0)
			if len(f.mem.records) != 0 {
				t.Error("it left a record")
			}
			early.key = "k"
			f.do(early).wantBody(t, 200, "execution 1", false)
			f.do(early).wantBody(t, 200, "execution 1", true)
			f.wantExecutions(1)
			early.method, early.key = "GET", "none"
			f.do(early).wantBody(t, 200, "execution 2", false)
			f.route.KeyRequired = true
			early.method = "POST"
			f.do(early).want(t, 400, CodeKeyMissing)
			if n := f.incs.verdicts["too_early"]; n != 1 {
				t.Errorf("%d requests are counted as too early", n)
			}
		})
	}
}

// An upstream's 425 says that nothing has happened: it is no answer to keep.
func TestSEC13TooEarlyIsNotStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	f.serve = func(w http.ResponseWriter, _ *http.Request) error {
		if f.executions.Load() == 1 {
			w.WriteHeader(http.StatusTooEarly)
		}
		return nil
	}
	f.do(request{early: true}).wantBody(t, 425, "", false)
	f.do(request{}).wantBody(t, 200, "", false)
	f.do(request{}).wantBody(t, 200, "", true)
	f.wantExecutions(2)
}
