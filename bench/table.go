package main

import (
	"fmt"
	"strings"
	"time"
)

// table is a cell's result in Markdown.
func table(o *outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s%s\n\n", strings.ToUpper(o.name()[:1]), o.name()[1:])
	b.WriteString("| | requests/s | ratio (lowest–highest) | compared with | p50 ms | p99 ms | CPU µs per request: target + Redis + upstream + client |\n|---|---:|---:|---|---:|---:|---:|\n")
	for _, r := range o.results {
		rate, _, _ := spread(r.rates)
		ratio := "1"
		if r.versus == "" {
			ratio = ""
		} else if len(r.ratios) > 0 {
			median, low, high := spread(r.ratios)
			ratio = fmt.Sprintf("**%.2f** (%.2f–%.2f)", median, low, high)
		}
		name := r.target
		if r.wrong > 0 {
			name += fmt.Sprintf(" — %d wrong: %s", r.wrong, r.why)
		}
		us := func(process string) float64 { return float64(r.cpu[process]) / float64(time.Microsecond) }
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %.0f + %.0f + %.0f + %.0f |\n", name, thousands(rate), ratio, r.versus,
			ms(r.latency.quantile(0.5)), ms(r.latency.quantile(0.99)),
			us("target"), us("Redis"), us("upstream"), us("client"))
	}
	return b.String()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// thousands writes a number with its thousands apart.
func thousands(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
