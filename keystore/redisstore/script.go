package redisstore

import (
	"context"
	_ "embed"
	"strings"

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
	//go:embed index.lua
	indexLua string

	createScript = redis.NewScript(createLua)
	swapScript   = redis.NewScript(swapLua)
	flagScript   = redis.NewScript(flagLua)
	staleScript  = redis.NewScript(staleLua)
	indexScript  = redis.NewScript(indexLua)

	sources = map[*redis.Script]string{
		createScript: createLua, swapScript: swapLua, flagScript: flagLua, staleScript: staleLua, indexScript: indexLua,
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

// runFull runs a script on a server that has refused it because its memory is full,
// with why, past its limit. Servers before Redis 7.0 don't do that.
func (n *node) runFull(ctx context.Context, why error, script *redis.Script, key string, args ...any) (any, error) {
	cmd := redis.NewCmd(ctx, scriptArgs("eval", "#!lua flags=allow-oom\n"+sources[script], key, args)...)
	err := n.do(ctx, cmd)
	switch {
	case err == redis.Nil: //nolint:errorlint // as above
		return nil, nil
	case err != nil && strings.Contains(err.Error(), "ompiling script"):
		return nil, why
	case err != nil:
		return nil, scriptError{err}
	}
	return cmd.Val(), nil
}

func scriptArgs(command, script, key string, args []any) []any {
	all := make([]any, 0, 4+len(args))
	return append(append(all, command, script, 1, key), args...)
}
