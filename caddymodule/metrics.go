package caddymodule

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// observer counts what gateways tell of. None of its labels has a value that a
// client could choose.
type observer struct {
	requests  *prometheus.CounterVec
	byVerdict map[string]prometheus.Counter // of requests, looked up once
	waits     prometheus.Histogram
	attempts  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	incidents *prometheus.CounterVec
	events    *prometheus.CounterVec
	dropped   prometheus.Counter // events that nobody could be told of
	stores    *storeMetrics
	proofs    *proofMetrics

	mu        sync.Mutex
	providers map[spaceProvider]*providerCounts
}

// spaceProvider is a name of providers in a space.
type spaceProvider struct{ space, provider string }

// providerCounts are the counts of the providers of one name and space in this process.
type providerCounts struct {
	attempts  map[string]int // by outcome
	incidents map[proxy.Incident]int
}

// metrics are the process's. Caddy has a new registry for each configuration;
// the same collectors in each of them keep their values over reloads.
var metrics = newObserver()

// The names of all metrics begin with these.
const (
	metricsNamespace = "caddy"
	metricsSubsystem = "idempotency"
)

func newObserver() *observer {
	const namespace, subsystem = metricsNamespace, metricsSubsystem
	o := &observer{
		byVerdict: make(map[string]prometheus.Counter),
		providers: make(map[spaceProvider]*providerCounts),
		stores:    newStoreMetrics(),
		proofs:    newProofMetrics(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "requests_total",
			Help: "Requests by what became of them.",
		}, []string{"verdict"}),
		waits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "wait_duration_seconds",
			Help:    "How long requests have waited for the answer to the first request with their key.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "attempts_total",
			Help: "Attempts that have ended, by what their end proves.",
		}, []string{"provider", "outcome"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "attempt_duration_seconds",
			Help:    "How long attempts took.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"provider"}),
		incidents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "incidents_total",
			Help: "Incidents that an operator may have to know of.",
		}, []string{"incident"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "events_total",
			Help: "Events that this process had to tell of.",
		}, []string{"event"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "events_dropped_total",
			Help: "Events that were not told: too many waited, or no configuration was running.",
		}),
	}
	// Counts begin at nothing, and not with the first time, which increase() would
	// not see.
	for _, verdict := range proxy.Verdicts() {
		o.byVerdict[verdict] = o.requests.WithLabelValues(verdict)
	}
	for _, i := range proxy.Incidents() {
		o.incidents.WithLabelValues(string(i))
	}
	for _, name := range proxy.EventNames() {
		o.events.WithLabelValues(string(name))
	}
	return o
}

// collectors are all that there is to be scraped.
func (o *observer) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		o.requests, o.waits, o.attempts, o.durations, o.incidents, o.events, o.dropped, o.stores, o.proofs, inspections,
	}
}

// register adds the collectors to a configuration's registry.
func (o *observer) register(registry prometheus.Registerer) error {
	for _, c := range o.collectors() {
		err := registry.Register(c)
		if _, registered := errors.AsType[prometheus.AlreadyRegisteredError](err); err != nil && !registered {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// Request implements proxy.Observer.
func (o *observer) Request(verdict string) {
	if c := o.byVerdict[verdict]; c != nil {
		c.Inc()
		return
	}
	o.requests.WithLabelValues(verdict).Inc()
}

// Waited implements proxy.Observer.
func (o *observer) Waited(took time.Duration) { o.waits.Observe(took.Seconds()) }

// Attempt implements proxy.Observer.
func (o *observer) Attempt(provider, outcome string, took time.Duration) {
	o.attempts.WithLabelValues(provider, outcome).Inc()
	o.durations.WithLabelValues(provider).Observe(took.Seconds())
}

// ProviderAttempt implements proxy.ProviderObserver.
func (o *observer) ProviderAttempt(space, provider, outcome string) {
	o.count(space, provider, func(c *providerCounts) { c.attempts[outcome]++ })
}

// ProviderIncident implements proxy.ProviderObserver.
func (o *observer) ProviderIncident(space, provider string, i proxy.Incident) {
	o.count(space, provider, func(c *providerCounts) { c.incidents[i]++ })
}

// count gives access to a provider's counts.
func (o *observer) count(space, provider string, use func(*providerCounts)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := spaceProvider{space, provider}
	c := o.providers[key]
	if c == nil {
		c = &providerCounts{make(map[string]int), make(map[proxy.Incident]int)}
		o.providers[key] = c
	}
	use(c)
}

// Incident implements proxy.Observer.
func (o *observer) Incident(i proxy.Incident) { o.incidents.WithLabelValues(string(i)).Inc() }

// Event implements proxy.Observer.
func (o *observer) Event(e proxy.Event) {
	o.events.WithLabelValues(string(e.Name)).Inc()
	events.put(e)
}

// Interface guards
var (
	_ proxy.Observer         = (*observer)(nil)
	_ proxy.ProviderObserver = (*observer)(nil)
)
