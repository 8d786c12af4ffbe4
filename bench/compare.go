package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

// compare runs the plan and tells what came out.
func compare(ctx context.Context, o options) error {
	cells, err := choose(plan(o), o)
	if err != nil {
		return err
	}
	l, err := newLab(ctx, o)
	if err != nil {
		return err
	}
	defer l.close()
	rep := new(report)
	for _, c := range cells {
		if c.kind == kindSteady {
			c.rate = rep.half()
		}
		out, err := l.measure(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		rep.outcomes = append(rep.outcomes, out)
		fmt.Println(table(out))
	}
	if o.only == "" {
		if err := rep.measureRest(ctx, l, o.quick); err != nil {
			return err
		}
		fmt.Println(rep.rest())
	}
	if o.page != "" {
		if err := rep.write(o); err != nil {
			return err
		}
	}
	return rep.verdict()
}

// half is half the rate of fresh requests that the gateway on Redis has reached.
func (r *report) half() float64 {
	if out := r.find(kindFresh, small, 64); out != nil && out.of(gatewayRedis) != nil {
		rate, _, _ := spread(out.of(gatewayRedis).rates)
		return math.Round(rate / 2)
	}
	return defaultRate
}

func (r *report) find(kind string, size, conns int) *outcome {
	for _, out := range r.outcomes {
		if out.kind == kind && out.size == size && out.conns == conns {
			return out
		}
	}
	return nil
}

// choose keeps the cells and targets that were asked for.
func choose(cells []*cell, o options) ([]*cell, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	targets, err := regexp.Compile(o.targets)
	if err != nil {
		return nil, err
	}
	var chosen []*cell
	for _, c := range cells {
		if !only.MatchString(c.name()) {
			continue
		}
		var wanted []string
		for _, t := range c.targets {
			if targets.MatchString(t) {
				wanted = append(wanted, t, c.versus(t))
			}
		}
		c.targets = slices.DeleteFunc(slices.Clone(c.targets), func(t string) bool { return !slices.Contains(wanted, t) })
		if len(c.targets) > 0 {
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}

// report is everything that a run has shown.
type report struct {
	outcomes []*outcome
	spent    []*spent
	beside   []*beside
	bytes    []bytesPerJob
	store    []string // lines of the stores' own benchmarks
}

// verdict is an error if anything of this gateway's was wrong.
func (r *report) verdict() error {
	var wrong []string
	for _, out := range r.outcomes {
		for _, res := range out.results {
			if res.wrong > 0 && (res.target == gatewayRedis || res.target == gatewayBolt) {
				wrong = append(wrong, fmt.Sprintf("%s, %s: %d wrong (%s)", out.name(), res.target, res.wrong, res.why))
			}
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("wrong answers or executions:\n%s", strings.Join(wrong, "\n"))
	}
	return nil
}
