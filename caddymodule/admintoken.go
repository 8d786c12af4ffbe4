package caddymodule

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() { httpcaddyfile.RegisterGlobalOption(directive, parseGlobalOption) }

// parseGlobalOption sets up the app from Caddyfile tokens:
//
//	idempotency {
//		admin_token <token>
//	}
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	const usage = "write `admin_token {env.IDEMPOTENCY_ADMIN_TOKEN}`, or `admin_token {file./path/of/a/file}`"
	d.Next()
	if existing != nil {
		return nil, d.Errf("%s: given twice; keep one block", directive)
	}
	if d.NextArg() {
		return nil, d.Errf("%s %s: takes no arguments here; write options into its block", directive, d.Val())
	}
	app := new(App)
	for d.NextBlock(0) {
		if d.Val() != "admin_token" {
			return nil, d.Errf("%s: there is no such global option; there is admin_token, and what concerns requests belongs into a site", d.Val())
		}
		if app.AdminToken != "" {
			return nil, d.Errf("admin_token: given twice; keep one of them")
		}
		args := d.RemainingArgs()
		if len(args) != 1 || args[0] == "" {
			return nil, d.Errf("admin_token: takes one token; %s", usage)
		}
		app.AdminToken = args[0]
	}
	return httpcaddyfile.App{Name: appName, Value: caddyconfig.JSON(app, nil)}, nil
}

// tokenDigest is what the app keeps of its token. Digests are of one length, so
// that comparing them tells nothing of the token's.
type tokenDigest [sha256.Size]byte

// provisionToken resolves the token.
func (a *App) provisionToken() error {
	if a.AdminToken == "" {
		return nil
	}
	token, err := caddy.NewReplacer().ReplaceOrErr(a.AdminToken, true, true)
	if err != nil {
		return fmt.Errorf("admin_token: %w; is the environment variable or file that it stands for there?", err)
	}
	token = strings.TrimSpace(token)
	switch {
	case token == "":
		return errors.New("admin_token: it is empty; set it, or leave the option out")
	case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
		return errors.New("admin_token: has a character that is not visible ASCII, and can't be sent in a header")
	}
	digest := tokenDigest(sha256.Sum256([]byte(token)))
	a.token = &digest
	return nil
}

// authorize refuses a call of the admin API without the token, where there is one.
func (a *App) authorize(r *http.Request) error {
	if a.token == nil {
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given := sha256.Sum256([]byte(strings.TrimSpace(token)))
	same := subtle.ConstantTimeCompare(given[:], a.token[:]) == 1
	if !same || !strings.EqualFold(scheme, "Bearer") {
		return newAdminError(http.StatusUnauthorized, codeUnauthorized,
			"the admin token is missing or wrong; send the admin_token of the running configuration as Authorization: Bearer <token>")
	}
	return nil
}
