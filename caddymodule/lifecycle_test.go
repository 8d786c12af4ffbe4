package caddymodule

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
)

// Requests that are running when the configuration is replaced go on, on the
// store that they began with, and their repetitions find them.
func TestCAD11ReloadWhileRequestsRun(t *testing.T) {
	u, redis := newUpstream(t), fakeRedis(t)
	_, port, _ := net.SplitHostPort(redis.Addr())
	dir := site(t, "%s") // one data directory for all configurations
	config := func(n int) string {
		host := []string{"127.0.0.1", "localhost"}[n%2] // two names of one server
		return fmt.Sprintf(dir, protect(u, fmt.Sprintf("owner shared\nwait %ds\nstore redis redis://%s:%s", 20+n, host, port)))
	}
	load(t, config(0))

	const keys, duplicates = 20, 3
	answers := make(chan string, keys*duplicates)
	var clients sync.WaitGroup
	ask := func(key string) {
		clients.Go(func() {
			a := insist(t, "/hold", key)
			answers <- fmt.Sprintf("%d %s", a.status, a.body)
		})
	}
	for n := range keys {
		ask(fmt.Sprintf("k%d", n))
		<-u.entered
		if err := reload(config(n + 1)); err != nil {
			t.Fatal(err)
		}
		for range duplicates - 1 {
			ask(fmt.Sprintf("k%d", n))
		}
	}
	close(u.release)
	clients.Wait()
	close(answers)
	got := make(map[string]int)
	for a := range answers {
		got[a]++
	}
	for n := range keys {
		key := fmt.Sprintf("k%d", n)
		if want := fmt.Sprintf("200 %s /hold execution 1", key); got[want] != duplicates {
			t.Errorf("%d answers %q, of %v", got[want], want, got)
		}
		if n := u.executions(key); n != 1 {
			t.Errorf("%s: %d executions", key, n)
		}
	}
	eventually(t, "one store is open", func() bool { return openStores() == 1 })
	stop(t)
	eventually(t, "no connection to Redis is left", func() bool { return redis.CurrentConnectionCount() == 0 })
}

// A store that the new configuration no longer has is kept until the last
// request on it is done, also where its client has left.
func TestCAD11StoreOutlivesItsConfiguration(t *testing.T) {
	u := newUpstream(t)
	file := filepath.Join(t.TempDir(), "jobs.db")
	base := site(t, "%s")
	onBolt := fmt.Sprintf(base, protect(u, "owner shared\nstore bolt "+file))
	onRedis := fmt.Sprintf(base, protect(u, "owner shared\nstore redis redis://"+fakeRedis(t).Addr()))
	load(t, onBolt)
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() {
		_, err := send(ctx, "/hold", "k")
		left <- err
	}()
	<-u.entered
	if err := reload(onRedis); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-left; err == nil {
		t.Fatal("the client got an answer")
	}
	if n := openStores(); n != 2 {
		t.Fatalf("%d stores are open", n)
	}
	close(u.release)
	eventually(t, "the file is closed", func() bool { return openStores() == 1 })
	if err := reload(onBolt); err != nil {
		t.Fatal(err)
	}
	if a := insist(t, "/hold", "k"); a.body != "k /hold execution 1" || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("got %+v", a)
	}
}

// Back and forth between two files: a file is opened again while it is just
// being closed.
func TestStoreIsOpenedAgainAtOnce(t *testing.T) {
	u := newUpstream(t)
	base := site(t, "%s")
	dir := t.TempDir()
	for n := range 20 {
		load(t, fmt.Sprintf(base, protect(u, fmt.Sprintf("owner shared\nstore bolt %s/%d.db", dir, n%2))))
		if a := insist(t, "/pay", fmt.Sprintf("k%d", n%2)); a.status != 200 || (n > 1) != (a.header.Get("Idempotent-Replayed") == "true") {
			t.Fatalf("round %d: %+v", n, a)
		}
	}
}

