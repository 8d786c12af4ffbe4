package redistest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

func TestLife(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: 100 * time.Millisecond, MaxRetries: -1})
	defer c.Close()
	eventually := func(what string, f func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it never came: %s", what)
			}
		}
	}
	kept := func() bool { return c.Get(ctx, "k").Val() == "v" }

	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Kill()
	if err := c.Get(ctx, "k").Err(); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	eventually("the value is back after a kill", kept)
	s.Stop()
	s.Restart()
	eventually("the value is back after a stop", kept)
	s.Freeze()
	if err := c.Get(ctx, "k").Err(); err == nil {
		t.Error("a frozen server answers")
	}
	s.Thaw()
	eventually("the server goes on", kept)
	s.Freeze()
	s.Restart()
	eventually("a frozen server can be restarted", kept)

	u := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket()})
	defer u.Close()
	if got := u.Get(ctx, "k").Val(); got != "v" {
		t.Errorf("over the socket: got %q", got)
	}
}

// TestNothingIsLeft: neither process nor data outlive the test.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	var socket, addr string
	t.Run("server", func(t *testing.T) {
		s := redistest.Start(t)
		socket, addr = s.Socket(), s.Addr()
	})
	if _, err := os.Stat(socket); err == nil {
		t.Error("the data directory is still there")
	}
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer c.Close()
	if c.Ping(context.Background()).Err() == nil {
		t.Error("the server is still there")
	}
}
