package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

// openAt returns a store that is closed at the test's end.
func openAt(t testing.TB, url string, change ...func(*Options)) *Store {
	t.Helper()
	o := Options{URL: url, Timeout: 5 * time.Second} // others compile on this machine too
	for _, f := range change {
		f(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// rawClient is a client for what a test does behind the store's back.
func rawClient(t testing.TB, url string) *redis.Client {
	t.Helper()
	opt, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func recordKey(n keystore.Name) string { return RecordKey(DefaultPrefix, n) }

func garble(url string) func(t testing.TB, name keystore.Name, raw []byte) {
	return func(t testing.TB, name keystore.Name, raw []byte) {
		t.Helper()
		if err := rawClient(t, url).Set(context.Background(), recordKey(name), raw, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// onMiniredis makes backends with a clock that only tests move.
func onMiniredis(t testing.TB) storetest.Backend {
	t.Helper()
	m := miniredis.RunT(t)
	url := "redis://" + m.Addr()
	now := time.Now()
	m.SetTime(now)
	var mu sync.Mutex
	var stores []*Store
	return storetest.Backend{
		Open: func(t testing.TB) keystore.Store {
			s := openAt(t, url, func(o *Options) { o.Timeout = patience }) // its scripts take their time
			mu.Lock()
			defer mu.Unlock()
			stores = append(stores, s)
			return s
		},
		Advance: func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(d)
			m.SetTime(now)
			m.FastForward(d)
			for _, s := range stores {
				if err := s.sampleClock(context.Background()); err != nil {
					t.Errorf("sample the clock: %v", err)
				}
			}
		},
		Garble: garble(url),
	}
}

func onRedis(t testing.TB) storetest.Backend {
	t.Helper()
	url := redistest.Start(t).URL()
	return storetest.Backend{
		Open:    func(t testing.TB) keystore.Store { return openAt(t, url) },
		Advance: time.Sleep,
		Garble:  garble(url),
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func(testing.TB) storetest.Backend{
		"miniredis": onMiniredis, "redis": onRedis,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, backend)
		})
	}
}
