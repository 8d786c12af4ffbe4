package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/logged"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// occurrence is something that operators are told of, and how it comes about.
type occurrence struct {
	line   string   // in the log
	fields []string // of the line; see [logged.Want]
	// events and incidents are all that come with it: an event as its name, the
	// attempt's number and the reason.
	events    []string
	incidents []Incident

	config Config
	store  func(*memStore) keystore.Store // nil: the store itself
	happen func(t *testing.T, f *fixture)
}

// occurrences are all that there are. Each table has a file of its own.
var occurrences = slices.Concat(endings, claims, troubles, decisions)

// confidential is a request of which neither log nor events may have anything.
var confidential = request{key: "very-secret", owner: "alice@example.com", body: `{"card":"4242-4242"}`}

var secrets = []string{"very-secret", "alice", "4242-4242", "amount", "execution 1"}

// Every line of the log is written where it says, with the level and the fields that
// are documented, and every event and incident is told. Nothing else is, and nothing
// tells a secret.
func TestEverythingThatIsToldIsSeen(t *testing.T) {
	var lines, fields []string
	events, incidents := make(map[EventName]bool), make(map[Incident]bool)
	for _, o := range occurrences {
		lines = append(lines, o.line)
		t.Run(o.line, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := newMemStore()
				store := keystore.Store(mem)
				if o.store != nil {
					store = o.store(mem)
				}
				f := newFixtureOn(t, store, o.config)
				f.mem = mem
				o.happen(t, f)
				synctest.Wait() // some is told after the client has its answer
				fields = append(fields, f.log.Check(t, documented(t), logged.Want{Line: o.line, Fields: o.fields}, f.secrets()...)...)
				for name := range f.wantTold(o.events) {
					events[name] = true
				}
				for name := range f.wantCounted(o.incidents) {
					incidents[name] = true
				}
				f.gateway.Close()
				f.gateway.mu.Lock()
				defer f.gateway.mu.Unlock()
				for a := range f.gateway.attempts { // that still listen
					a.cancel(errStopped)
				}
			})
		})
	}
	logged.Complete(t, ".", lines, fields)
	if got, want := slices.Sorted(maps.Keys(events)), slices.Sorted(slices.Values(EventNames())); !slices.Equal(got, want) {
		t.Errorf("seen were the events %v, want %v", got, want)
	}
	if got, want := slices.Sorted(maps.Keys(incidents)), slices.Sorted(slices.Values(Incidents())); !slices.Equal(got, want) {
		t.Errorf("seen were the incidents %v, want %v", got, want)
	}
}

// secrets are what nobody may be told, among them the tokens of all attempts.
func (f *fixture) secrets() []string {
	all := slices.Clone(secrets)
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	for name := range f.mem.records {
		if j, err := f.mem.get(name); err == nil && j != nil {
			for i := range j.Attempts {
				all = append(all, j.Attempts[i].Token.String())
			}
		}
	}
	return all
}

// wantTold checks which events were told, and returns their names.
func (f *fixture) wantTold(want []string) map[EventName]bool {
	f.t.Helper()
	f.incs.mu.Lock()
	defer f.incs.mu.Unlock()
	var got []string
	names := make(map[EventName]bool)
	for _, e := range f.incs.events {
		told := fmt.Sprintf("%s %d: %s", e.Name, e.Attempt, e.Reason)
		got = append(got, told)
		names[e.Name] = true
		if e.Job == nil || e.Job.ID == "" {
			f.t.Errorf("the event %s is of no job", told)
		}
		if slices.ContainsFunc(secrets, func(secret string) bool { return strings.Contains(told, secret) }) {
			f.t.Errorf("the event tells a secret: %s", told)
		}
	}
	if !slices.Equal(got, want) {
		f.t.Errorf("told were the events %q, want %q", got, want)
	}
	return names
}

// wantCounted checks which incidents were counted, however often, and returns them.
func (f *fixture) wantCounted(want []Incident) map[Incident]int {
	f.t.Helper()
	f.incs.mu.Lock()
	defer f.incs.mu.Unlock()
	if got := slices.Sorted(maps.Keys(f.incs.count)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		f.t.Errorf("counted were the incidents %v, want %v", got, want)
	}
	return maps.Clone(f.incs.count)
}

// fails makes an operation fail from now on.
func (f *fixture) fails(op string, err error) {
	f.mem.fail(func(called string) error {
		if called == op {
			return err
		}
		return nil
	}, nil)
}

// errRefused is the error of a write that was certainly not applied.
var errRefused = errors.Join(errInjected, keystore.ErrNotApplied)

var errNoIndex = errors.Join(keystore.ErrUnavailable, errors.New("no index"))

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
