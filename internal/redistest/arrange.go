package redistest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// client is a client for arranging things.
func (s *Server) client() *redis.Client {
	s.once.Do(func() {
		s.arranger = redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, ReadTimeout: 5 * time.Second, PoolSize: 2})
		s.t.Cleanup(func() { _ = s.arranger.Close() })
	})
	return s.arranger
}

// Do sends a command, as the one who runs the server, and returns its reply.
func (s *Server) Do(ctx context.Context, args ...any) (any, error) {
	return s.client().Do(ctx, args...).Result()
}

// do sends a command and returns its reply, nil for an error.
func (s *Server) do(args ...any) any {
	reply, err := s.client().Do(context.Background(), args...).Result()
	if err != nil {
		return nil
	}
	return reply
}

func (s *Server) must(args ...any) any {
	s.t.Helper()
	reply, err := s.client().Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("redistest: %v: %v", args, err)
	}
	return reply
}

// field returns a field of what a command reports in lines.
func (s *Server) field(command, section, field string) string {
	text, _ := s.do(command, section).(string)
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == field {
			return value
		}
	}
	return ""
}

// argument returns what stands after this one among the server's arguments.
func (s *Server) argument(name string) string { return s.args[slices.Index(s.args, name)+1] }

// IsMaster reports whether the server takes writes.
func (s *Server) IsMaster() bool { return s.field("info", "replication", "role") == "master" }

// StartReplica runs a replica of a server, and waits until it has all of its data
// and its primary knows that.
func StartReplica(t testing.TB, of *Server, args ...string) *Server {
	t.Helper()
	return startReplica(t, of, Setup{Args: args})
}

func startReplica(t testing.TB, of *Server, with Setup) *Server {
	t.Helper()
	s := start(t, server, with, func(s *Server) []string {
		return append([]string{"--replicaof", "127.0.0.1 " + of.frontPort(), "--replica-announce-port", s.frontPort()}, with.Args...)
	})
	for deadline := time.Now().Add(patience); !s.ReplicaOf(of); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("redistest: the replica never got its primary's data")
		}
	}
	return s
}

// ReplicaOf reports whether the server has all of its primary's data, and the primary
// knows that.
func (s *Server) ReplicaOf(primary *Server) bool {
	text, _ := primary.do("info", "replication").(string)
	return s.field("info", "replication", "master_link_status") == "up" && strings.Contains(text, "port="+s.frontPort()+",state=online")
}

// Offset is how much of the stream of writes the server has: its own, if it is a
// primary, or its primary's.
func (s *Server) Offset() int64 {
	n, _ := strconv.ParseInt(s.field("info", "replication", "master_repl_offset"), 10, 64)
	return n
}

// Follow starts a server again, as a replica of another one.
func (s *Server) Follow(primary *Server) {
	s.t.Helper()
	s.restart("--replicaof", "127.0.0.1 "+primary.frontPort())
}
