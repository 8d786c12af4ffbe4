package caddymodule

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// openInspections shows what is known of the stores that are open as metrics. Their
// labels are the modules' names, codes and severities, which are fixed.
type openInspections struct {
	mu   sync.Mutex
	open map[*inspection]struct{}
	seen map[findingLabels]struct{} // since the process began

	finding, inspected *prometheus.Desc
}

type findingLabels struct {
	store, code string
	severity    keystore.Severity
}

// inspections are those of this process. As with its metrics, all configurations
// show the same.
var inspections = &openInspections{
	open: make(map[*inspection]struct{}),
	seen: make(map[findingLabels]struct{}),
	finding: prometheus.NewDesc("caddy_idempotency_store_finding",
		"Whether the last inspection of a store had this finding.", []string{"store", "code", "severity"}, nil),
	inspected: prometheus.NewDesc("caddy_idempotency_store_inspected_timestamp_seconds",
		"When a store was last inspected, in seconds since 1970; 0 for never. Of several stores of a kind, the one that this is longest ago for.", []string{"store"}, nil),
}

func (o *openInspections) add(i *inspection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[i] = struct{}{}
}

func (o *openInspections) remove(i *inspection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, i)
}

// Describe implements prometheus.Collector.
func (o *openInspections) Describe(to chan<- *prometheus.Desc) {
	to <- o.finding
	to <- o.inspected
}

// Collect implements prometheus.Collector.
func (o *openInspections) Collect(to chan<- prometheus.Metric) {
	o.mu.Lock()
	defer o.mu.Unlock()
	stands := make(map[findingLabels]bool)
	oldest := make(map[string]float64)
	for i := range o.open {
		known, _ := i.known()
		at := 0.0
		if !known.At.IsZero() {
			at = seconds(known.At)
		}
		if before, ok := oldest[i.kind]; !ok || at < before {
			oldest[i.kind] = at
		}
		for _, f := range known.Findings {
			labels := findingLabels{i.kind, f.Code, f.Severity}
			stands[labels] = true
			o.seen[labels] = struct{}{}
		}
	}
	for labels := range o.seen {
		value := 0.0
		if stands[labels] {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(o.finding, prometheus.GaugeValue, value, labels.store, labels.code, labels.severity.String())
	}
	for kind, at := range oldest {
		to <- prometheus.MustNewConstMetric(o.inspected, prometheus.GaugeValue, at, kind)
	}
}

var _ prometheus.Collector = (*openInspections)(nil)