// counted returns the present value of a counter of the running configuration.
func counted(t *testing.T, name, label string) (sum float64) {
	t.Helper()
	ctx := caddy.ActiveContext()
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				if pair.GetValue() == label {
					sum += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

func TestMOD01MetricsOutliveReloads(t *testing.T) {
	u := newUpstream(t)
	config := site(t, "handle /a {\n"+protect(u, "owner shared\nspace a")+"\n}\nhandle /b {\n"+
		protect(u, "owner shared\nspace b")+"\n}\nhandle {\n"+protect(u, "owner shared")+"\n}")
	load(t, config)
	before := counted(t, "caddy_idempotency_requests_total", "replayed")
	for n := range 20 {
		insist(t, "/a", "k")
		insist(t, "/b", "k")
		if err := reload(strings.Replace(config, "space a", fmt.Sprintf("space a\nwait %ds", n+1), 1)); err != nil {
			t.Fatal(err)
		}
	}
	if n := counted(t, "caddy_idempotency_requests_total", "replayed") - before; n != 38 {
		t.Errorf("%v replays were counted, want 38", n)
	}
	if n := counted(t, "caddy_idempotency_attempts_total", "final"); n < 2 {
		t.Errorf("%v attempts were counted", n)
	}
}

func TestMOD03ReloadsLeaveNothingBehind(t *testing.T) {
	u, redis := newUpstream(t), fakeRedis(t)
	config := site(t, protect(u, "owner shared\nwait %ds\nstore redis redis://"+redis.Addr()))
	gateways := func() int {
		stacks := make([]byte, 8<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "renewLeases(")
	}
	for n := range 100 {
		load(t, fmt.Sprintf(config, n+1))
		insist(t, "/pay", fmt.Sprintf("k%d", n))
	}
	eventually(t, "one gateway is left", func() bool { return gateways() == 1 && openStores() == 1 })
	if n := redis.CurrentConnectionCount(); n > 5 {
		t.Errorf("%d connections for one request at a time", n)
	}
	stop(t)
	eventually(t, "nothing is left", func() bool { return gateways() == 0 && redis.CurrentConnectionCount() == 0 })
}

// A configuration that fails, whenever it does, leaves the one before as it was.
func TestMOD04FailedConfigurationLeavesNothingBehind(t *testing.T) {
	u, redis, other := newUpstream(t), fakeRedis(t), miniredis.RunT(t)
	file := filepath.Join(t.TempDir(), "held.db")
	held, err := boltstore.Open(file, boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	base := site(t, "%s")
	good := fmt.Sprintf(base, protect(u, "owner shared\nstore redis redis://"+redis.Addr()))
	load(t, good)
	insist(t, "/pay", "before")
	newStores := "route /new {\n" + protect(u, "owner shared\nstore redis redis://"+other.Addr()) + "\n}\n"
	for name, c := range map[string]struct{ config, want string }{
		"in another handler's Provision": {fmt.Sprintf(base, newStores+"@bad path_regexp [\nrespond @bad x"), "path_regexp"},
		"in our own":                     {fmt.Sprintf(base, newStores+protect(u, "owner shared\nstore redis {env.NO_SUCH_VARIABLE}")), "NO_SUCH_VARIABLE"},
		"in our Start": {
			fmt.Sprintf(base, newStores+protect(u, "owner shared\nstore bolt "+file)), file,
		},
		"in another app's Start": {
			strings.Replace(fmt.Sprintf(base, newStores), "bind 127.0.0.1", "bind 192.0.2.1", 1), "192.0.2.1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := reload(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			eventually(t, "nothing is left of it", func() bool { return openStores() == 1 && other.CurrentConnectionCount() == 0 })
			if a := insist(t, "/pay", "before"); a.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("the running configuration: %+v", a)
			}
		})
	}
}

// The policy is each handler's own, also where the store is one.
func TestMOD11SettingsAreEachHandlersOwn(t *testing.T) {
	u, redis := newUpstream(t), fakeRedis(t)
	load(t, site(t, "handle /a {\n"+protect(u, "owner shared\nretention 1h\nstore redis redis://"+redis.Addr())+
		"\n}\nhandle /b {\n"+protect(u, "owner shared\nretention 2d\nspace b\nkey X-Key\nstore redis redis://"+redis.Addr())+"\n}"))
	if n := openStores(); n != 1 {
		t.Errorf("%d stores are open", n)
	}
	ttl := func(path string, header ...string) time.Duration {
		t.Helper()
		before := redis.Keys()
		if a := insist(t, path, "k", header...); a.status != 200 || a.header.Get("Idempotency-Job") == "" {
			t.Fatalf("%s: %+v", path, a)
		}
		for _, name := range redis.Keys() {
			if !strings.Contains(strings.Join(before, " "), name) {
				return redis.TTL(name).Round(time.Minute)
			}
		}
		t.Fatalf("%s: there is no record", path)
		return 0
	}
	if got := ttl("/a"); got != time.Hour {
		t.Errorf("/a is kept for %v", got)
	}
	if got := ttl("/b", "X-Key", "other"); got != 48*time.Hour {
		t.Errorf("/b is kept for %v", got)
	}
}
