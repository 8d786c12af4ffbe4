package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
)

// measureRest measures what is not a matter of requests per second.
func (r *report) measureRest(ctx context.Context, l *lab, quick bool) (err error) {
	for _, name := range ours {
		s, err := l.measureSpent(ctx, name)
		if err != nil {
			return fmt.Errorf("where the time of %s goes: %w", name, err)
		}
		r.spent = append(r.spent, s)
	}
	for _, unresolved := range []bool{false, true} {
		b, err := l.measureBytes(ctx, unresolved)
		if err != nil {
			return fmt.Errorf("bytes per job: %w", err)
		}
		r.bytes = append(r.bytes, b)
	}
	if quick {
		return nil
	}
	if err := r.measureBeside(ctx, l); err != nil {
		return err
	}
	r.store, err = benchmarkStore(ctx)
	return err
}

func (r *report) measureBeside(ctx context.Context, l *lab) error {
	for _, name := range ours {
		b, err := l.measureBeside(ctx, name, r.half())
		if err != nil {
			return fmt.Errorf("small answers beside large ones, %s: %w", name, err)
		}
		r.beside = append(r.beside, b)
	}
	return nil
}

// beside is what small requests feel of large ones.
type beside struct {
	target       string
	alone, along histogram
	ratios       []float64 // of the 99th percentiles, by round
}

const (
	besideRounds = 5
	besideRound  = 2 * time.Second
	besideRate   = 5 // large answers per second
)

// measureBeside sends small requests at a fixed rate, alone and beside large ones.
func (l *lab) measureBeside(ctx context.Context, name string, rate float64) (*beside, error) {
	b := &beside{target: name}
	l.stop(name)
	if err := l.empty(name); err != nil {
		return nil, err
	}
	p, err := l.target(ctx, name)
	if err != nil {
		return nil, err
	}
	c := &cell{kind: kindSteady, size: small, conns: connsSteady, rate: rate}
	big := &cell{kind: kindSteady, size: large, conns: besideRate, rate: besideRate}
	for range besideRounds {
		alone, err := send(ctx, l.load(c, name, p, newFresh()), besideRound)
		if err != nil {
			return nil, err
		}
		done := make(chan error, 1)
		go func() {
			m, err := send(ctx, l.load(big, name, p, newFresh()), besideRound)
			if err == nil && m.wrong > 0 {
				err = fmt.Errorf("%d wrong: %s", m.wrong, m.why)
			}
			done <- err
		}()
		along, err := send(ctx, l.load(c, name, p, newFresh()), besideRound)
		if err := <-done; err != nil {
			return nil, err
		}
		if err != nil {
			return nil, err
		}
		if wrong := alone.wrong + along.wrong; wrong > 0 {
			return nil, fmt.Errorf("%d wrong: %s%s", wrong, alone.why, along.why)
		}
		b.alone.merge(&alone.latency)
		b.along.merge(&along.latency)
		b.ratios = append(b.ratios, float64(along.latency.quantile(0.99))/float64(alone.latency.quantile(0.99)))
	}
	return b, nil
}

// bytesPerJob is how much memory of Redis a job takes.
type bytesPerJob struct {
	what  string
	bytes float64
}

// jobsWeighed is how many jobs are made for that.
const jobsWeighed = 20_000

func (l *lab) measureBytes(ctx context.Context, unresolved bool) (b bytesPerJob, err error) {
	l.stop(gatewayRedis)
	if err := l.empty(gatewayRedis); err != nil {
		return b, err
	}
	p, err := l.target(ctx, gatewayRedis)
	if err != nil {
		return b, err
	}
	c := &cell{kind: kindFresh, size: small, conns: 64}
	make20000 := l.load(c, gatewayRedis, p, newFresh())
	b.what = "completed, answer of 1 KiB"
	if unresolved {
		b.what = "unresolved"
		make20000.path, make20000.status = "/unknown", 504
	}
	// The connections have buffers that belong to no job.
	if _, err := send(ctx, make20000, warmUp); err != nil {
		return b, err
	}
	before, err := redisMemory(l.redis[gatewayRedis])
	if err != nil {
		return b, err
	}
	make20000.count = new(atomic.Int64)
	make20000.count.Store(jobsWeighed)
	m, err := send(ctx, make20000, time.Minute)
	if err == nil && m.wrong > 0 {
		err = fmt.Errorf("%d wrong: %s", m.wrong, m.why)
	}
	if err != nil {
		return b, err
	}
	after, err := redisMemory(l.redis[gatewayRedis])
	b.bytes = float64(after-before) / float64(m.requests)
	return b, err
}

// benchmarkStore runs the embedded store's own benchmark, beside that of the disk.
func benchmarkStore(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "WriteSync|DurableJob/^1KiB$", "-benchtime", "2s", "-count", "3", "./keystore/boltstore")
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("the store's own benchmarks: %w: %s", err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "Benchmark") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines, nil
}
