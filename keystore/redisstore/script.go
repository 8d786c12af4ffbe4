package redisstore

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed create.lua
	createLua string
	//go:embed swap.lua
	swapLua string
	//go:embed flag.lua
	flagLua string
	//go:embed stale.lua
	staleLua string

	createScript = redis.NewScript(createLua)
	swapScript   = redis.NewScript(swapLua)
	flagScript   = redis.NewScript(flagLua)
	staleScript  = redis.NewScript(staleLua)
)

// run runs a script by its digest, and by its source where the server does not
// know that: it forgets scripts when it restarts and when a replica takes over.
// Never in a pipeline, where there is no second chance: see [Store.sendSwaps].
//
// The reply is nil for none.
func (s *Store) run(ctx context.Context, script *redis.Script, key string, args ...any) (any, error) {
	reply, err := script.Run(ctx, s.client, []string{key}, args...).Result()
	switch {
	case err == redis.Nil: //nolint:errorlint // never wrapped, and this is a hot path
		return nil, nil
	case err != nil:
		return nil, scriptError{err}
	}
	return reply, nil
}
