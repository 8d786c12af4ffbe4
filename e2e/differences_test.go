package e2e

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// party is who makes a difference.
type party string

const (
	byCaddy   party = "Caddy"   // between what was sent straight and through plain reverse_proxy
	byGateway party = "gateway" // between plain reverse_proxy and the gateway
	byReplay  party = "replay"  // between the first answer and its replay
)

// kind is of what a difference is.
type kind string

const (
	ofRequests kind = "requests"
	ofAnswers  kind = "answers"
)

// difference is one that is allowed. docs/fidelity.md names it.
type difference struct {
	by     party
	of     kind
	name   string
	allows func(delta) bool
}

// allowedDifferences are there in every run of the test.
var allowedDifferences = []difference{
	{byCaddy, ofRequests, "`Via` and `X-Forwarded-*` are set", header("Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto")},
	{byCaddy, ofRequests, "fields of one connection are left out", func(d delta) bool {
		return header("Connection", "Keep-Alive", "Proxy-Connection", "X-Hop")(d) || header("Te")(d) && slices.Equal(d.got, []string{"trailers"})
	}},
	{byCaddy, ofRequests, "header names are spelled in one way", spelling},
	{byCaddy, ofRequests, "a header name with `_` and `.` is dropped", func(d delta) bool { return header("X_underscore.dot")(d) && d.got == nil }},
	{byCaddy, ofRequests, "`Host` is the upstream's, where that is spoken to over TLS", func(d delta) bool { return d.part == "host" && d.of.upstream.encrypted() }},
	{byCaddy, ofRequests, "`Accept-Encoding: gzip` is sent where the client says nothing", func(d delta) bool {
		return header("Accept-Encoding")(d) && strings.Join(d.want, "") == "" && slices.Contains(d.got, "gzip")
	}},
	{byCaddy, ofRequests, "the path is percent-encoded where it must be, and never absolute", func(d delta) bool {
		return d.part == "target" && strings.ContainsAny(d.want[0], `|^\é:`) && !strings.HasPrefix(d.got[0], "http:")
	}},
	{byCaddy, ofRequests, "an empty body has a length, or none, or no end announced", func(d delta) bool { return d.part == "framing" && len(d.of.sends.body) == 0 }},
	{byCaddy, ofRequests, "trailers get lost behind HTTP/3, and those that are not announced", func(d delta) bool {
		return trailers(d) && d.got == nil && (d.of.client == h3 || d.of.sends.quiet)
	}},
	{byCaddy, ofRequests, "`Expect` is answered on the way", header("Expect")},

	{byCaddy, ofAnswers, "`Via` is added", header("Via")},
	{byCaddy, ofAnswers, "fields of one connection are left out", header("Connection", "Keep-Alive", "X-Hop")},
	{byCaddy, ofAnswers, "header names are spelled in one way", spelling},
	{byCaddy, ofAnswers, "304 has neither `Content-Type` nor `Content-Length` over HTTP/1.1", func(d delta) bool {
		return d.of.client == h1 && d.of.gets.status == http.StatusNotModified && (header("Content-Type")(d) || d.part == "framing")
	}},
	{byCaddy, ofAnswers, "`Alt-Svc` is Caddy's own", header("Alt-Svc")},
	{byCaddy, ofAnswers, "a `Content-Type` is guessed where there is none", func(d delta) bool { return header("Content-Type")(d) && d.want == nil }},
	{byCaddy, ofAnswers, "gzip is undone where the client says no `Accept-Encoding`", func(d delta) bool {
		return undone(d) && !slices.ContainsFunc(d.of.sends.fields, func(f field) bool { return f.name == "Accept-Encoding" && f.value != "" })
	}},
	{byCaddy, ofAnswers, "an answer that ends with its connection is chunked", func(d delta) bool { return d.part == "framing" && d.want[0] == "until close" }},
	{byCaddy, ofAnswers, "a short answer without an announced length gets one", func(d delta) bool {
		return d.part == "framing" && strings.HasPrefix(d.got[0], "length ") && (len(d.of.gets.body) < 2048 || bodyless(d.of.sends.method, d.of.gets.status))
	}},
	{byCaddy, ofAnswers, "early answers carry `Server` and `Alt-Svc`", func(d delta) bool {
		return early(d) && (strings.HasSuffix(d.part, " Server") || strings.HasSuffix(d.part, " Alt-Svc"))
	}},
	{byCaddy, ofAnswers, "a trailer and a header field of one name are mixed up", func(d delta) bool {
		return d.part == "trailer "+sameName || header(sameName)(d)
	}},

	{byGateway, ofRequests, "`Idempotency-Job` and `Idempotency-Attempt` are set", header("Idempotency-Job", "Idempotency-Attempt")},
	{byGateway, ofRequests, "the client's `Accept-Encoding` is left out", func(d delta) bool {
		return header("Accept-Encoding")(d) && (d.got == nil || slices.Equal(d.got, []string{"gzip"}))
	}},
	{byGateway, ofRequests, "`Expect` is left out", func(d delta) bool { return header("Expect")(d) && d.got == nil }},
	{byGateway, ofRequests, "the body's length is announced", func(d delta) bool {
		return d.part == "framing" && (d.want[0] == "unannounced" || d.want[0] == "none" && d.got[0] == "length 0")
	}},

	{byGateway, ofAnswers, "`Idempotency-Job` and `Idempotency-Expires` are set", header("Idempotency-Job", "Idempotency-Expires")},
	{byGateway, ofAnswers, "no `Content-Type` is guessed", func(d delta) bool { return header("Content-Type")(d) && d.got == nil }},
	{byGateway, ofAnswers, "gzip is undone, whatever the client says in `Accept-Encoding`", undone},
	{byGateway, ofAnswers, "the body's length is announced", func(d delta) bool {
		return d.part == "framing" && d.want[0] == "unannounced"
	}},
	{byGateway, ofAnswers, "early answers don't carry `Alt-Svc`", func(d delta) bool {
		return early(d) && strings.HasSuffix(d.part, " Alt-Svc") && d.got == nil
	}},

	{byReplay, ofAnswers, "`Idempotent-Replayed` and `Idempotency-Answered-At` are set", header("Idempotent-Replayed", "Idempotency-Answered-At")},
	{byReplay, ofAnswers, "`Date` is the replay's", header("Date")},
	{byReplay, ofAnswers, "`Age` is left out", func(d delta) bool { return header("Age")(d) && d.got == nil }},
	{byReplay, ofAnswers, "`Set-Cookie` and challenges are left out", func(d delta) bool {
		return header("Set-Cookie", "Www-Authenticate")(d) && d.got == nil
	}},
	{byReplay, ofAnswers, "the body's length is announced, if it was not", func(d delta) bool {
		return d.part == "framing" && d.want[0] == "unannounced" && eventStream(d)
	}},
	{byReplay, ofAnswers, "early answers are not repeated", func(d delta) bool { return early(d) && d.got == nil }},
}

