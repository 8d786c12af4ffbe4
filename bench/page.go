package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Between these lines of the page stands what a run has shown.
const (
	resultsBegin = "<!-- results: written by make bench -->"
	resultsEnd   = "<!-- end of results -->"
)

// write replaces the results on the page, and the charts beside it.
func (r *report) write(o options) error {
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), resultsBegin)
	_, after, ok2 := strings.Cut(rest, resultsEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s: there are no lines %q and %q", o.page, resultsBegin, resultsEnd)
	}
	dir := strings.TrimSuffix(o.page, filepath.Ext(o.page))
	charts, err := r.draw(dir)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(before + resultsBegin + "\n\n" + machine(o) + "\n")
	for _, c := range charts {
		fmt.Fprintf(&b, "![%s](%s/%s)\n\n", c.title, filepath.Base(dir), c.file)
	}
	for _, out := range r.outcomes {
		b.WriteString(table(out) + "\n")
	}
	b.WriteString(r.rest() + "\n" + resultsEnd + after)
	return os.WriteFile(o.page, []byte(b.String()), 0o644) //nolint:gosec // a page for everybody
}

// machine says where and with what was measured.
func machine(o options) string {
	model := "an unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	version := func(program string, args ...string) string {
		out, err := exec.Command(program, args...).Output() //nolint:gosec // the programs that are measured
		if err != nil {
			return program
		}
		return strings.TrimSpace(strings.SplitN(string(out), "\n", 2)[0])
	}
	caddy, _, _ := strings.Cut(version(o.caddy, "version"), " ")
	return fmt.Sprintf("%s, on %d cores of %s, with %s, Caddy %s, Node %s and %s.\n",
		time.Now().UTC().Format("2 January 2006"), runtime.NumCPU(), model, runtime.Version(), caddy, version("node", "--version"), version("redis-server", "--version"))
}

// rest is what was measured besides requests per second, in Markdown.
func (r *report) rest() string {
	var b strings.Builder
	r.writeLatency(&b)
	b.WriteString(r.spentTable())
	if len(r.beside) > 0 {
		fmt.Fprintf(&b, "### Small answers beside %d large ones per second\n\n", besideRate)
		b.WriteString("Fresh requests at a fixed rate, answers of 1 KiB, alone and beside answers of 1 MiB.\n\n| | p50 ms alone | p99 ms alone | p50 ms beside | p99 ms beside | ratio of p99 (lowest–highest) |\n|---|---:|---:|---:|---:|---:|\n")
		for _, s := range r.beside {
			median, low, high := spread(s.ratios)
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | **%.2f** (%.2f–%.2f) |\n", s.target,
				ms(s.alone.quantile(0.5)), ms(s.alone.quantile(0.99)), ms(s.along.quantile(0.5)), ms(s.along.quantile(0.99)), median, low, high)
		}
		b.WriteString("\n")
	}
	if len(r.bytes) > 0 {
		b.WriteString("### Memory of Redis per job\n\n| | bytes |\n|---|---:|\n")
		for _, j := range r.bytes {
			fmt.Fprintf(&b, "| %s | %.0f |\n", j.what, j.bytes)
		}
		b.WriteString("\n")
	}
	if len(r.store) > 0 {
		b.WriteString("### The embedded store alone\n\nA claim and a commit, each on the disk, by 64 clients; beside it one page written and synced.\n\n```\n" + strings.Join(r.store, "\n") + "\n```\n")
	}
	return b.String()
}

// writeLatency says what the gateway adds to the latency, beside what a round trip
// to its Redis takes.
func (r *report) writeLatency(b *strings.Builder) {
	for _, out := range r.outcomes {
		plain, own := out.of(plainCaddy), out.of(gatewayRedis)
		if out.kind != kindSteady || plain == nil || own == nil || own.trips == nil {
			continue
		}
		added := own.latency.quantile(0.5) - plain.latency.quantile(0.5)
		trip := own.trips.quantile(0.5)
		fmt.Fprintf(b, "### Added latency\n\nAt %.0f requests per second, half of what the gateway on Redis reaches, it adds %s ms to the median latency of plain `reverse_proxy`. A round trip to Redis takes %s ms (median) in the same rounds; two of them and 150 µs are %s ms.\n\n",
			out.rate, ms(added), ms(trip), ms(2*trip+150*time.Microsecond))
	}
}
