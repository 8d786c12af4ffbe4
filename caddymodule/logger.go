package caddymodule

import (
	"context"
	"log/slog"
	"slices"
	"sync"
)

// currentLog is the log of a gateway, which outlives the configuration that
// brought it: it writes to the log of the configuration that runs when there is
// something to say.
type currentLog struct {
	with []func(slog.Handler) slog.Handler // what the logger was told to add to each record
}

// running are the apps that have been started and not yet cleaned up, the
// newest last. On a reload there are two for a moment.
var running struct {
	sync.Mutex
	apps []*App
	last slog.Handler // for when none runs any more
}

// began makes the app's log the current one.
func began(a *App) {
	running.Lock()
	defer running.Unlock()
	running.apps = append(running.apps, a)
	running.last = a.log
}

// ended makes the log of the app that runs instead the current one.
func ended(a *App) {
	running.Lock()
	defer running.Unlock()
	running.apps = slices.DeleteFunc(running.apps, func(other *App) bool { return other == a })
	if n := len(running.apps); n > 0 {
		running.last = running.apps[n-1].log
	}
}

func currentHandler() slog.Handler {
	running.Lock()
	defer running.Unlock()
	if running.last == nil {
		return slog.DiscardHandler
	}
	return running.last
}

// Enabled implements slog.Handler.
func (l currentLog) Enabled(ctx context.Context, level slog.Level) bool {
	return currentHandler().Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l currentLog) Handle(ctx context.Context, r slog.Record) error {
	h := currentHandler()
	for _, add := range l.with {
		h = add(h)
	}
	return h.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l currentLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return l.adding(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (l currentLog) WithGroup(name string) slog.Handler {
	return l.adding(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (l currentLog) adding(add func(slog.Handler) slog.Handler) currentLog {
	return currentLog{append(slices.Clone(l.with), add)}
}

var _ slog.Handler = currentLog{}
