package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// What clients have sent does nothing to a terminal.
func TestTablesAreHarmless(t *testing.T) {
	var out bytes.Buffer
	j := &jobView{
		State: "unknown", Request: requestView{Method: "POST", Path: "/\x1b]0;title\x07\n\u009b2J" + strings.Repeat("x", 100), Label: "\x1b[31m"},
		Attempts: []attemptView{{State: "unknown", Reason: "a\r\nb"}},
	}
	if err := printJobs(&out, []*jobView{j}); err != nil {
		t.Fatal(err)
	}
	if err := printJob(&out, j); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\x07\r\u009b") {
		t.Errorf("printed %q", out.String())
	}
}

// Nor does it in JSON, which is the same text for whoever reads that.
func TestJSONIsHarmless(t *testing.T) {
	u := newUpstream(t)
	config, admin := adminSite(t, "", protect(u, "owner shared"))
	load(t, config)
	const path = "/die/\u009b31m\x7f\u202e<\u00e9\u2192\U000e0041"
	id := post(t, (&url.URL{Path: path}).String(), "k").header.Get("Idempotency-Job")
	for code, args := range map[int][]string{0: {"show", id}, exitConflict: {"forget", id, "--yes"}} {
		r := caddyCommand(t, nil, append([]string{"--address", admin, "--json"}, args...)...)
		r.want(t, code, "é→")
		if i := strings.IndexFunc(r.out+r.err, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
			t.Errorf("%s: printed %q", args[0], r.out+r.err)
		}
		var j jobView
		p := adminError{Job: &j}
		if err := errors.Join(json.Unmarshal([]byte(r.out), &j), json.Unmarshal([]byte(r.out), &p)); err != nil || p.Job.Request.Path != path {
			t.Errorf("%s: %v, the path is %q", args[0], err, p.Job.Request.Path)
		}
	}
}

// The id of an attempt's trace is what tools ask for; where nobody traced there is no
// line of it.
func TestJobIsShownWithItsTraces(t *testing.T) {
	var out bytes.Buffer
	j := &jobView{Attempts: []attemptView{
		{Number: 1, Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, {Number: 2}, {Number: 3, Trace: "\x1b[31m"},
	}}
	if err := printJob(&out, j); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(steady(out.String())) {
		if strings.HasPrefix(line, "  trace") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{"trace  4bf92f3577b34da6a3ce929d0e0e4736", "trace  \ufffd[31m"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTransportInWords(t *testing.T) {
	for want, e := range map[string]evidenceView{
		"nothing was seen of it; not every transport tells":                                                           {Connected: 1},
		"no connection (asked for one once): nothing was sent":                                                        {Observed: true, Asked: 1},
		"no connection (asked for one 3 times): nothing was sent":                                                     {Observed: true, Asked: 3},
		"connected, the request was not sent to its end":                                                              {Observed: true, Asked: 1, Connected: 1},
		"connected, the whole request was sent, no answer began":                                                      {Observed: true, Connected: 1, Sent: 1},
		"connected, the whole request was sent, an answer began":                                                      {Observed: true, Connected: 1, Sent: 1, FirstByte: 1},
		"connected, the whole request was sent, no answer began; it was sent again below the gateway (2 connections)": {Observed: true, Connected: 2, Sent: 2, Resent: true},
	} {
		if got := e.words(); got != want {
			t.Errorf("%+v: %s", e, got)
		}
	}
}
