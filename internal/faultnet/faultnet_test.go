package faultnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: 200 * time.Millisecond, DisableIdentity: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFaults(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	direct := client(t, server.Addr())
	proxy := faultnet.New(t, server.Addr())
	c := client(t, proxy.Addr())

	value := func(want string) {
		t.Helper()
		if got, err := direct.Get(ctx, "n").Result(); got != want {
			t.Fatalf("the server has %q, %v; want %q", got, err, want)
		}
	}
	incr := func(what string, wantErr func(error) bool) {
		t.Helper()
		if err := c.Incr(ctx, "n").Err(); !wantErr(err) {
			t.Fatalf("%s: got error %v", what, err)
		}
	}
	none := func(err error) bool { return err == nil }
	cut := func(err error) bool {
		return errors.Is(err, io.EOF) || (err != nil && strings.Contains(err.Error(), "reset"))
	}
	timeout := func(err error) bool {
		var ne net.Error
		return errors.As(err, &ne) && ne.Timeout()
	}

	incr("forward", none)
	value("1")
	proxy.Inject(faultnet.Fault{Command: "incr", Do: faultnet.LoseReplyAndCut, Times: 1})
	incr("reply lost and cut", cut)
	value("2")
	incr("once only", none)
	value("3")
	proxy.Inject(faultnet.Fault{Command: "INCR", Do: faultnet.LoseReplyAndHang, Times: 1})
	incr("reply lost and silence", timeout)
	value("4")
	proxy.Inject(faultnet.Fault{Command: "incr", Do: faultnet.CutBefore, Times: 1})
	incr("cut before", cut)
	value("4")
	proxy.Inject(faultnet.Fault{Command: "incr", Do: faultnet.Answer, Times: 1, Reply: "-OOM no\r\n"})
	incr("answered", func(err error) bool { return err != nil && err.Error() == "OOM no" })
	value("4")
	began := time.Now()
	remove := proxy.Inject(faultnet.Fault{Command: "incr", Do: faultnet.Delay, Delay: 20 * time.Millisecond})
	incr("delayed", none)
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Errorf("delayed by %s", took)
	}
	remove()
	value("5")

	parked := proxy.Park("incr")
	incr("parked", timeout) // the client gives up
	<-parked.Arrived()
	value("5")
	parked.Release()
	<-parked.Answered()
	value("6")

	if n := proxy.Count("incr"); n != 8 {
		t.Errorf("counted %d INCR, want 8", n)
	}
	proxy.CutAll()
	eventually(t, func() bool { return c.Incr(ctx, "n").Err() == nil })
}

func TestChanceIsRepeatable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	run := func() (pattern string) {
		proxy := faultnet.New(t, server.Addr())
		proxy.Inject(faultnet.Fault{Command: "ping", Do: faultnet.Answer, Reply: "+no\r\n", Chance: 0.3, Seed: 7})
		c := client(t, proxy.Addr())
		for range 50 {
			pattern += c.Ping(context.Background()).Val() + " "
		}
		return pattern
	}
	first, second := run(), run()
	if first != second {
		t.Errorf("got\n%s and then\n%s", first, second)
	}
	if n := strings.Count(first, "no"); n < 5 || n > 30 {
		t.Errorf("%d of 50 were hit", n)
	}
}

func TestPipelinesAndSubscriptions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server, other := redistest.Start(t), redistest.Start(t)
	proxy := faultnet.New(t, server.Addr())
	c := client(t, proxy.Addr())
	subscription := c.Subscribe(ctx, "news")
	defer subscription.Close()
	if _, err := subscription.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	pipe := c.Pipeline()
	big := strings.Repeat("x", 1<<20)
	pipe.Set(ctx, "big", big, 0)
	get := pipe.Get(ctx, "big")
	pipe.HSet(ctx, "hash", "a", 1, "b", 2)
	all := pipe.HGetAll(ctx, "hash")
	pipe.Publish(ctx, "news", "hello")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	if get.Val() != big || len(all.Val()) != 2 {
		t.Errorf("got %d bytes and %v", len(get.Val()), all.Val())
	}
	if m, err := subscription.ReceiveMessage(ctx); err != nil || m.Payload != "hello" {
		t.Errorf("got %v, %v", m, err)
	}

	if err := c.Get(ctx, "big").Err(); err != nil { // not by the pipeline's connection
		t.Fatal(err)
	}
	accepted := proxy.Accepted()
	proxy.Redirect(other.Addr())
	if err := c.Get(ctx, "big").Err(); err != nil {
		t.Errorf("an old connection has moved: %v", err)
	}
	if err := client(t, proxy.Addr()).Get(ctx, "big").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("a new connection has not moved: %v", err)
	}
	if got := proxy.Accepted(); got != accepted+1 {
		t.Errorf("accepted %d connections since, want 1", got-accepted)
	}
}

func eventually(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came")
		}
	}
}
