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

	sources = map[*redis.Script]string{
		createScript: createLua, swapScript: swapLua, flagScript: flagLua, staleScript: staleLua,
	}
)

// run runs a script by its digest, and by its source where the server does not
// know that: it forgets scripts when it restarts and when a replica takes over.
// Never in a pipeline, where there is no second chance: see [Store.sendSwaps].
//
// The reply is nil for none.
func (n *node) run(ctx context.Context, script *redis.Script, key string, args ...any) (any, error) {
	cmd := redis.NewCmd(ctx, scriptArgs("evalsha", script.Hash(), key, args)...)
	err := n.do(ctx, cmd)
	if isNoScript(err) {
		cmd = redis.NewCmd(ctx, scriptArgs("eval", sources[script], key, args)...)
		err = n.do(ctx, cmd)
	}
	switch {
	case err == redis.Nil: //nolint:errorlint // never wrapped, and this is a hot path
		return nil, nil
	case err != nil:
		return nil, scriptError{err}
	}
	return cmd.Val(), nil
}

func scriptArgs(command, script, key string, args []any) []any {
	all := make([]any, 0, 4+len(args))
	return append(append(all, command, script, 1, key), args...)
}
