package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// eventPrefix begins the names of the events that are emitted.
const eventPrefix = "idempotency_"

// maxEvents bounds how many events wait to be emitted. Their subscribers can be
// slow, and nobody waits for them.
const maxEvents = 1000

// events are those of this process. A gateway outlives the configuration that
// brought it, and so do its events: they go to whatever subscribes to them in
// the configuration that runs when their turn comes.
var events = eventQueue{limit: maxEvents, emit: emit, dropped: func() { metrics.dropped.Inc() }}

// event is what subscribers are told. It has nothing of the job, which would keep
// its bodies in memory.
type event struct {
	name string
	data map[string]any
}

// eventQueue emits events in the order in which they came, one after the other.
// Its goroutine exists only while there is something to emit.
type eventQueue struct {
	limit   int
	emit    func(event) error
	dropped func()

	mu       sync.Mutex
	waiting  []event
	emitting bool
	full     bool // and it was said so
}

// put never blocks.
func (q *eventQueue) put(e proxy.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= q.limit {
		q.dropped()
		if !q.full {
			q.full = true
			slog.New(currentLog{}).Error("events are dropped, since their subscribers don't keep up; what happened stands in the jobs all the same",
				slog.Int("waiting", len(q.waiting)))
		}
		return
	}
	q.waiting = append(q.waiting, event{eventPrefix + string(e.Name), eventData(e)})
	if !q.emitting {
		q.emitting = true
		go q.run()
	}
}

func (q *eventQueue) run() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.waiting, q.emitting, q.full = nil, false, false
			q.mu.Unlock()
			return
		}
		e := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		if err := q.emitOne(e); err != nil {
			q.dropped()
			slog.New(currentLog{}).Warn("an event could not be told to its subscribers; what happened stands in the job all the same",
				slog.String("event", e.name), slog.Any("job", e.data["job"]), slog.Any("error", err))
		}
	}
}

// emitOne recovers from the panic of a subscriber: in this goroutine it would
// end the process.
func (q *eventQueue) emitOne(e event) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a subscriber panicked: %v", p)
		}
	}()
	return q.emit(e)
}

// emit tells the subscribers of the running configuration of an event. Only a
// configuration that has started completely is asked, since before that its
// subscribers are still being gathered.
func emit(e event) error {
	ctx := caddy.ActiveContext()
	if ctx.Context == nil || ctx.Err() != nil {
		return errors.New("no configuration is running")
	}
	if app, err := ctx.AppIfConfigured(appName); err == nil {
		ctx = app.(*App).ctx // so that the event says where it comes from
	}
	app, err := ctx.AppIfConfigured("events")
	if err != nil {
		return err
	}
	// What has begun to be told is told to all, also if the configuration is
	// replaced meanwhile.
	ctx.Context = context.WithoutCancel(ctx.Context)
	app.(*caddyevents.App).Emit(ctx, e.name, e.data)
	return nil
}

// eventData is what subscribers are told: nothing of the key, the owner or a body.
func eventData(e proxy.Event) map[string]any {
	data := map[string]any{
		"job":     e.Job.ID,
		"space":   e.Job.Space,
		"attempt": e.Attempt,
		"reason":  e.Reason,
		"method":  e.Job.Request.Method,
		"path":    e.Job.Request.Path,
		"label":   e.Job.Request.Label,
		// Of attempts that were starting by then, none had lapsed: with that
		// there would have come another event.
		"state": e.Job.State(keystore.Time(0)).String(),
	}
	for i := range e.Job.Attempts {
		// A store that has lost a record can make two attempts carry one number;
		// the later one is meant.
		if a := &e.Job.Attempts[i]; a.Number == e.Attempt {
			data["provider"], data["attempt_state"] = a.Provider, a.State.String()
		}
	}
	return data
}
