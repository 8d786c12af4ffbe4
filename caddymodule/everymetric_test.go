package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// Every metric on the page has a value of something that has happened. What is
// unresolved and who waits is counted without asking the store.
func TestEveryMetricIsSeen(t *testing.T) {
	u := newUpstream(t)
	p := newProving(t, safeCase, "", "")
	_, proven, _ := strings.Cut(p.config, "\tbind 127.0.0.1\n")
	config := func(wait int) string {
		return strings.Replace(p.config, proven, fmt.Sprintf("handle /charges {\n%s\n}\nhandle {\n%s\n}\n}\n",
			strings.TrimSuffix(proven, "}\n"), protect(u, fmt.Sprintf("owner shared\ntimeout 1s\nwait %dm", wait))), 1)
	}
	if err := reload(config(1)); err != nil {
		t.Fatal(err)
	}
	before := series(t)
	now := func(name string) float64 { return series(t)[name] }
	grown := func(name string, by float64) {
		t.Helper()
		if is := now(name) - before[name]; is < by {
			t.Errorf("%s has grown by %v, want %v", name, is, by)
		}
	}
	p.failsOver("unproven", false)
	eventually(t, "the provider is not proven", func() bool {
		value, shown := series(t)[`caddy_idempotency_provider_proven{provider="backup",space="payments"}`]
		return shown && value == 0
	})
	p.prove(onlyBackup)
	if err := reload(config(2)); err != nil { // proofs are read at once then
		t.Fatal(err)
	}
	eventually(t, "the provider is proven", func() bool {
		return now(`caddy_idempotency_provider_proven{provider="backup",space="payments"}`) == 1
	})
	proved := now(`caddy_idempotency_proof_timestamp_seconds{provider="backup",space="payments"}`)
	if expires := now(`caddy_idempotency_proof_expires_timestamp_seconds{provider="backup",space="payments"}`); proved == 0 || expires <= proved {
		t.Errorf("proven at %v, until %v", proved, expires)
	}
	grown(`caddy_idempotency_attempts_total{outcome="failed",provider="primary"}`, 1)
	grown(`caddy_idempotency_attempt_duration_seconds{provider="primary"}`, 1)
	grown(`caddy_idempotency_incidents_total{incident="fallback_unproven"}`, 1)
	grown(`caddy_idempotency_events_total{event="fallback_unproven"}`, 1)

	if a := insist(t, "/die", "unknown"); a.status != 504 {
		t.Fatalf("got %+v", a)
	}
	grown(`caddy_idempotency_requests_total{verdict="outcome_unknown"}`, 1)
	grown(`caddy_idempotency_store_operation_duration_seconds{operation="swap",store="bolt"}`, 1)
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	for range 3 {
		all.Go(func() { _, _ = send(context.Background(), "/hold", "held") })
	}
	t.Cleanup(func() { close(u.release) })
	<-u.entered
	eventually(t, "two wait", func() bool { return now(`caddy_idempotency_waiters{store="bolt"}`) == 2 })
	eventually(t, "one attempt runs", func() bool { return now(`caddy_idempotency_running_attempts{store="bolt"}`) == 1 })
	eventually(t, "the unknown jobs are counted", func() bool {
		return now(`caddy_idempotency_unresolved_jobs{state="unknown",store="bolt"}`) == 2 && // the held one has timed out by then
			now(`caddy_idempotency_oldest_unknown_job_age_seconds{store="bolt"}`) > 0 &&
			now(`caddy_idempotency_store_swept_timestamp_seconds{store="bolt"}`) > 0
	})
	eventually(t, "both have waited", func() bool {
		return now(`caddy_idempotency_wait_duration_seconds{}`) == before[`caddy_idempotency_wait_duration_seconds{}`]+2
	})
	eventually(t, "the store was inspected", func() bool {
		return now(`caddy_idempotency_store_inspected_timestamp_seconds{store="bolt"}`) > 0 && now(`caddy_idempotency_store_bytes{store="bolt"}`) > 0
	})

	odd := inspected(storeKey{"test.odd", ""}, &inspectable{findings: []keystore.Finding{oddFinding}})
	eventually(t, "the store is odd", func() bool {
		return now(`caddy_idempotency_store_finding{code="x",severity="warning",store="odd"}`) == 1
	})
	odd.end()
	if n := now(`caddy_idempotency_store_finding{code="x",severity="warning",store="odd"}`); n != 0 {
		t.Errorf("it still is: %v", n)
	}
	(&eventQueue{dropped: events.dropped}).put(proxy.Event{Name: proxy.EventResolved, Job: &keystore.Job{ID: "j"}})
	grown(`caddy_idempotency_events_dropped_total{}`, 1)
	if _, err := measured(unopened{errors.New("down")}, "bolt", slog.New(slog.DiscardHandler)).Get(t.Context(), keystore.Name{}); err == nil {
		t.Error("it answers")
	}
	grown(`caddy_idempotency_store_errors_total{error="not_applied",operation="get",store="bolt"}`, 1)

	listed := make(map[string][]string) // the labels of each
	for _, row := range tableOf(t, pages.Of(t, "..", observabilityPage).Section(t, "## Metrics"), "metric") {
		listed[names(row[0])[0]] = slices.Sorted(slices.Values(names(row[1])))
	}
	seen := map[string]bool{"caddy_idempotency_waiters": true, "caddy_idempotency_store_finding": true} // above
	for name, value := range series(t) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		var has []string
		for pair := range strings.SplitSeq(labels, ",") {
			if label, _, ok := strings.Cut(pair, "="); ok {
				has = append(has, label)
			}
		}
		if want, ok := listed[name]; !ok || !slices.Equal(has, want) {
			t.Errorf("%s has the labels %v; the page lists it: %t, with %v", name, has, ok, want)
		}
		seen[name] = seen[name] || value > 0
	}
	for name := range listed {
		if !seen[name] {
			t.Errorf("%s shows nothing", name)
		}
	}
	checkLabels(t)
}

