package caddymodule

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
)

// plain returns text that was made elsewhere, some of it by clients, so that it
// can't do anything to a terminal but appear there, in at most so many
// characters; 0: however long.
func plain(text string, most int) string {
	clean := []rune(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\ufffd'
	}, text))
	if most > 0 && len(clean) > most {
		return string(clean[:most-1]) + "…"
	}
	return string(clean)
}

// printTable prints rows in columns, without those that are empty but for
// their head.
func printTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var kept []int
	for column := range rows[0] {
		for _, row := range rows[1:] {
			if row[column] != "" {
				kept = append(kept, column)
				break
			}
		}
	}
	for _, row := range rows {
		var cells []string
		for _, column := range kept {
			cells = append(cells, row[column])
		}
		_, _ = fmt.Fprintln(t, strings.Join(cells, "\t")) // it is Flush that writes
	}
	return t.Flush()
}

// printJobs prints a table of jobs. Store and space are told where they differ.
func printJobs(w io.Writer, jobs []*jobView) error {
	var stores, spaces bool
	for _, j := range jobs {
		stores = stores || j.Store != jobs[0].Store
		spaces = spaces || j.Space != jobs[0].Space
	}
	where := func(told bool, what string) string {
		if !told {
			return ""
		}
		return plain(what, 24)
	}
	rows := [][]string{{"AGE", "STATE", "STORE", "SPACE", "ATTEMPTS", "REQUEST", "LABEL", "REASON", "JOB"}}
	for _, j := range jobs {
		rows = append(rows, []string{
			j.Age, j.State, where(stores, j.Store), where(spaces, j.Space), strconv.Itoa(j.AttemptCount),
			plain(j.Request.Method+" "+j.Request.Path, 40), plain(j.Request.Label, 24), plain(j.decisive().Reason, 48), j.ID,
		})
	}
	return printTable(w, rows)
}

// decisive is the attempt that an operator wants to hear of first: the last one
// that is unknown, or else the last one.
func (j *jobView) decisive() attemptView {
	for _, a := range slices.Backward(j.Attempts) {
		if a.State == "unknown" {
			return a
		}
	}
	if len(j.Attempts) == 0 {
		return attemptView{}
	}
	return j.Attempts[len(j.Attempts)-1]
}

// fields prints names and values below each other. Those without a value are
// left out.
type fields struct{ *tabwriter.Writer }

func (f fields) add(indent, name, value string) {
	if value != "" {
		_, _ = fmt.Fprintf(f, "%s%s\t%s\n", indent, name, value) // it is Flush that writes
	}
}

// printJob prints all there is to know of a job.
func printJob(w io.Writer, j *jobView) error {
	f := fields{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	f.add("", "job", j.ID)
	f.add("", "state", j.State)
	f.add("", "store", plain(j.Store, 0))
	f.add("", "space", plain(j.Space, 0))
	f.add("", "owner", j.Owner+" (a digest)")
	f.add("", "request", plain(j.Request.Method+" "+j.Request.Path, 0))
	f.add("", "body", strings.TrimSpace(plain(j.Request.MediaType, 0)+" "+size(j.Request.Size)))
	f.add("", "label", plain(j.Request.Label, 0))
	f.add("", "created", at(j.Created)+", "+j.Age+" ago")
	f.add("", "expires", cmp.Or(at(j.Expires), "never, as long as it is "+j.State))
	f.add("", "attempts", strconv.Itoa(j.AttemptCount))
	f.add("", "result", j.Result.words())
	for i := range j.Attempts {
		_, _ = fmt.Fprintln(f)
		f.attempt(&j.Attempts[i])
	}
	if n := j.AttemptCount - len(j.Attempts); n > 0 {
		_, _ = fmt.Fprintf(f, "\n%d earlier attempts are not listed any more.\n", n)
	}
	return f.Flush()
}

func (r *resultView) words() string {
	if r == nil {
		return "none"
	}
	words := fmt.Sprintf("status %d, %s, of attempt %d, answered %s", r.Status, size(r.Size), r.Attempt, at(r.Answered))
	if !r.Kept {
		words += "; the body was not kept"
	}
	return words
}

func (f fields) attempt(a *attemptView) {
	const indent = "  "
	f.add("", "attempt "+strconv.Itoa(a.Number), a.State)
	f.add(indent, "reason", plain(a.Reason, 0))
	f.add(indent, "provider", plain(a.Provider, 0))
	f.add(indent, "started", at(a.Started))
	if a.Ended.IsZero() {
		f.add(indent, "ended", "not that we know")
	} else {
		f.add(indent, "ended", at(a.Ended)+", after "+a.Took)
	}
	f.add(indent, "lease", "until "+at(a.Lease))
	if a.Ended.IsZero() && a.State != "starting" && !a.ListensUntil.IsZero() {
		f.add(indent, "listened to", "until "+at(a.ListensUntil)+" at the latest")
	}
	f.add(indent, "trace", plain(traceID(a.Trace), 0))
	f.add(indent, "upstream", plain(a.Evidence.Upstream, 0))
	f.add(indent, "transport", a.Evidence.words())
	if a.Evidence.Status != 0 {
		f.add(indent, "answer", fmt.Sprintf("status %d, %s", a.Evidence.Status, size(a.Evidence.Size)))
	}
	if v := a.Violation; v != nil {
		words := fmt.Sprintf("expected %s, found %s", plain(v.Expected, 0), plain(v.Found, 0))
		if v.Path != "" {
			words = plain(v.Path, 0) + ": " + words
		}
		f.add(indent, "broke the contract", words)
	}
	if k := a.Kept; k != nil {
		f.add(indent, "kept", fmt.Sprintf("status %d, %s; resolve with --response kept makes it the result", k.Status, size(k.Size)))
	}
	if l := a.Lookups; l != nil {
		said := "no answer"
		if l.Status != 0 {
			said = fmt.Sprintf("status %d", l.Status)
		}
		if l.Note != "" {
			said += ": " + plain(l.Note, 0)
		}
		words := fmt.Sprintf("%d, the last one %s: %s", l.Count, at(l.Last), said)
		if l.Count == 0 {
			words = "none so far: " + plain(l.Note, 0)
		}
		f.add(indent, "lookups", words)
	}
	if r := a.Resolution; r != nil {
		f.add(indent, "resolved", fmt.Sprintf("as %s by %s, %s", r.As, plain(r.Actor, 0), at(r.At)))
		f.add(indent, "on evidence", plain(r.Evidence, 0))
	}
}

// words tells what the transport saw, as far as that bears on whether the
// upstream can have executed the request.
func (e *evidenceView) words() string {
	switch {
	case !e.Observed:
		return "nothing was seen of it; not every transport tells"
	case e.Connected == 0:
		return fmt.Sprintf("no connection (asked for one %s): nothing was sent", times(e.Asked))
	}
	words := "connected, "
	switch {
	case e.Sent == 0:
		words += "the request was not sent to its end"
	case e.FirstByte == 0:
		words += "the whole request was sent, no answer began"
	default:
		words += "the whole request was sent, an answer began"
	}
	if e.Resent {
		words += fmt.Sprintf("; it was sent again below the gateway (%d connections)", e.Connected)
	}
	return words
}

// traceID is the id in W3C's traceparent, by which tools find a trace.
func traceID(traceparent string) string {
	if parts := strings.Split(traceparent, "-"); len(parts) == 4 {
		return parts[1]
	}
	return traceparent
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return strconv.Itoa(n) + " times"
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
