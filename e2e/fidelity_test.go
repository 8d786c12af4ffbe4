package e2e

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// trials is how many requests the test sends: as many to each pair of protocols.
const trials = 336

const defaultSeed = 1

// What an upstream sees through the gateway, and what its clients get, are what
// plain reverse_proxy makes of it, but for a short list; and that is what both
// say straight to each other, but for another short list. Every protocol on one
// side meets every protocol on the other. A repetition gets the first answer
// again, and each request is executed once.
//
// A request without a key is not the gateway's business: there is no difference at
// all to plain reverse_proxy.
//
// FIDELITY_SEED makes the test send other requests.
func TestFidelity(t *testing.T) {
	t.Parallel()
	seed := uint64(defaultSeed)
	if s := os.Getenv("FIDELITY_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("FIDELITY_SEED: %v", err)
		}
	}
	t.Logf("seed %d", seed)
	f := newFidelity(t)
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	todo := make(chan *trial)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for x := range todo {
				f.try(x)
			}
		})
	}
	for i := range trials {
		todo <- g.trial(i)
	}
	close(todo)
	all.Wait()
	if seed == defaultSeed {
		f.allowed.checkUsed(t)
	}
}

// fidelity is a mirror, and a Caddy with ways to it: for each protocol upstream
// one that is plain and one that is protected, each in the clear and encrypted.
type fidelity struct {
	t       *testing.T
	mirror  *mirror
	g       *gateway
	sites   map[way]int
	speaker *speaker
	allowed *allowed
}

type way struct {
	upstream             protocol
	protected, encrypted bool
}

func newFidelity(t *testing.T) *fidelity {
	t.Helper()
	pair, files := certificate(t)
	f := &fidelity{t: t, mirror: startMirror(t, pair), sites: make(map[way]int), speaker: newSpeaker(t), allowed: newAllowed()}
	transports := map[protocol]string{
		h1:  "versions 1.1",
		h2c: "versions h2c",
		h2:  "versions 2\ntls_insecure_skip_verify",
		h3:  "versions 3\ntls_insecure_skip_verify",
	}
	store := startRedis(t).store() // a disk can be slow
	var sites []site
	for _, p := range protocols {
		for _, protected := range []bool{false, true} {
			for _, encrypted := range []bool{false, true} {
				addr := f.mirror.addr[p]
				if p.encrypted() {
					addr = "https://" + addr
				}
				s := site{store: store, handler: "reverse_proxy " + addr + " {\ntransport http {\n" + transports[p] + "\n}\n}"}
				if protected {
					s = s.with("methods", strings.Join(slices.Compact(slices.Sorted(slices.Values(trialMethods))), " "))
				} else {
					s.raw = s.handler + "\n"
				}
				if encrypted {
					s.certificate = files
				}
				f.sites[way{p, protected, encrypted}] = len(sites)
				sites = append(sites, s)
			}
		}
	}
	f.g = startGatewayWith(t, "servers {\nprotocols h1 h2 h2c h3\n}", sites...)
	return f
}

// exchange is what both sides saw of one request.
type exchange struct{ request, answer message }

// send sends a trial's request, which is to reach the upstream so many times.
func (f *fidelity) send(x *trial, addr string, executions int) (e exchange, ok bool) {
	answer, err := f.speaker.send(x.client, addr, x.sends)
	seen := f.mirror.take(x.name)
	if err != nil {
		f.t.Errorf("%v: %v, after %v", x, err, answer)
		return e, false
	}
	if len(seen) != executions {
		f.t.Errorf("%v: executed %d times, want %d; answered %v", x, len(seen), executions, answer)
		return e, false
	}
	for part, values := range answer {
		if !strings.HasSuffix(part, " Alt-Svc") {
			continue
		}
		for i, value := range values { // which has the site's port
			values[i] = strings.Replace(value, addr[strings.LastIndex(addr, ":"):], ":443", 1)
		}
	}
	e.answer = answer
	if executions > 0 {
		e.request = seen[0]
	}
	return e, true
}

func (f *fidelity) through(x *trial, protected bool) string {
	return f.g.addr(f.sites[way{x.upstream, protected, x.client.encrypted()}])
}

// try sends a trial's request straight, through plain reverse_proxy, through the
// gateway and through the gateway again, and compares.
func (f *fidelity) try(x *trial) {
	f.mirror.tell(x.name, x.gets)
	straight, ok := f.send(x, f.mirror.addr[x.client], 1)
	if !ok {
		return
	}
	plain, ok := f.send(x, f.through(x, false), 1)
	if !ok {
		return
	}
	first, ok := f.send(x, f.through(x, true), 1)
	if !ok {
		return
	}
	f.compare(byCaddy, ofRequests, differences(x, straight.request, plain.request))
	f.compare(byCaddy, ofAnswers, differences(x, straight.answer, plain.answer))
	f.compare(byGateway, ofRequests, differences(x, plain.request, first.request))
	f.compare(byGateway, ofAnswers, differences(x, plain.answer, first.answer))
	if !x.keyed {
		return
	}
	if again, ok := f.send(x, f.through(x, true), 0); ok {
		f.compare(byReplay, ofAnswers, differences(x, first.answer, again.answer))
	}
}

func (f *fidelity) compare(by party, of kind, all []delta) {
	for _, d := range all {
		switch {
		case by == byGateway && !d.of.keyed && byChance(d):
		case by == byGateway && !d.of.keyed, !f.allowed.allow(by, of, d):
			f.t.Errorf("%s, %s: %s\n\t%v", by, of, d, d.of)
		}
	}
}
