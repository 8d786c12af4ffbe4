package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

func init() { caddy.RegisterModule(new(eventSubscriber)) }

// eventSubscriber is told of events.
type eventSubscriber struct {
	Name string `json:"name"`
}

// told is an event that was told to a subscriber.
type told struct {
	subscriber string
	caddy.Event
}

var toldEvents = make(chan told, 100)

func (*eventSubscriber) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.idempotency_test", New: func() caddy.Module { return new(eventSubscriber) }}
}

func (s *eventSubscriber) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&s.Name)
	return nil
}

func (s *eventSubscriber) Handle(_ context.Context, e caddy.Event) error {
	toldEvents <- told{s.Name, e}
	return nil
}

var _ caddyevents.Handler = (*eventSubscriber)(nil)

// subscribing adds subscriptions to a configuration.
func subscribing(config, subscriber string) string {
	var on strings.Builder
	for _, name := range proxy.EventNames() {
		fmt.Fprintf(&on, "\t\ton idempotency_%s idempotency_test %s\n", name, subscriber)
	}
	return strings.Replace(config, "{\n", "{\n\tevents {\n"+on.String()+"\t}\n", 1)
}

// The subscribers are those of the configuration that runs when something
// happens, whichever has brought the gateway.
func TestEventsGoToTheRunningConfiguration(t *testing.T) {
	u := newUpstream(t)
	config := site(t, protect(u, "owner {http.request.header.X-User}\nspace money\nlabel {http.request.header.X-Order}\ntimeout 1s"))
	load(t, subscribing(config, "first"))
	a := post(t, "/hold", "very-secret", "X-User", "alice", "X-Order", "o-17")
	if a.status != 504 {
		t.Fatalf("got %+v", a)
	}
	id := a.header.Get("Idempotency-Job")
	check := func(subscriber, name, state, attemptState string) {
		t.Helper()
		e := <-toldEvents
		if e.subscriber != subscriber || e.Name() != name {
			t.Fatalf("%s was told of %s", e.subscriber, e.Name())
		}
		for field, want := range map[string]any{
			"job": id, "space": "money", "state": state, "attempt": 1, "attempt_state": attemptState, "provider": "",
			"method": "POST", "path": "/hold", "label": "o-17",
		} {
			if e.Data[field] != want {
				t.Errorf("%s: %s is %v, want %v", name, field, e.Data[field], want)
			}
		}
		if e.Data["reason"] == "" || e.Origin() == nil || e.Origin().CaddyModule().ID != appName {
			t.Errorf("%s: %v from %v", name, e.Data, e.Origin())
		}
		if all := fmt.Sprint(e.Data); strings.Contains(all, "very-secret") || strings.Contains(all, "alice") || strings.Contains(all, "amount") {
			t.Errorf("%s tells %s", name, all)
		}
	}
	check("first", "idempotency_outcome_unknown", "unknown", "unknown")
	if err := reload(subscribing(config, "second")); err != nil {
		t.Fatal(err)
	}
	close(u.release)
	check("second", "idempotency_late_result", "completed", "succeeded")
	if n := counted(t, "caddy_idempotency_events_total", "late_result"); n == 0 {
		t.Error("the event was not counted")
	}
}

func TestEventOfAResolution(t *testing.T) {
	b := newBank(t, 200)
	load(t, subscribing(site(t, b.reconciled("", "lookup GET /charges\nevery 1ms\nsucceeded 200")), "s"))
	leaveUnknown(t, "k")
	if e := <-toldEvents; e.Name() != "idempotency_outcome_unknown" {
		t.Errorf("first came %s", e.Name())
	}
	if e := <-toldEvents; e.Name() != "idempotency_resolved" || e.Data["reason"] != "resolved as succeeded by reconciler" {
		t.Errorf("then came %s: %v", e.Name(), e.Data)
	}
}

// Whoever has something to tell does not wait for whoever is told.
func TestEventsDoNotBlockAndKeepTheirOrder(t *testing.T) {
	t.Parallel()
	entered, release, emitted := make(chan struct{}), make(chan struct{}), make(chan int)
	dropped := 0
	q := &eventQueue{limit: 3, dropped: func() { dropped++ }}
	q.emit = func(e event) error {
		attempt := e.data["attempt"].(int)
		if attempt == 0 {
			close(entered)
			<-release
		}
		emitted <- attempt
		if attempt == 1 {
			panic("a subscriber")
		}
		if attempt == 2 {
			return errors.New("nobody is there")
		}
		return nil
	}
	happens := func(n int) { q.put(proxy.Event{Name: proxy.EventResolved, Attempt: n, Job: &keystore.Job{ID: "j"}}) }
	happens(0)
	<-entered
	for n := 1; n <= 5; n++ {
		happens(n)
	}
	q.mu.Lock()
	for i, e := range q.waiting { // without the job, whose bodies may be large
		if e.name != "idempotency_resolved" || e.data["job"] != "j" || e.data["attempt"] != i+1 {
			t.Errorf("there waits %+v", e)
		}
	}
	if dropped != 2 {
		t.Errorf("%d were dropped", dropped)
	}
	q.mu.Unlock()
	close(release)
	var got []int
	for range 4 {
		got = append(got, <-emitted)
	}
	if !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Errorf("emitted %v", got)
	}
	eventually(t, "nobody is left to emit", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return !q.emitting
	})
	if dropped != 4 {
		t.Errorf("%d were dropped in all", dropped)
	}
}

func TestEventsWithoutAConfigurationAreCounted(t *testing.T) {
	if err := emit(event{name: "idempotency_resolved"}); err == nil {
		t.Error("somebody was told")
	}
}
