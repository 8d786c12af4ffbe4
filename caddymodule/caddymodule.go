// Package caddymodule makes the gateway a part of Caddy: the app "idempotency",
// the HTTP handler of the same name, the modules that open its stores, and the
// handler's Caddyfile syntax. What happens to a request is decided in package
// proxy, which knows nothing of Caddy.
package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	caddy.RegisterModule(new(App))
	caddy.RegisterModule(new(Handler))
	caddy.RegisterModule(new(StatusHandler))
	caddy.RegisterModule(new(Console))
	caddy.RegisterModule(new(RedisStore))
	caddy.RegisterModule(new(BoltStore))

	httpcaddyfile.RegisterHandlerDirective(directive, parseCaddyfile)
	// Inside of authentication, which tells whose request it is, and of encode,
	// so that a stored answer is compressed anew for each client; outside of
	// everything that answers, or does something with an answer: that is done once.
	httpcaddyfile.RegisterDirectiveOrder(directive, httpcaddyfile.Before, "intercept")

	httpcaddyfile.RegisterHandlerDirective(statusDirective, parseStatusCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder(statusDirective, httpcaddyfile.Before, "respond")

	httpcaddyfile.RegisterHandlerDirective(consoleDirective, parseConsoleCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder(consoleDirective, httpcaddyfile.Before, "respond")

	// Once for the whole process: at this point all apps have stopped, in
	// whatever order, so that no server takes requests any more.
	caddy.OnExit(finishDraining)
}