// rareDifferences are others that there may be, but not in every run.
var rareDifferences = []difference{
	{byCaddy, ofAnswers, "the upstream's `100 Continue` is passed on too", func(d delta) bool { return strings.HasPrefix(d.part, "interim 100 ") }},
	{byGateway, ofAnswers, "the upstream's `100 Continue` is not passed on", func(d delta) bool {
		return strings.HasPrefix(d.part, "interim 100 ") && d.got == nil
	}},
	{byCaddy, ofAnswers, "204 has no `Content-Length`", func(d delta) bool {
		return d.of.gets.status == http.StatusNoContent && d.part == "framing" && d.got[0] == "none"
	}},
	{byGateway, ofAnswers, "no length is made up for an answer without a body", func(d delta) bool {
		return bodyless(d.of.sends.method, d.of.gets.status) && d.part == "framing" && d.want[0] == "length 0" && d.got[0] == "none"
	}},
	{byGateway, ofAnswers, "no length is announced of an event stream without events", func(d delta) bool {
		return eventStream(d) && d.part == "framing" && d.want[0] == "length 0" && d.got[0] == "unannounced"
	}},
	{byGateway, ofAnswers, "`Idempotency-Recorded: false` is set where the store is slow", func(d delta) bool {
		return header("Idempotency-Recorded", "Idempotency-Expires")(d)
	}},
	{byReplay, ofAnswers, "`Idempotency-Expires` is set, if it was not", func(d delta) bool {
		return header("Idempotency-Recorded")(d) && d.got == nil || header("Idempotency-Expires")(d) && d.want == nil
	}},
}

