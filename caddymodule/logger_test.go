package caddymodule

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A logger that a gateway has made in one configuration writes to the log of
// the one that runs now, with all that it was told to add.
func TestGatewaysLogToTheRunningConfiguration(t *testing.T) {
	var first, second bytes.Buffer
	a := &App{log: slog.NewTextHandler(&first, nil)}
	b := &App{log: slog.NewTextHandler(&second, nil)}
	began(a)
	log := slog.New(currentLog{}).With(slog.String("job", "j1")).WithGroup("g").With(slog.Int("n", 1))
	log.Info("one")
	began(b) // a reload: the new configuration starts before the old one ends
	log.Info("two")
	ended(a)
	log.Info("three")
	began(a)
	ended(a) // a configuration that failed
	log.Info("four")
	ended(b)
	log.Info("five") // none runs any more
	log.Debug("six") // the level is the configuration's
	for name, c := range map[string]struct{ got, want string }{
		"first": {first.String(), "one"}, "second": {second.String(), "two three four five"},
	} {
		var messages []string
		for line := range strings.Lines(c.got) {
			_, rest, _ := strings.Cut(line, "msg=")
			message, attrs, _ := strings.Cut(strings.TrimSpace(rest), " ")
			messages = append(messages, message)
			if attrs != "job=j1 g.n=1" {
				t.Errorf("%s: %q has the attributes %q", name, message, attrs)
			}
		}
		if got := strings.Join(messages, " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
