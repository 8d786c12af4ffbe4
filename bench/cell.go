package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// result is what the rounds of a cell have shown of one target.
type result struct {
	target  string
	versus  string
	rates   []float64 // requests per second, by round
	ratios  []float64 // to what it is compared with, by round
	latency histogram
	cpu     map[string]time.Duration // per request, by process
	wrong   int64
	why     string
	// trips are round trips to the target's Redis, measured at a fixed rate.
	trips *histogram
}

// outcome is what a cell has shown.
type outcome struct {
	*cell
	results []*result
}

func (o *outcome) of(target string) *result {
	for _, r := range o.results {
		if r.target == target {
			return r
		}
	}
	return nil
}

// measure runs a cell: in each round all targets, one after the other.
func (l *lab) measure(ctx context.Context, c *cell) (*outcome, error) {
	out := &outcome{cell: c}
	prepared := make(map[string]*known)
	// The gateways begin each cell with nothing, so that no cell feels the last one.
	for _, name := range []string{gatewayRedis, gatewayBolt} {
		l.stop(name)
	}
	for _, name := range c.targets {
		if err := l.empty(name); err != nil {
			return nil, err
		}
		p, err := l.target(ctx, name)
		if err != nil {
			return nil, err
		}
		if prepared[name], err = l.prepare(ctx, c, name, p); err != nil {
			return nil, err
		}
		if _, err := send(ctx, l.load(c, name, p, c.keys(prepared[name])), warmUp); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out.results = append(out.results, &result{target: name, versus: c.versus(name), cpu: make(map[string]time.Duration)})
	}
	requests := make(map[string]int64)
	for round := range c.rounds {
		rates := make(map[string]float64)
		for i := range out.results {
			// Each round begins with another one.
			r := out.results[(i+round)%len(out.results)]
			m, err := l.round(ctx, c, r, prepared[r.target])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.target, err)
			}
			requests[r.target] += m.requests
			rates[r.target] = m.rate()
		}
		for _, r := range out.results {
			r.rates = append(r.rates, rates[r.target])
			if base := rates[r.versus]; base > 0 {
				r.ratios = append(r.ratios, rates[r.target]/base)
			}
		}
	}
	for _, r := range out.results {
		for process, spent := range r.cpu {
			r.cpu[process] = spent / time.Duration(max(requests[r.target], 1))
		}
	}
	return out, nil
}

// empty lets a target's Redis forget everything.
func (l *lab) empty(name string) error {
	redis := l.redis[name]
	if redis == nil {
		return nil
	}
	_, err := once(redis, "FLUSHALL")
	return err
}

func (l *lab) load(c *cell, name string, p *process, k keys) load {
	return load{
		addr: p.addr, path: fmt.Sprintf("/answer/%d", c.size), size: c.size, conns: c.conns,
		rate: c.rate, keys: k, static: name == staticCaddy, replays: protects(name),
	}
}

// protects reports whether a target does not execute a request twice.
func protects(name string) bool {
	return !slices.Contains([]string{plainCaddy, staticCaddy, plainFiber, plainNode}, name)
}

// prepare makes the jobs whose answers are to be replayed.
func (l *lab) prepare(ctx context.Context, c *cell, name string, p *process) (*known, error) {
	n := c.prepared()
	if n == 0 {
		return nil, nil
	}
	f := newFresh()
	k := &known{series: f.series, size: uint64(n), inOrder: c.kind == kindCold}
	if !protects(name) {
		return k, nil
	}
	prepare := l.load(c, name, p, f)
	prepare.count = new(atomic.Int64)
	prepare.count.Store(int64(n))
	m, err := send(ctx, prepare, 5*time.Minute)
	if err == nil && (m.wrong > 0 || m.requests < int64(n)) {
		err = fmt.Errorf("prepared %d jobs of %d, %d of them wrong: %s", m.requests, n, m.wrong, m.why)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return k, nil
}

// round measures one target once.
func (l *lab) round(ctx context.Context, c *cell, r *result, prepared *known) (*measured, error) {
	p := l.targets[r.target]
	if c.size == large && !c.replays() { // they would fill the memory
		if err := l.empty(r.target); err != nil {
			return nil, err
		}
	}
	if _, err := l.ask(ctx, "reset"); err != nil {
		return nil, err
	}
	watched := map[string]func() time.Duration{"target": p.cpu, "upstream": l.upstream.cpu, "client": ownCPU}
	if redis := l.redis[r.target]; redis != nil {
		watched["Redis"] = redis.cpu
	}
	before := make(map[string]time.Duration)
	for name, spent := range watched {
		before[name] = spent()
	}
	k := c.keys(prepared)
	waitForProfile := l.startProfile(ctx, r.target, c)
	stopTrips := l.startTrips(ctx, c, r)
	m, err := send(ctx, l.load(c, r.target, p, k), c.round)
	stopTrips()
	if err := errors.Join(err, waitForProfile()); err != nil {
		return nil, err
	}
	for name, spent := range watched {
		r.cpu[name] += spent() - before[name]
	}
	r.latency.merge(&m.latency)
	r.wrong += m.wrong
	if r.why == "" {
		r.why = m.why
	}
	return m, l.checkExecutions(ctx, r, k, m)
}

// checkExecutions compares what the upstream has executed with what there was to
// execute.
func (l *lab) checkExecutions(ctx context.Context, r *result, k keys, m *measured) error {
	c, err := l.ask(ctx, "counted")
	if err != nil || !protects(r.target) {
		return err
	}
	want := int64(0)
	if k, ok := k.(counting); ok {
		want = k.distinct()
	}
	if m.wrong == 0 && (c.Repeated > 0 || c.Executions != want) {
		r.wrong += max(c.Repeated, 1)
		r.why = fmt.Sprintf("%d executions of %d jobs, %d of them again", c.Executions, want, c.Repeated)
	}
	return nil
}

func ownCPU() time.Duration {
	d, _ := cpu(os.Getpid())
	return d
}

// startTrips measures round trips to the target's Redis during a round at a fixed
// rate, so that latencies can be compared with them.
func (l *lab) startTrips(ctx context.Context, c *cell, r *result) (stop func()) {
	redis := l.redis[r.target]
	if c.rate == 0 || redis == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		h, err := roundTrips(ctx, redis)
		if err != nil {
			return
		}
		if r.trips == nil {
			r.trips = new(histogram)
		}
		r.trips.merge(h)
	}()
	return func() {
		cancel()
		<-done
	}
}
