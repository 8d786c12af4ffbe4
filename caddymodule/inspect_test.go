package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// inspectable is a store that finds what it is told to.
type inspectable struct {
	unopened
	mu       sync.Mutex
	findings []keystore.Finding
	err      error
	times    int
}

func (s *inspectable) Inspect(context.Context) (keystore.Inspection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times++
	return keystore.Inspection{At: time.Now(), Findings: s.findings}, s.err
}

// lines are the lines of a log, without their times.
func lines(log *bytes.Buffer) (lines []string) {
	for line := range strings.Lines(log.String()) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), "level=")
		lines = append(lines, rest)
	}
	log.Reset()
	return lines
}

// Each finding is logged when it comes, when it changes and when it goes, and not
// whenever it is found again.
func TestFindingsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	i := inspected(storeKey{"test.odd", ""}, unopened{})
	i.log = slog.New(slog.NewTextHandler(&log, nil))
	memory := func(used, risk string) keystore.Finding {
		return keystore.Finding{Code: "memory", Severity: keystore.Warning, Server: "a:1", Found: "it uses " + used, Risk: risk, Remedy: "more"}
	}
	eviction := keystore.Finding{Code: "eviction", Severity: keystore.Danger, Loses: true, Server: "b:1", Found: "it evicts", Risk: "lost", Remedy: "set it"}
	down := keystore.Finding{Code: keystore.FindingUnreachable, Severity: keystore.Danger, Server: "b:1", Found: "it is down"}
	for n, c := range []struct {
		found []keystore.Finding
		err   error
		want  []string // the beginnings
	}{
		{nil, errors.New("down"), []string{"WARN msg=\"a store can't be inspected\""}},
		{nil, errors.New("down"), nil},
		{[]keystore.Finding{memory("91 MiB", "full")}, nil, []string{"INFO msg=\"a store can be inspected again\"", "WARN msg=\"the store was inspected: it uses 91 MiB\" store=odd code=memory severity=warning server=a:1 risk=full remedy=more"}},
		{[]keystore.Finding{memory("92 MiB", "full")}, nil, nil},
		{[]keystore.Finding{memory("92 MiB", "very full"), eviction}, nil, []string{"ERROR msg=\"the store was inspected: it evicts\"", "WARN msg=\"the store was inspected: it uses 92 MiB\" store=odd code=memory severity=warning server=a:1 risk=\"very full\""}},
		{[]keystore.Finding{down}, nil, []string{"ERROR msg=\"the store was inspected: it is down\"", "INFO msg=\"the store was inspected: no longer so: it uses 92 MiB\""}},
		{[]keystore.Finding{eviction}, nil, []string{"INFO msg=\"the store was inspected: no longer so: it is down\""}},
		{nil, nil, []string{"INFO msg=\"the store was inspected: no longer so: it evicts\""}},
	} {
		i.learn(keystore.Inspection{At: time.Now(), Findings: c.found}, c.err)
		got := lines(&log)
		for k := range max(len(got), len(c.want)) {
			if k >= len(got) || k >= len(c.want) || !strings.HasPrefix(got[k], c.want[k]) {
				t.Errorf("step %d: got\n%s\nwant\n%s", n, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				break
			}
		}
	}
}

// A store counts as durable while nothing stands that loses acknowledged jobs. What
// is not known is not durable, and a lost inspection changes nothing.
func TestWhatIsNotDurable(t *testing.T) {
	i := inspected(storeKey{"test.odd", ""}, unopened{})
	finding := func(severity keystore.Severity, loses bool, server string) keystore.Finding {
		return keystore.Finding{Code: "x", Severity: severity, Loses: loses, Server: server, Found: "found"}
	}
	down := keystore.Finding{Code: keystore.FindingUnreachable, Severity: keystore.Danger, Server: "a:1"}
	for n, c := range []struct {
		found           []keystore.Finding
		err             error
		danger, warning bool // unfit for those
	}{
		{nil, errors.New("down"), true, true},
		{nil, nil, false, false},
		{nil, errors.New("down"), false, false},
		{[]keystore.Finding{finding(keystore.Danger, false, "")}, nil, false, false},
		{[]keystore.Finding{finding(keystore.Note, true, "")}, nil, false, false},
		{[]keystore.Finding{finding(keystore.Warning, true, "")}, nil, false, true},
		{[]keystore.Finding{finding(keystore.Warning, true, ""), finding(keystore.Danger, true, "a:1")}, nil, true, true},
		{nil, errors.New("down"), true, true},
		{[]keystore.Finding{down}, nil, true, true}, // what is known of it stands
		{[]keystore.Finding{down}, nil, true, true},
		{nil, nil, false, false},
	} {
		i.learn(keystore.Inspection{At: time.Now(), Findings: c.found}, c.err)
		if danger, warning := i.durable(keystore.Danger), i.durable(keystore.Warning); (danger != nil) != c.danger || (warning != nil) != c.warning {
			t.Errorf("step %d: %v, %v", n, danger, warning)
		}
	}
}

// A store is inspected when it is opened, however many ask it is done once at a time,
// and the end of the store is the end of that.
func TestStoresAreInspectedWhileTheyAreOpen(t *testing.T) {
	s := &inspectable{findings: []keystore.Finding{{Code: "odd", Severity: keystore.Warning}}}
	i := inspected(storeKey{"test.odd", ""}, s)
	eventually(t, "it was inspected", func() bool { known, _ := i.known(); return !known.At.IsZero() })
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() { i.run(t.Context()) })
	}
	asking.Wait()
	s.mu.Lock()
	if s.times > 20 {
		t.Errorf("inspected %d times", s.times)
	}
	s.mu.Unlock()
	value := func() float64 {
		registry := prometheus.NewRegistry()
		registry.MustRegister(inspections)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "caddy_idempotency_store_finding" && m.GetLabel()[0].GetValue() == "odd" {
					return m.GetGauge().GetValue()
				}
			}
		}
		return -1
	}
	if got := value(); got != 1 {
		t.Errorf("the metric is %v", got)
	}
	i.end()
	if got := value(); got != 0 {
		t.Errorf("the metric is %v afterwards", got)
	}
	i.run(context.WithoutCancel(t.Context())) // by whoever had it still
}
