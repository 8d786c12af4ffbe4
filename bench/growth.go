package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// growth measures how costs grow with what is stored, and with what waits.
func growth(ctx context.Context, o options) error {
	l, err := newLab(ctx, o)
	if err != nil {
		return err
	}
	defer l.close()
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"bytes", l.tellBytes}, {"beside", l.tellBeside}, {"waiters", l.growWaiters}, {"gateways", l.growGateways}, {"stored", l.growStored}, {"unresolved", l.growUnresolved},
	} {
		if !only.MatchString(step.name) {
			continue
		}
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// tellBytes tells how much memory of Redis a job takes.
func (l *lab) tellBytes(ctx context.Context) error {
	for _, unresolved := range []bool{false, true} {
		b, err := l.measureBytes(ctx, unresolved)
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %.0f bytes |\n", b.what, b.bytes)
	}
	return nil
}

// tellBeside tells what small answers feel of large ones.
func (l *lab) tellBeside(ctx context.Context) error {
	var r report
	if err := r.measureBeside(ctx, l); err != nil {
		return err
	}
	fmt.Println(r.rest())
	return nil
}

// growing is a comparison of one load on two places: an empty one and a full one.
type growing struct {
	rates, cpus map[string][]float64
}

const (
	growRounds = 5
	growRound  = 2 * time.Second
)

// compareFilled sends fresh requests, and replays that the store has to be asked for,
// to a gateway on an empty Redis and to one on a full Redis, in turns.
func (l *lab) compareFilled(ctx context.Context, what string, fill func(redis *process, gateway *process) error) error {
	empty, err := l.target(ctx, gatewayRedis)
	if err != nil {
		return err
	}
	redis, err := startRedis(ctx, "redis-full", l.dir, l.appendOnly)
	if err != nil {
		return err
	}
	defer redis.stop()
	const fullName = "full"
	l.redis[fullName] = redis
	full, err := l.startCaddy(ctx, fullName, "full", l.caddy, l.gatewayOn("redis redis://"+redis.addr))
	if err != nil {
		return err
	}
	defer full.stop()
	if err := fill(redis, full); err != nil {
		return err
	}
	places := map[string]*process{"empty": empty, fullName: full}
	servers := map[string]*process{"empty": l.redis[gatewayRedis], fullName: redis}
	for _, kind := range []string{kindFresh, kindCold} {
		c := &cell{kind: kind, size: small, conns: 64}
		g := growing{make(map[string][]float64), make(map[string][]float64)}
		prepared := make(map[string]*known)
		for name, p := range places {
			if prepared[name], err = l.prepare(ctx, c, gatewayRedis, p); err != nil {
				return err
			}
		}
		for range growRounds {
			for name, p := range places {
				before := p.cpu() + servers[name].cpu()
				m, err := send(ctx, l.load(c, gatewayRedis, p, c.keys(prepared[name])), growRound)
				if err != nil {
					return err
				}
				if m.wrong > 0 {
					return fmt.Errorf("%s: %d wrong: %s", what, m.wrong, m.why)
				}
				g.rates[name] = append(g.rates[name], m.rate())
				g.cpus[name] = append(g.cpus[name], float64(p.cpu()+servers[name].cpu()-before)/float64(time.Microsecond)/float64(m.requests))
			}
		}
		g.tell(what, kind, fullName)
	}
	return nil
}

func (g *growing) tell(what, kind, full string) {
	ratios := func(of map[string][]float64) (all []float64) {
		for i := range of[full] {
			all = append(all, of[full][i]/of["empty"][i])
		}
		return all
	}
	rate, low, high := spread(ratios(g.rates))
	cpu, cpuLow, cpuHigh := spread(ratios(g.cpus))
	empty, _, _ := spread(g.rates["empty"])
	fmt.Printf("| beside %s | %s | %s per second on an empty one | rate **%.2f** (%.2f–%.2f) of that | CPU of gateway and Redis **%.2f** (%.2f–%.2f) of that |\n", what, kind, thousands(empty), rate, low, high, cpu, cpuLow, cpuHigh)
}

// growStored fills the store with jobs that nobody asks for: strings with such names
// and of such a size, which Redis makes by itself.
func (l *lab) growStored(ctx context.Context) error {
	for _, n := range []int{1_000_000, 3_000_000} {
		err := l.compareFilled(ctx, thousands(float64(n))+" completed jobs", func(redis, _ *process) error {
			_, err := once(redis, "DEBUG", "POPULATE", strconv.Itoa(n), "idempotency:j:"+strings.Repeat("0", 56), "1500")
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) growUnresolved(ctx context.Context) error {
	const n = 100_000
	return l.compareFilled(ctx, thousands(n)+" unresolved jobs", func(_, gateway *process) error {
		unresolved := load{addr: gateway.addr, path: "/unknown", conns: 64, keys: newFresh(), status: http.StatusGatewayTimeout, count: new(atomic.Int64)}
		unresolved.count.Store(n)
		m, err := send(ctx, unresolved, 10*time.Minute)
		if err == nil && (m.wrong > 0 || m.requests < n) {
			err = fmt.Errorf("made %d unresolved jobs of %d, %d wrong: %s", m.requests, n, m.wrong, m.why)
		}
		return err
	})
}

// waitersWanted is how many duplicates of one job wait, where so many connections
// can be open: a plain proxy needs two for each.
const waitersWanted = 10_000

func (l *lab) growWaiters(ctx context.Context) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	n := min(waitersWanted, int(limit.Max-500)/2)
	fmt.Printf("\n| %s requests with one key | executions | memory | last answer after the upstream's |\n|---|---:|---:|---:|\n", thousands(float64(n)))
	for _, name := range ours {
		l.stop(name)
		if err := l.empty(name); err != nil {
			return err
		}
		l.options.options = fmt.Sprintf("waiters %d %d;wait 5m;timeout 5m", 2*n, 2*n)
		p, err := l.target(ctx, name)
		l.options.options = ""
		if err != nil {
			return err
		}
		if err := l.hold(ctx, name, p, n); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.stop(name)
	}
	return nil
}

// hold lets n requests with one key wait for an answer, and then gives it.
func (l *lab) hold(ctx context.Context, name string, p *process, n int) error {
	clients, err := newClients(n, p.addr, "/hold/1024")
	defer closeAll(clients)
	if err != nil {
		return err
	}
	if _, err := l.ask(ctx, "reset"); err != nil {
		return err
	}
	before, err := p.memory()
	if err != nil {
		return err
	}
	k := newKey(series.Add(1), 0)
	errs := make(chan error, n)
	own := 0
	if protects(name) {
		own = 1 // the attempt's request does not wait
	}
	// A few at a time, since all of them at once are more new connections to the
	// upstream than its queue has room for.
	const atOnce = 500
	for i, c := range clients {
		go func() {
			k := k
			a, err := c.do(&k)
			if err == nil && (a.status != http.StatusOK || !a.ours) {
				err = fmt.Errorf("status %d", a.status)
			}
			errs <- err
		}()
		if sent := i + 1; sent%atOnce == 0 || sent == n {
			if err := l.await(ctx, name, sent-own, errs); err != nil {
				return err
			}
		}
	}
	held, err := p.memory()
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := l.ask(ctx, "release"); err != nil {
		return err
	}
	for range n {
		if err := <-errs; err != nil {
			return err
		}
	}
	took := time.Since(began)
	c, err := l.ask(ctx, "counted")
	fmt.Printf("| %s | %d | %.0f MiB | %s ms |\n", name, c.Executions, float64(held-before)/(1<<20), ms(took))
	return err
}

// await returns when so many requests wait in a target, none of which has been answered.
func (l *lab) await(ctx context.Context, name string, want int, answered <-chan error) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		waiting, err := l.waitersOf(ctx, name)
		if err != nil || waiting >= want {
			return err
		}
		select {
		case err := <-answered:
			return errors.Join(fmt.Errorf("one was answered while %d of %d waited", waiting, want), err)
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d wait", waiting, want)
		}
	}
}

// waitersOf is how many requests wait in a target.
func (l *lab) waitersOf(ctx context.Context, name string) (int, error) {
	if !protects(name) {
		c, err := l.ask(ctx, "counted")
		return int(c.Held), err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.admins[name]+"/idempotency/stats", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var stats struct{ Stores []struct{ Waiters int } }
	if err := json.NewDecoder(resp.Body).Decode(&stats); err != nil || len(stats.Stores) == 0 {
		return 0, fmt.Errorf("the gateway does not tell how many wait: %w", err)
	}
	return stats.Stores[0].Waiters, nil
}

// growGateways lets several gateways share one Redis.
func (l *lab) growGateways(ctx context.Context) error {
	fmt.Print("\n| gateways on one Redis | fresh requests per second | CPU of Redis per request, µs | of the gateways |\n|---:|---:|---:|---:|\n")
	redis := l.redis[gatewayRedis]
	var gateways []*process
	defer func() {
		for _, g := range gateways {
			g.stop()
		}
	}()
	for _, n := range []int{1, 2, 4, 8} {
		for len(gateways) < n {
			g, err := l.startCaddy(ctx, fmt.Sprint("gateway", len(gateways)), fmt.Sprint("gateway", len(gateways)), l.caddy, l.gatewayOn("redis redis://"+redis.addr))
			if err != nil {
				return err
			}
			gateways = append(gateways, g)
		}
		spentBy := func() (all time.Duration) {
			for _, g := range gateways {
				all += g.cpu()
			}
			return all
		}
		before, redisBefore := spentBy(), redis.cpu()
		c := &cell{kind: kindFresh, size: small, conns: 64 / n}
		f := newFresh()
		type sent struct {
			m   *measured
			err error
		}
		all := make(chan sent)
		for _, g := range gateways {
			go func() {
				m, err := send(ctx, l.load(c, gatewayRedis, g, f), 5*time.Second)
				all <- sent{m, err}
			}()
		}
		var requests, rate float64
		for range gateways {
			s := <-all
			if s.err != nil {
				return s.err
			}
			requests += float64(s.m.requests)
			rate += s.m.rate()
		}
		us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / requests }
		fmt.Printf("| %d | %s | %.0f | %.0f |\n", n, thousands(rate), us(redis.cpu()-redisBefore), us(spentBy()-before))
	}
	return nil
}
