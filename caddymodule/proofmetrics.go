package caddymodule

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// proofsEvery is how often proofs are read so that metrics can tell of them.
const proofsEvery = 15 * time.Second

// proofMetrics shows the proofs that the providers of the running configuration
// need. Its labels stand in the configuration. A scrape asks no store.
type proofMetrics struct {
	mu   sync.Mutex
	apps []*provenApp // that run, the newest last

	proven, proved, expires *prometheus.Desc
}

// provenApp is what is known of the proofs of one configuration.
type provenApp struct {
	read map[proofLabels]*proxy.Proof // nil: it is not proven
}

type proofLabels struct{ space, provider string }

func newProofMetrics() *proofMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, name), help, []string{"space", "provider"}, nil)
	}
	return &proofMetrics{
		proven:  desc("provider_proven", "Whether a provider that needs a proof to take another one's place has a living one. If several routes of a space have one of that name: whether all have."),
		proved:  desc("proof_timestamp_seconds", "When the provider was proven, in seconds since 1970; of several proofs the oldest."),
		expires: desc("proof_expires_timestamp_seconds", "When the provider's proof expires, in seconds since 1970; of several proofs the first."),
	}
}

// watch reads the proofs that a configuration needs again and again.
func (m *proofMetrics) watch(ctx context.Context, needed []neededProof) {
	if len(needed) == 0 {
		return
	}
	known := new(provenApp)
	m.mu.Lock()
	m.apps = append(m.apps, known)
	m.mu.Unlock()
	tick := time.NewTicker(proofsEvery)
	defer tick.Stop()
	for {
		read := make(map[proofLabels]*proxy.Proof)
		for _, n := range needed {
			if proof, err := n.proofs.living(n.subject, n.maxAge); err == nil {
				worse(read, n.labels, proof)
			}
		}
		m.mu.Lock()
		known.read = read
		m.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.mu.Lock()
			m.apps = slices.DeleteFunc(m.apps, func(other *provenApp) bool { return other == known })
			m.mu.Unlock()
			return
		}
	}
}

// worse notes a proof, unless there is a worse one of the same labels.
func worse(read map[proofLabels]*proxy.Proof, labels proofLabels, proof *proxy.Proof) {
	before, seen := read[labels]
	if seen && (before == nil || proof != nil && before.Expires <= proof.Expires) {
		return
	}
	read[labels] = proof
}

// neededProof is a proof without which a provider can't take another one's place.
type neededProof struct {
	labels  proofLabels
	proofs  *proofs
	subject proxy.ProofSubject
	maxAge  time.Duration
}

func (a *App) neededProofs() (needed []neededProof) {
	for _, handlers := range a.handlers {
		for _, h := range handlers {
			at := slices.IndexFunc(a.stores, func(s *sharedStore) bool { return s.key == keyOf(h.opener) })
			if at < 0 || !h.needsProof() {
				continue
			}
			for i, p := range h.Providers {
				if i == 0 { // the primary needs none
					continue
				}
				needed = append(needed, neededProof{
					proofLabels{h.config.Space, p.Name}, a.stores[at].proofs, h.subject(p), h.Contract.proofMaxAge(),
				})
			}
		}
	}
	return needed
}

// Describe implements prometheus.Collector.
func (m *proofMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.proven
	to <- m.proved
	to <- m.expires
}

// Collect implements prometheus.Collector.
func (m *proofMetrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.apps) == 0 {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels proofLabels) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels.space, labels.provider)
	}
	for labels, proof := range m.apps[len(m.apps)-1].read {
		if proof == nil {
			gauge(m.proven, 0, labels)
			continue
		}
		proven := 1.0
		if !proof.Expires.Std().After(time.Now()) {
			proven = 0
		}
		gauge(m.proven, proven, labels)
		gauge(m.proved, seconds(proof.Proved.Std()), labels)
		gauge(m.expires, seconds(proof.Expires.Std()), labels)
	}
}

var _ prometheus.Collector = (*proofMetrics)(nil)
