// Command gateway is Caddy with this module and the standard ones: what the
// tests of the folder above build and run.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-idempotency/caddy-idempotency/caddymodule"
)

func main() { caddycmd.Main() }
