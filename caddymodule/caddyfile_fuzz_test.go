package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// FuzzCaddyfile: whatever is written into a Caddyfile is read or refused with the
// file and line, and never ends the process. What is read is valid.
func FuzzCaddyfile(f *testing.F) {
	full := readFile(f, "testdata/full.caddyfiletest")
	full, _, _ = strings.Cut(full, "\n----------\n")
	_, full, _ = strings.Cut(full, "\n")                          // without the site's address
	f.Add(strings.TrimSpace(full[:strings.LastIndex(full, "}")])) // nor its end
	for _, options := range []string{
		"", "owner shared", "owner {http.auth.user.id}\nstore bolt\nspace \"\"", "owner shared\nfingerprint json {\nignore /a \"\" ~ /~2\n}", "fingerprint raw {\ninclude_header a A\n",
		"owner shared\nreconcile {\nlookup GET /a\nheader A b\nsucceeded 200\ncancelled 404 after 2m\nreplay_from /x\n}", "outcome 200 final\noutcome 200 failed", "owner shared\nstore redis {\n}\n}",
		"key \"\" required", "waiters 1 {", "owner shared\nlabel {http.request.header.x}\nstatus_path /a", "owner shared\nmax_request_body 1e3\nlease 1d1h", "store", "owner `\n`", "owner shared # x", "owner <<E\nshared\nE",
		"owner shared\nprovider a {\nrespond a\n}", "owner shared\nfailover off\nmax_attempts 2\nrace after 1s\nunproven allow", "owner shared\ncontract c {\nstatus 200\nrequire_header a b\nmax_size 1\non_violation failed\nproof_max_age 1h\ncase x\nschema y\n}",
	} {
		f.Add("idempotency {\n" + options + "\n}")
	}
	f.Add("idempotency")
	f.Add("idempotency x {\nowner shared\n}")
	f.Fuzz(func(t *testing.T, text string) {
		tokens, err := caddyfile.Tokenize([]byte(text), "Fuzzed")
		if err != nil || len(tokens) == 0 {
			return
		}
		for _, module := range []caddyfile.Unmarshaler{new(Handler), new(StatusHandler)} {
			err := module.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens))
			if err != nil && !strings.Contains(err.Error(), "at Fuzzed:") {
				t.Errorf("%q: refused without a place: %v", text, err)
			}
			if h, ok := module.(*Handler); ok && err == nil {
				if err := h.check(); err != nil {
					t.Errorf("%q: taken, and not valid: %v", text, err)
				}
			}
		}
	})
}
