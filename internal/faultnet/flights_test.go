package faultnet_test

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

// bundle sends n commands before it reads the first reply. They are too large to
// be written in one piece.
func bundle(t *testing.T, c *redis.Client, n int) error {
	t.Helper()
	pipe := c.Pipeline()
	for range n {
		pipe.Append(context.Background(), "log", strings.Repeat("x", 10<<10))
	}
	_, err := pipe.Exec(context.Background())
	return err
}

func TestFlights(t *testing.T) {
	t.Parallel()
	proxy := faultnet.New(t, redistest.Start(t).Addr())
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr(), MaxRetries: -1, DisableIdentity: true, PoolSize: 1})
	t.Cleanup(func() { _ = c.Close() })
	want := func(flights int) {
		t.Helper()
		if got := proxy.Flights("append"); got != flights {
			t.Fatalf("%d flights, want %d", got, flights)
		}
	}
	for range 7 {
		if err := bundle(t, c, 1); err != nil {
			t.Fatal(err)
		}
	}
	want(7)
	proxy.Gather("append", 100)
	for range 3 {
		if err := bundle(t, c, 100); err != nil {
			t.Fatal(err)
		}
	}
	want(10)
	if err := bundle(t, c, 250); err != nil { // two and a half: the rest after some silence
		t.Fatal(err)
	}
	if err := bundle(t, c, 1); err != nil {
		t.Fatal(err)
	}
	if got := proxy.Flights("append"); got < 12 {
		t.Errorf("%d flights, want at least 12", got)
	}
	if err := c.Ping(context.Background()).Err(); err != nil { // not gathered
		t.Error(err)
	}
	if got, want := proxy.Count("append"), 7+300+251; got != want {
		t.Errorf("%d commands, want %d", got, want)
	}
}

func TestSkip(t *testing.T) {
	t.Parallel()
	proxy := faultnet.New(t, redistest.Start(t).Addr())
	c := client(t, proxy.Addr())
	proxy.Inject(faultnet.Fault{Command: "append", Do: faultnet.Answer, Reply: "-ERR no\r\n", Skip: 2, Times: 1})
	for i := range 5 {
		if err := c.Append(context.Background(), "log", "x").Err(); (err != nil) != (i == 2) {
			t.Errorf("command %d: %v", i, err)
		}
	}
}
