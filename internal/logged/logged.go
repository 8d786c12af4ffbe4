// Package logged is for tests of what is logged: it records lines, and knows which
// ones the code can log and which ones the documentation lists.
package logged

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Line is a line that was logged.
type Line struct {
	Level  slog.Level
	Text   string
	Fields map[string]string
	Logger string // its name, where that is known
}

// Recorder keeps what is logged.
type Recorder struct {
	mu    sync.Mutex
	lines []Line
}

// Logger returns a logger that the recorder listens to.
func (r *Recorder) Logger() *slog.Logger { return slog.New(r.Handler()) }

// Handler returns what such a logger writes to.
func (r *Recorder) Handler() slog.Handler { return handler{to: r} }

// Lines returns what was logged up to now.
func (r *Recorder) Lines() []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// Add adds a line that was logged in another way.
func (r *Recorder) Add(l Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l)
}

// Reset forgets all lines.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = nil
}

type handler struct {
	to    *Recorder
	attrs []slog.Attr
}

// Enabled implements slog.Handler.
func (handler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h handler) Handle(_ context.Context, rec slog.Record) error {
	l := Line{Level: rec.Level, Text: rec.Message, Fields: make(map[string]string)}
	add := func(a slog.Attr) bool {
		if !a.Equal(slog.Attr{}) { // as all handlers do
			l.Fields[a.Key] = a.Value.Resolve().String()
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	rec.Attrs(add)
	h.to.Add(l)
	return nil
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.to, append(slices.Clone(h.attrs), attrs...)}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	panic("nothing is logged in a group, such as " + name)
}

// Want is what a test expects of one line.
type Want struct {
	// Line is its text, as the documentation has it.
	Line string
	// Level is needed where the documentation says that it varies.
	Level string
	// Fields are all that the line has, and no others: name=value, or name~part of
	// the value, or name alone where only the moment knows the value.
	Fields []string
}

// CheckAll checks that nothing was logged but what is documented.
func (r *Recorder) CheckAll(t testing.TB, documented Vocabulary) {
	t.Helper()
	for _, l := range r.Lines() {
		documented.check(t, l)
	}
}

// Check checks that the line was last logged as it is expected, that no other was logged
// than is documented, and that nowhere in them is one of these secrets. It returns
// the names of the line's fields.
func (r *Recorder) Check(t testing.TB, documented Vocabulary, want Want, secrets ...string) []string {
	t.Helper()
	r.CheckAll(t, documented)
	var found *Line
	for _, l := range r.Lines() {
		if all := l.Text + " " + fmt.Sprint(l.Fields); slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(all, secret) }) {
			t.Errorf("the log tells a secret: %+v", l)
		}
		if l.Text == want.Line || isOpen(want.Line, l.Text) {
			found = &l
		}
	}
	if found == nil {
		t.Errorf("it was not logged: %s\nbut %+v", want.Line, r.Lines())
		return nil
	}
	level := strings.ToLower(found.Level.String())
	if listed := documented.Lines[want.Line]; want.Level != level && (want.Level != "" || listed != level) {
		t.Errorf("%s: is logged as %s, and documented as %s", want.Line, level, listed)
	}
	var named []string
	for _, field := range want.Fields {
		at := strings.IndexAny(field, "=~")
		if at < 0 {
			at = len(field)
		}
		name, value := field[:at], field[at:]
		named = append(named, name)
		is := found.Fields[name]
		if as, exact := strings.CutPrefix(value, "="); exact && is != as || !exact && (is == "" || !strings.Contains(is, strings.TrimPrefix(value, "~"))) {
			t.Errorf("%s: the field %s is %q, want %s", want.Line, name, is, field)
		}
	}
	if got := slices.Sorted(maps.Keys(found.Fields)); !slices.Equal(got, slices.Sorted(slices.Values(named))) {
		t.Errorf("%s: has the fields %v, want %v", want.Line, got, named)
	}
	return named
}

// isOpen reports whether a documented text, of which the end is left open, stands for
// the text of a line.
func isOpen(documented, text string) bool {
	begin, open := strings.CutSuffix(documented, Open)
	return open && strings.HasPrefix(text, begin)
}
