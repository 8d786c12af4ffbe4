// Command bench measures this gateway beside its peers: on one machine, in one
// run, in alternating rounds, with one upstream and one load generator.
//
//	bench [flags]        the comparison, for docs/benchmarks.md
//	bench -growth        how costs grow with what is stored, and with what waits
//
// It starts everything that it measures itself, on free ports of this machine. Besides
// being the load generator it is, as processes of its own, the upstream and the
// Fiber application that it starts.
//
// A run that is wrong fails, however fast it was: every answer is checked, and the
// executions are counted at the upstream.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case roleUpstream:
			return serveUpstream()
		case roleFiber:
			return serveFiber(os.Args[2:])
		}
	}
	var o options
	flag.StringVar(&o.caddy, "caddy", "../caddy", "the built Caddy with this module")
	flag.StringVar(&o.page, "page", "", "the Markdown page whose results are replaced; charts go into a folder of its name")
	flag.StringVar(&o.only, "only", "", "measure only cells, or with -growth steps (bytes, beside, waiters, gateways, stored, unresolved), whose name matches this regular expression")
	flag.StringVar(&o.targets, "targets", "", "measure only targets whose name matches this regular expression, and what they are compared with")
	flag.BoolVar(&o.quick, "quick", false, "fewer cells, fewer and shorter rounds")
	flag.BoolVar(&o.growth, "growth", false, "measure how costs grow, in place of the comparison")
	flag.BoolVar(&o.appendOnly, "appendonly", false, "let Redis keep an append-only file, synced every second")
	flag.StringVar(&o.options, "options", "", "more options for the gateway's Caddyfile block")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds of each cell; zero: as many as the plan says")
	flag.DurationVar(&o.round, "round", 0, "how long a round is; zero: as the plan says")
	flag.StringVar(&o.profile, "profile", "", "a folder for CPU profiles of the gateway, one for each cell")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	began := time.Now()
	if o.growth {
		return growth(ctx, o)
	}
	if err := compare(ctx, o); err != nil {
		return err
	}
	fmt.Printf("took %s\n", time.Since(began).Round(time.Second))
	return nil
}

// options are what the command line says.
type options struct {
	caddy, page, only, targets, options, profile string
	quick, growth, appendOnly                    bool
	rounds                                       int
	round                                        time.Duration
}
