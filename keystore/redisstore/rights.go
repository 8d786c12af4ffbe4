package redisstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// missingRights tries every command that the store needs, also inside its scripts, on
// keys that are nobody's, and returns those that the server does not let this user
// run. A server of a cluster that does not have these keys checks the rights first.
func (s *Store) missingRights(n *node) (missing []string, err error) {
	text, set, channel := s.prefix+"probe", s.prefix+"probe:index", s.channel()
	commands := [][]any{
		{"get", text},
		{"set", text, "probe", "px", 1000, "nx", "get"},
		{"getrange", text, 0, 33},
		{"setrange", text, 0, "p"},
		{"pexpire", text, 1000},
		{"eval", "return 1", 1, text},
		{"evalsha", swapScript.Hash(), 1, text, "", "", "-1", channel, ""},
		{"del", text},
		{"zadd", set, 0, "probe"},
		{"zscore", set, "probe"},
		{"zrangebyscore", set, 0, 0},
		{"zrem", set, "probe"},
		{"scan", 0, "match", escapeGlob(text), "count", 1},
		{"publish", channel, ""},
		{"time"},
	}
	if s.durability.Replicas > 0 {
		commands = append(commands, []any{"wait", 0, 1})
	}
	if s.durability.Fsync && !s.noWaitAOF.Load() {
		commands = append(commands, []any{"waitaof", 0, 0, 1})
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	began := time.Now()
	pipe := n.Client.Pipeline()
	for _, c := range commands {
		pipe.Do(ctx, c...)
	}
	cmds, err := pipe.Exec(ctx)
	s.note(ctx, n, began, notNil(err))
	if err != nil && !errors.As(err, new(redis.Error)) {
		return nil, err
	}
	for _, cmd := range cmds {
		if denied(cmd.Err()) {
			missing = append(missing, cmd.Name())
		}
	}
	sub := n.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(ctx); denied(err) {
		missing = append(missing, "subscribe")
	}
	return missing, nil
}

func denied(err error) bool {
	return err != nil && strings.Contains(err.Error(), "NOPERM")
}
