package e2e

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// observer is the name of the connections that are not a gateway's.
const observer = "observer"

// redisServer is a real server, and a look behind the gateway's back.
type redisServer struct {
	*redistest.Server
	t *testing.T
	c *redis.Client
}

func startRedis(t *testing.T, args ...string) *redisServer {
	t.Helper()
	s := redistest.Start(t, args...)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), DisableIdentity: true, ClientName: observer})
	t.Cleanup(func() { _ = c.Close() })
	return &redisServer{Server: s, t: t, c: c}
}

// startDurableRedis starts one that has on its disk what it has acknowledged.
func startDurableRedis(t *testing.T) *redisServer {
	t.Helper()
	return startRedis(t, "--appendonly", "yes", "--appendfsync", "always")
}

// store is what follows the word store in a Caddyfile.
func (s *redisServer) store() string { return "redis " + s.URL() }

// storeAt is store for another address of the same server.
func storeAt(addr string) string { return "redis redis://" + addr }

// do sends a command and returns its reply, or fails the test.
func (s *redisServer) do(args ...any) any {
	s.t.Helper()
	reply, err := s.c.Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("redis: %v: %v", args[0], err)
	}
	return reply
}

// recordKey is the name of the record of alice's job in the space main.
func recordKey(key string) string {
	return redisstore.RecordKey(redisstore.DefaultPrefix, keystore.NameOf("main", "alice", key))
}

func (s *redisServer) exists(key string) bool {
	s.t.Helper()
	return s.do("EXISTS", recordKey(key)) == int64(1)
}

// records returns the keys of all records.
func (s *redisServer) records() (keys []string) {
	s.t.Helper()
	all := s.c.Scan(context.Background(), 0, redisstore.DefaultPrefix+"j:*", 1000).Iterator()
	for all.Next(context.Background()) {
		keys = append(keys, all.Val())
	}
	if err := all.Err(); err != nil {
		s.t.Fatalf("redis: scan: %v", err)
	}
	return keys
}

// open returns a store on this server, as a gateway has one.
func (s *redisServer) open() *redisstore.Store {
	s.t.Helper()
	store, err := redisstore.Open(redisstore.Options{URL: s.URL()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = store.Close() })
	return store
}

// info returns a field of INFO as a number.
func (s *redisServer) info(section, field string) int {
	s.t.Helper()
	text := s.do("INFO", section).(string)
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == field {
			n, err := strconv.Atoi(value)
			if err != nil {
				s.t.Fatalf("redis: %s: %v", field, err)
			}
			return n
		}
	}
	s.t.Fatalf("redis: INFO %s has no %s", section, field)
	return 0
}

// clients returns how many connections gateways have.
func (s *redisServer) clients() (n int) {
	s.t.Helper()
	for line := range strings.Lines(s.do("CLIENT", "LIST").(string)) {
		if !strings.Contains(line, "name="+observer) {
			n++
		}
	}
	return n
}

// getJob reads alice's job from a store.
func getJob(t *testing.T, store keystore.Store, key string) *keystore.Job {
	t.Helper()
	j, err := store.Get(context.Background(), keystore.NameOf("main", "alice", key))
	if err != nil {
		t.Fatalf("read job %q: %v", key, err)
	}
	return j
}

// onEachStore runs a test on the embedded store and on Redis.
func onEachStore(t *testing.T, test func(t *testing.T, store string)) {
	t.Run("bolt", func(t *testing.T) {
		t.Parallel()
		test(t, "bolt")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, startDurableRedis(t).store())
	})
}
