package e2e

import (
	"strings"
	"testing"
)

// chained is a provider whose chain asks APP, or asks AUTH first, or ANOTHER upstream
// after it; GONE refuses connections.
func chained(t *testing.T, directives, body string) (app, fallback *upstream, a answer, g *gateway) {
	t.Helper()
	app, fallback = newUpstream(t), newUpstream(t)
	directives = strings.NewReplacer(
		"APP", app.addr, "AUTH", newUpstream(t).addr, "ANOTHER", newUpstream(t).addr, "GONE", newRefusingUpstream(t).addr,
	).Replace(directives)
	g = startGateway(t, between(unproven, named{name: "one", before: directives}, named{name: "two", up: fallback}))
	return app, fallback, g.client().do(post("k").as(func(r *request) { r.body = body })), g
}

// made is a reverse_proxy whose answers of a kind others take the place of.
func made(up, kind, with string) string {
	return "reverse_proxy APP {\nheader_up " + up + "\n@some " + kind + "\nhandle_response @some {\n" + with + "\n}\n}"
}

// An answer that says that nothing has happened says so of the one who gave it. Where
// the chain has had another answer before, of somebody who may have carried the request
// out, it is unknown, and nothing is failed over.
func TestAnAnswerIsNoProofForWhoWasAskedBefore(t *testing.T) {
	t.Parallel()
	const (
		busy    = "reverse_proxy ANOTHER {\nheader_up Up-Status 429\n}"
		busyGet = "reverse_proxy ANOTHER {\nmethod GET\nheader_up Up-Status 429\n}"
		sorry   = "header Retry-After 5\nrespond \"\" 503"
	)
	for name, c := range map[string]struct{ directives, body string }{
		"another upstream after a 500":  {made("Up-Status 500", "status 5xx", busy), ""},
		"another upstream after a 502":  {made("Up-Status 502", "status 5xx", busy), ""},
		"another upstream after a body": {made("Up-Status 500", "status 5xx", busyGet), "x"},
		"another upstream after a 200":  {made("Up-Header \"X-Accel-Redirect: /file\"", "header X-Accel-Redirect *", busyGet), "x"},
		"the same without a body":       {made("Up-Header \"X-Accel-Redirect: /file\"", "header X-Accel-Redirect *", busyGet), ""},
		"after a question, no body":     {"forward_auth AUTH {\nuri /auth\n}\n" + made("Up-Header \"X-Accel-Redirect: /file\"", "header X-Accel-Redirect *", busyGet), ""},
		"an answer in place of a 500":   {made("Up-Status 500", "status 5xx", sorry), "x"},
		"a status in place of a 500":    {"reverse_proxy APP {\nheader_up Up-Status 500\n@some status 5xx\nreplace_status @some 429\n}", "x"},
		"intercepted, another upstream": {"intercept {\n@some status 5xx\nhandle_response @some {\n" + busyGet + "\n}\n}\nreverse_proxy APP {\nheader_up Up-Status 500\n}", "x"},
		"intercepted, an answer":        {"intercept {\n@some status 5xx\nhandle_response @some {\nheader -Content-Length\n" + sorry + "\n}\n}\nreverse_proxy APP {\nheader_up Up-Status 500\nheader_up Up-Body 0\n}", "x"},
		"intercepted, a status":         {"intercept {\n@some status 200\nreplace_status @some 403\n}\nreverse_proxy APP", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, fallback, a, g := chained(t, c.directives, c.body)
			wantUnknown(t, a)
			wantUnknown(t, g.client().do(post("k").as(func(r *request) { r.body = c.body })))
			g.wantAttempts(a, "one unknown")
			app.want("k", 1)
			fallback.want("k", 0)
		})
	}
}

// Where everybody who was asked has said so, or was asked only whether the request may
// go on, it is proof, and failed over.
func TestAnAnswerIsProofWhereNobodyElseWasAsked(t *testing.T) {
	t.Parallel()
	const auth = "forward_auth AUTH {\nuri /auth\n}\n"
	for name, c := range map[string]struct {
		directives, body string
		asked            int
	}{
		"forward_auth":                {auth + "reverse_proxy APP {\nheader_up Up-Status 403\n}", "x", 1},
		"forward_auth without a body": {auth + "reverse_proxy APP {\nheader_up Up-Status 429\n}", "", 1},
		"forward_auth says no":        {"forward_auth AUTH {\nuri /auth\nheader_up Up-Status 401\n}\nreverse_proxy APP", "x", 0},
		"forward_auth, and respond":   {"route {\n" + auth + "respond 403\n}", "x", 0},
		"the same without a body":     {"route {\n" + auth + "respond 403\n}", "", 0},
		"an answer in place of a 429": {made("Up-Status 429", "status 429", "respond busy 429"), "x", 1},
		"an answer copied":            {made("Up-Status 429", "status 429", "copy_response_headers\ncopy_response"), "x", 1},
		"another after a 404":         {made("Up-Status 404", "status 404", "reverse_proxy ANOTHER {\nheader_up Up-Status 429\n}"), "", 1},
		"another after no connection": {"reverse_proxy GONE APP {\nlb_policy first\nlb_retries 2\nfail_duration 1m\nheader_up Up-Status 429\n}", "x", 1},
		"intercepted":                 {"intercept {\n@some status 429\nhandle_response @some {\nheader -Content-Length\nrespond busy 429\n}\n}\nreverse_proxy APP {\nheader_up Up-Status 429\n}", "x", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, fallback, a, g := chained(t, c.directives, c.body)
			wantExecuted(t, a)
			g.wantAttempts(a, "one failed", "two succeeded")
			app.want("k", c.asked)
			fallback.want("k", 1)
		})
	}
}

// A client that sends the header by which a question about a request without a body is
// told from the request makes nothing of the kind of it.
func TestClientsHeaderMakesNoQuestionOfARequest(t *testing.T) {
	t.Parallel()
	app, another, fallback := newUpstream(t), newUpstream(t), newUpstream(t)
	chain := "reverse_proxy " + app.addr + " {\n@some status 2xx\nhandle_response @some {\nreverse_proxy " + another.addr + " {\nheader_up Up-Status 429\n}\n}\n}"
	g := startGateway(t, between(unproven, named{name: "one", before: chain}, named{name: "two", up: fallback}))
	r := post("k").as(func(r *request) { r.body = "" }).tell("X-Forwarded-Method", "POST")
	wantUnknown(t, g.client().do(r))
	wantUnknown(t, g.client().do(r))
	app.want("k", 1)
	fallback.want("k", 0)
}
