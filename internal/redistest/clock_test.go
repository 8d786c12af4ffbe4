package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

// The servers that live by a clock show its time and expire by it; how long things
// take does not change.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	clock := redistest.NewClock(t)
	s := redistest.StartWith(t, redistest.Setup{Clock: clock})
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer c.Close()
	wantAhead := func(want time.Duration) {
		t.Helper()
		now, err := c.Time(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Until(now); got < want-time.Minute || got > want+time.Minute {
			t.Errorf("the server's clock is %s ahead, want %s", got, want)
		}
	}
	wantAhead(0)
	if err := c.Set(ctx, "k", "v", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	clock.Step(-2 * time.Hour)
	wantAhead(-2 * time.Hour)
	if got := c.Get(ctx, "k").Val(); got != "v" {
		t.Errorf("before its time there is %q", got)
	}
	if ahead := clock.Step(5 * time.Hour); ahead != 3*time.Hour {
		t.Errorf("the clock says that it is %s ahead", ahead)
	}
	wantAhead(3 * time.Hour)
	if got := c.Get(ctx, "k").Val(); got != "" {
		t.Errorf("after its time there is %q", got)
	}
	s.Restart()
	wantAhead(3 * time.Hour)
	began := time.Now()
	if err := c.BLPop(ctx, 100*time.Millisecond, "nothing").Err(); err != redis.Nil { //nolint:errorlint // go-redis returns it as it is
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("100 ms took %s", took)
	}
}