func header(names ...string) func(delta) bool {
	return func(d delta) bool {
		name, ok := strings.CutPrefix(d.part, "header ")
		return ok && slices.Contains(names, name)
	}
}

func eventStream(d delta) bool {
	return slices.Contains(d.of.gets.fields, field{"Content-Type", "text/event-stream"})
}

func early(d delta) bool { return strings.HasPrefix(d.part, "interim ") }

func spelling(d delta) bool { return strings.HasPrefix(d.part, "spelling ") && d.got == nil }

func trailers(d delta) bool {
	return strings.HasPrefix(d.part, "trailer ") || d.part == "announced" || d.part == "framing"
}

// undone reports whether a difference comes of an encoding that somebody on the
// way has undone.
func undone(d delta) bool {
	return d.of.coded && (d.part == "header Content-Encoding" && d.got == nil || d.part == "body" || d.part == "framing")
}

// byChance reports whether plain reverse_proxy can make a difference to itself.
// It sends the head of an answer of which it doesn't know the length at once, and
// it is a matter of luck whether the body is there by then.
func byChance(d delta) bool {
	if strings.HasPrefix(d.part, "interim 100 ") {
		return true // whether the upstream asks for the body before it has it
	}
	unannounced := d.of.gets.framing != "length" || d.of.coded
	return unannounced && (d.part == "framing" || d.part == "header Content-Type" && (d.want == nil || d.got == nil))
}

// allowed keeps which of the differences there were.
type allowed struct {
	mu   sync.Mutex
	used map[string]int
}

func newAllowed() *allowed { return &allowed{used: make(map[string]int)} }

func (one difference) String() string {
	return string(one.by) + ", " + string(one.of) + ": " + one.name
}

func (a *allowed) allow(by party, of kind, d delta) bool {
	for _, one := range slices.Concat(allowedDifferences, rareDifferences) {
		if one.by == by && one.of == of && one.allows(d) {
			a.mu.Lock()
			a.used[one.String()]++
			a.mu.Unlock()
			return true
		}
	}
	return false
}

// checkUsed checks that the list is not longer than it has to be.
func (a *allowed) checkUsed(t *testing.T) {
	t.Helper()
	for _, one := range allowedDifferences {
		if a.used[one.String()] == 0 {
			t.Errorf("there was no such difference: %v", one)
		}
	}
}

// The page for users has all differences in its tables, and no others.
func TestFidelityPageNamesTheDifferences(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/fidelity.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| ") {
			rows++
		}
	}
	all := slices.Concat(allowedDifferences, rareDifferences)
	for _, one := range all {
		if !strings.Contains(string(page), "\n| "+string(one.by)+" | "+string(one.of)+" | "+one.name+" | ") {
			t.Errorf("the page doesn't name this difference: %v", one)
		}
	}
	const heads = 2 // a line with the columns' names, and one below it
	if tables := strings.Count(string(page), "\n| who | "); rows != len(all)+heads*tables {
		t.Errorf("the page's tables have %d lines, want one for each of %d differences", rows-heads*tables, len(all))
	}
}
