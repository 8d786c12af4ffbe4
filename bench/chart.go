package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// chart is a picture that was drawn.
type chart struct{ file, title string }

// colours are those of the bars, told apart also without colour vision.
var colours = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0x56, 0xb4, 0xe9, 0xff},
}

// bars is a chart of groups of bars, beside each other or on top of each other.
type bars struct {
	file, title, unit string
	names             []string // of the groups
	series            []string
	values            map[string][]float64 // by series, one for each group
	stacked           bool
}

// draw draws the charts into a folder.
func (r *report) draw(dir string) ([]chart, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var charts []chart
	for _, b := range []*bars{
		r.ratioBars("fresh.png", "Fresh requests, as a part of the same proxy's rate without idempotency", kindFresh, small),
		r.ratioBars("replay.png", "Replays of hot keys, as a part of the rate of Caddy's static respond, or of the peer's own proxy", kindHot, small),
		r.cpuBars("cpu-fresh.png", "CPU time per fresh request, 64 connections", kindFresh),
		r.cpuBars("cpu-replay.png", "CPU time per replay of a hot key, 64 connections", kindHot),
		r.latencyBars(),
	} {
		if b == nil || len(b.names) == 0 {
			continue
		}
		if err := b.draw(filepath.Join(dir, b.file)); err != nil {
			return nil, err
		}
		charts = append(charts, chart{b.file, b.title})
	}
	return charts, nil
}

func (b *bars) add(series string, v float64) {
	if !slices.Contains(b.series, series) {
		b.series = append(b.series, series)
	}
	b.values[series] = append(b.values[series], v)
}

func (r *report) ratioBars(file, title, kind string, size int) *bars {
	b := &bars{file: file, title: title, unit: "ratio", values: make(map[string][]float64)}
	for _, conns := range []int{16, 64, 256} {
		out := r.find(kind, size, conns)
		if out == nil {
			continue
		}
		b.series = append(b.series, fmt.Sprintf("%d connections", conns))
		for _, target := range []string{gatewayRedis, gatewayBolt, minimalRedis, fiberRedis, nodeRedis} {
			if target == minimalRedis && kind != kindFresh {
				continue // it is there for what fresh requests cost
			}
			median := 0.0
			if res := out.of(target); res != nil {
				median, _, _ = spread(res.ratios)
			}
			if !slices.Contains(b.names, target) {
				b.names = append(b.names, target)
			}
			b.add(fmt.Sprintf("%d connections", conns), median)
		}
	}
	return b
}

func (r *report) cpuBars(file, title, kind string) *bars {
	out := r.find(kind, small, 64)
	if out == nil {
		return nil
	}
	b := &bars{file: file, title: title, unit: "µs", stacked: true, values: make(map[string][]float64)}
	for _, res := range out.results {
		b.names = append(b.names, res.target)
		for _, process := range []string{"target", "Redis", "upstream", "client"} {
			b.add(process, float64(res.cpu[process])/float64(time.Microsecond))
		}
	}
	return b
}

func (r *report) latencyBars() *bars {
	for _, out := range r.outcomes {
		if out.kind != kindSteady {
			continue
		}
		b := &bars{file: "latency.png", title: fmt.Sprintf("Latency of fresh requests at %.0f per second", out.rate), unit: "ms", values: make(map[string][]float64)}
		for _, res := range out.results {
			b.names = append(b.names, res.target)
			for _, q := range []float64{0.5, 0.9, 0.99} {
				b.add(fmt.Sprintf("p%.0f", q*100), float64(res.latency.quantile(q))/float64(time.Millisecond))
			}
		}
		return b
	}
	return nil
}

func (b *bars) draw(file string) error {
	p := plot.New()
	p.Title.Text = b.title
	p.Y.Label.Text = b.unit
	p.Y.Min = 0
	p.Legend.Top = true
	p.NominalX(b.names...)
	width := vg.Points(60)
	if !b.stacked {
		width = vg.Points(70 / float64(len(b.series)))
	}
	var below *plotter.BarChart
	for i, name := range b.series {
		bar, err := plotter.NewBarChart(plotter.Values(b.values[name]), width)
		if err != nil {
			return err
		}
		bar.Color = colours[i%len(colours)]
		bar.LineStyle.Width = 0
		if b.stacked {
			if below != nil {
				bar.StackOn(below)
			}
			below = bar
		} else {
			bar.Offset = width * vg.Length(float64(i)-float64(len(b.series)-1)/2)
		}
		p.Add(bar)
		p.Legend.Add(name, bar)
	}
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	p.Add(grid)
	p.X.Min, p.X.Max = -0.6, float64(len(b.names))-0.4
	p.Y.Max *= 1.2 // room for the legend
	return p.Save(vg.Points(140+110*float64(len(b.names))), 4*vg.Inch, file)
}
