package caddymodule

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// sampleEvery is how often verdicts are counted, from which rates are made.
	sampleEvery = 5 * time.Second
	// maxSamples is how many of the last counts are kept: a quarter of an hour.
	maxSamples = 180
)

// verdictSample are the counts of verdicts at a time.
type verdictSample struct {
	At     time.Time         `json:"at"`
	Totals map[string]uint64 `json:"totals"`
}

// verdictsAnswer are requests by what became of them.
type verdictsAnswer struct {
	Since   time.Time         `json:"since"` // when counting has begun: at the start of this process
	Totals  map[string]uint64 `json:"totals"`
	Samples []verdictSample   `json:"samples"` // the last ones, oldest first; only while a console is configured
}

// verdicts returns how many requests there were on this gateway, by what became of
// them, and how many there had been in the last minutes. With `after` only the
// samples since then are listed.
func (c *adminCall) verdicts() (any, error) {
	var after time.Time
	if v := c.r.URL.Query().Get("after"); v != "" {
		var err error
		if after, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return nil, badCall(fmt.Errorf("after %q: not a time such as 2026-11-30T02:31:04Z", v))
		}
	}
	totals, err := metrics.verdicts()
	if err != nil {
		return nil, err
	}
	return verdictsAnswer{Since: samples.since, Totals: totals, Samples: samples.after(after)}, nil
}

// verdicts returns the counts of requests by verdict. They are read where they are
// counted for everybody else, so that no two places tell different numbers.
func (o *observer) verdicts() (map[string]uint64, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(o.requests); err != nil {
		return nil, fmt.Errorf("count requests: %w", err)
	}
	families, err := registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("count requests: %w", err)
	}
	totals := make(map[string]uint64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if n := uint64(m.GetCounter().GetValue()); label.GetName() == "verdict" && n > 0 {
					totals[label.GetValue()] += n
				}
			}
		}
	}
	return totals, nil
}

// sampler keeps the last counts, of the process as a whole.
type sampler struct {
	since time.Time

	mu   sync.Mutex
	kept []verdictSample
}

var samples = &sampler{since: time.Now().UTC().Truncate(time.Millisecond)}

// begin counts from now on, until it is told to stop.
func (s *sampler) begin(o *observer) (stop context.CancelFunc) {
	ctx, stop := context.WithCancel(context.Background())
	s.take(time.Now(), o)
	go func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				s.take(now, o)
			case <-ctx.Done():
				return
			}
		}
	}()
	return stop
}

// take keeps the present counts. Around a reload two configurations count; one of
// them is enough.
func (s *sampler) take(now time.Time, o *observer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.kept); n > 0 && now.Sub(s.kept[n-1].At) < sampleEvery/2 {
		return
	}
	totals, err := o.verdicts()
	if err != nil {
		return // whoever asks for the present counts is told
	}
	if len(s.kept) == maxSamples {
		s.kept = append(s.kept[:0], s.kept[1:]...)
	}
	s.kept = append(s.kept, verdictSample{now.UTC().Truncate(time.Millisecond), totals})
}

// after returns the samples that were taken after a time.
func (s *sampler) after(t time.Time) []verdictSample {
	s.mu.Lock()
	defer s.mu.Unlock()
	later := []verdictSample{}
	for _, one := range s.kept {
		if one.At.After(t) {
			later = append(later, verdictSample{one.At, maps.Clone(one.Totals)})
		}
	}
	return later
}