// checkLabels checks that labels with a fixed vocabulary have no value besides.
func checkLabels(t *testing.T) {
	t.Helper()
	section := pages.Of(t, "..", observabilityPage).Section(t, "## Metrics")
	vocabulary := map[string][]string{
		"outcome": {"final", "failed", "unknown", "discarded"}, "state": {"running", "unknown"}, "severity": {"note", "warning", "danger"},
		"event": eventNames(),
	}
	for _, label := range []string{"verdict", "incident", "operation", "error"} {
		for _, row := range tableOf(t, section, label) {
			vocabulary[label] = append(vocabulary[label], names(row[0])...)
		}
	}
	ctx := caddy.ActiveContext()
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				known := vocabulary[pair.GetName()]
				if strings.HasPrefix(family.GetName(), "caddy_idempotency_") && known != nil && !slices.Contains(known, pair.GetValue()) {
					t.Errorf("%s has %s=%q, which the page does not list", family.GetName(), pair.GetName(), pair.GetValue())
				}
			}
		}
	}
}

// failingStore fails in every operation.
type failingStore struct {
	unopened
	err error
}

func (s failingStore) Create(context.Context, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, false, s.err
}

func (s failingStore) Swap(context.Context, keystore.WriteID, *keystore.Job) (*keystore.Job, bool, error) {
	return nil, false, s.err
}

func (s failingStore) SwapMany(_ context.Context, swaps []keystore.Swap) []keystore.SwapResult {
	return slices.Repeat([]keystore.SwapResult{{Err: s.err}}, len(swaps))
}

func (s failingStore) Get(context.Context, keystore.Name) (*keystore.Job, error) { return nil, s.err }
func (s failingStore) Index(context.Context, ...keystore.IndexEntry) error       { return s.err }

func (s failingStore) List(context.Context, string, int) ([]*keystore.Job, string, error) {
	return nil, "", s.err
}

func (s failingStore) Scan(context.Context, string, int) ([]*keystore.Job, string, error) {
	return nil, "", s.err
}

// Each operation of a store is measured, and each kind of error counted, under its name.
func TestEveryOperationAndErrorOfAStoreIsSeen(t *testing.T) {
	t.Parallel()
	const kind = "failing_test"
	unavailable := fmt.Errorf("%w: no answer", keystore.ErrUnavailable)
	errs := map[string]error{
		"unavailable": unavailable,
		"not_applied": errors.Join(unavailable, keystore.ErrNotApplied),
		"not_durable": errors.Join(unavailable, keystore.ErrNotDurable),
		"corrupt":     fmt.Errorf("%w: garbage", keystore.ErrCorrupt),
		"closed":      errors.Join(keystore.ErrClosed, keystore.ErrNotApplied),
		"ended":       context.Canceled,
	}
	operations := map[string]func(m *meter) error{
		"create":    func(m *meter) error { _, _, err := m.Create(t.Context(), nil); return err },
		"swap":      func(m *meter) error { _, _, err := m.Swap(t.Context(), keystore.WriteID{}, nil); return err },
		"swap_many": func(m *meter) error { return m.SwapMany(t.Context(), make([]keystore.Swap, 2))[1].Err },
		"get":       func(m *meter) error { _, err := m.Get(t.Context(), keystore.Name{}); return err },
		"index":     func(m *meter) error { return m.Index(t.Context()) },
		"list":      func(m *meter) error { _, _, err := m.List(t.Context(), "", 1); return err },
		"scan":      func(m *meter) error { _, _, err := m.Scan(t.Context(), "", 1); return err },
	}
	for _, err := range errs {
		m := measured(failingStore{err: err}, kind, slog.New(slog.DiscardHandler))
		for name, operation := range operations {
			if got := operation(m); !errors.Is(got, err) {
				t.Errorf("%s: got %v, want %v", name, got, err)
			}
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.stores)
	got := seriesOf(t, registry)
	for operation := range operations {
		if n := got[fmt.Sprintf("caddy_idempotency_store_operation_duration_seconds{operation=%q,store=%q}", operation, kind)]; n != float64(len(errs)) {
			t.Errorf("%s was measured %v times", operation, n)
		}
		for name := range errs {
			if n := got[fmt.Sprintf("caddy_idempotency_store_errors_total{error=%q,operation=%q,store=%q}", name, operation, kind)]; n != 1 {
				t.Errorf("%s of %s was counted %v times", name, operation, n)
			}
		}
	}
	wantSame(t, "operations", slices.Collect(maps.Keys(operations)), slices.Clone(storeOperations))
	wantSame(t, "errors", slices.Collect(maps.Keys(errs)), slices.Clone(storeErrors))
}
