package caddymodule

import (
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// storeMetrics are those of the stores of this process: what they do, and for those
// that are open what was last seen of them. A scrape asks no store. The labels are
// the modules' names, operations, and kinds of errors, which are fixed.
type storeMetrics struct {
	durations *prometheus.HistogramVec
	errors    *prometheus.CounterVec

	mu   sync.Mutex
	open map[*sharedStore]struct{}

	jobs, oldest, swept, waiters, attempts, bytes *prometheus.Desc
}

func newStoreMetrics() *storeMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, name), help, append([]string{"store"}, labels...), nil)
	}
	return &storeMetrics{
		open: make(map[*sharedStore]struct{}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "store_operation_duration_seconds",
			Help:    "How long the store's operations took, those that failed included.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3},
		}, []string{"store", "operation"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "store_errors_total",
			Help: "Operations of the store that failed.",
		}, []string{"store", "operation", "error"}),
		jobs:     desc("unresolved_jobs", "Jobs that are running or unknown, of all gateways on the store, when they were last counted. Running ones count once they are older than about two seconds.", "state"),
		oldest:   desc("oldest_unknown_job_age_seconds", "How long ago the oldest unknown job was created; 0 without one."),
		swept:    desc("store_swept_timestamp_seconds", "When the unresolved jobs were last counted, in seconds since 1970; 0 for never. Of several stores of a kind, the one that this is longest ago for."),
		waiters:  desc("waiters", "Repetitions that wait on this gateway for the first request's answer."),
		attempts: desc("running_attempts", "Attempts that this gateway runs or listens to."),
		bytes:    desc("store_bytes", "The size of the store's file, or the memory that its servers use for everything, when it was last inspected."),
	}
}

// begin and end say which stores are open.
func (m *storeMetrics) begin(s *sharedStore) {
	kind := s.kind()
	for _, operation := range storeOperations {
		for _, kindOfError := range storeErrors {
			m.errors.WithLabelValues(kind, operation, kindOfError)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[s] = struct{}{}
}

func (m *storeMetrics) end(s *sharedStore) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, s)
}

// kind is the name of the store's module.
func (s *sharedStore) kind() string { return caddy.ModuleID(s.key.module).Name() }

// Describe implements prometheus.Collector.
func (m *storeMetrics) Describe(to chan<- *prometheus.Desc) {
	m.durations.Describe(to)
	m.errors.Describe(to)
	for _, d := range []*prometheus.Desc{m.jobs, m.oldest, m.swept, m.waiters, m.attempts, m.bytes} {
		to <- d
	}
}

// kindSeen is what was last seen of the stores of one kind.
type kindSeen struct {
	counted                             bool // the jobs of at least one were counted
	running, unknown, waiters, attempts int
	oldest                              time.Duration
	swept                               float64
	bytes                               int64
}

// Collect implements prometheus.Collector.
func (m *storeMetrics) Collect(to chan<- prometheus.Metric) {
	m.durations.Collect(to)
	m.errors.Collect(to)
	for kind, seen := range m.look() {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{kind}, labels...)...)
		}
		gauge(m.swept, seen.swept)
		gauge(m.waiters, float64(seen.waiters))
		gauge(m.attempts, float64(seen.attempts))
		if seen.counted {
			gauge(m.jobs, float64(seen.running), keystore.JobRunning.String())
			gauge(m.jobs, float64(seen.unknown), keystore.JobUnknown.String())
			gauge(m.oldest, seen.oldest.Seconds())
		}
		if seen.bytes > 0 {
			gauge(m.bytes, float64(seen.bytes))
		}
	}
}

func (m *storeMetrics) look() map[string]*kindSeen {
	m.mu.Lock()
	defer m.mu.Unlock()
	kinds := make(map[string]*kindSeen)
	for s := range m.open {
		census := s.gateway.Census()
		at := 0.0
		if !census.At.IsZero() {
			at = seconds(census.At)
		}
		seen := kinds[s.kind()]
		if seen == nil {
			seen = &kindSeen{swept: at}
			kinds[s.kind()] = seen
		}
		seen.swept = min(seen.swept, at)
		attempts, waiters := s.gateway.Busy()
		seen.attempts += attempts
		seen.waiters += waiters
		known, _ := s.inspection.known()
		seen.bytes += known.Bytes
		if census.At.IsZero() {
			continue
		}
		seen.counted = true
		seen.running += census.Running
		seen.unknown += census.Unknown
		if !census.Oldest.IsZero() {
			seen.oldest = max(seen.oldest, s.store.Now().Sub(census.Oldest))
		}
	}
	return kinds
}

// seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

var _ prometheus.Collector = (*storeMetrics)(nil)
