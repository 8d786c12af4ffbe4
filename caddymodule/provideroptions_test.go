package caddymodule

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const twoProviders = "owner shared\nprovider a {\nrespond a\n}\nprovider b {\nrespond b\n}\n"

// What is wrong about providers is told with the line it is in, the option, and
// what to do.
func TestWrongProvidersAreRefusedWithLineAndRemedy(t *testing.T) {
	t.Parallel()
	const contract = "contract c {\ncase testdata/contract/charge.http\n"
	for _, c := range []wrongOptions{
		{"no name", "owner shared\nprovider {\nrespond a\n}", "provider {", []string{"`provider <name> { <directives> }`"}},
		{"two names", "owner shared\nprovider a b {\nrespond a\n}", "provider a b", []string{"provider a b: write `provider <name>"}},
		{"a name with a slash", "owner shared\nprovider a/b {\nrespond a\n}", "provider a/b", []string{`provider "a/b": not a name`, "hyphens"}},
		{"no block", "owner shared\nprovider a", "provider a", []string{"provider a: has no directives", "reverse_proxy"}},
		{"an empty block", "owner shared\nprovider a {\n}", "provider a", []string{"has no directives"}},
		{"only our own", "owner shared\nprovider a {\nsend_key X-A\n}", "provider a", []string{"has no directives"}},
		{"no directive", "owner shared\nprovider a {\nproxy_reverse x\n}\nspace x", "}\nspace", []string{"provider a: unrecognized directive: proxy_reverse"}},
		{"a name twice", "owner shared\nprovider a {\nrespond a\n}\nspace x\nprovider a {\nabort\n}", "provider a {\nabort", []string{"provider a: given twice"}},
		{"no header for the key", "owner shared\nprovider a {\nsend_key\nrespond a\n}", "send_key", []string{"`send_key <header>` once in provider a"}},
		{"two headers for the key", "owner shared\nprovider a {\nsend_key X-A\nsend_key X-B\nrespond a\n}", "send_key X-B", []string{"once in provider a"}},
		{"a key in the framing", "owner shared\nprovider a {\nsend_key Host\nrespond a\n}", "send_key Host", []string{"send_key Host", "would break the request"}},
		{"a provider in a provider", "owner shared\nprovider a {\nidempotency {\nowner shared\n}\n}", "provider a", []string{"idempotency: a provider can't have jobs of its own"}},
		{"a named route", "owner shared\nspace x\nprovider a {\ninvoke bank\n}", "provider a", []string{"invoke bank", "import"}},
		{"a retry", "owner shared\nspace x\nprovider a {\nreverse_proxy x {\nlb_retry_match {\nmethod POST\n}\n}\n}", "provider a", []string{"lb_retry_match: would send a request again", "remove it", "lb_retries"}},
		{"a retry, hidden", "owner shared\nspace x\nprovider a {\nroute /a {\nhandle {\nphp_fastcgi x {\nlb_retry_match {\nmethod POST\n}\n}\n}\n}\n}", "provider a", []string{"lb_retry_match"}},

		{"another failover", twoProviders + "failover maybe", "failover maybe", []string{"must be on or off"}},
		{"failover to nobody", "owner shared\nspace x\nfailover on", "failover on", []string{"two providers or more"}},
		{"attempts at nobody", "owner shared\nspace x\nprovider a {\nrespond a\n}\nmax_attempts 2", "max_attempts 2", []string{"two providers or more"}},
		{"no attempt", twoProviders + "max_attempts 0", "max_attempts 0", []string{"from 1 to 16"}},
		{"too many attempts", twoProviders + "unproven allow\nmax_attempts 17", "max_attempts 17", []string{"from 1 to 16"}},
		{"attempts without failover", twoProviders + "failover off\nmax_attempts 2", "max_attempts 2", []string{"with failover off", "remove one"}},
		{"race with nobody", "owner shared\nspace x\nrace after 5s", "race after", []string{"two providers or more"}},
		{"race from the start", twoProviders + "race 5s", "race 5s", []string{"`race after <duration>`"}},
		{"race after nothing", twoProviders + "race after 0s", "race after", []string{"`race after <duration>`", "10s"}},
		{"race after the timeout", twoProviders + "unproven allow\nrace after 2m", "race after 2m", []string{"would never begin before timeout", "lower it"}},
		{"unproven nobody", "owner shared\nspace x\nunproven allow", "unproven allow", []string{"two providers or more"}},
		{"another unproven", twoProviders + "unproven deny", "unproven deny", []string{"the only word is allow"}},
		{"nothing shows", twoProviders + "space x", "provider b", []string{"provider b: would take the place of a", "contract", "`unproven allow`"}},
		{"nothing shows to repetitions", twoProviders + "failover off\nspace x", "provider b", []string{"`unproven allow`"}},
		{"nothing shows to racers", twoProviders + "failover off\nrace after 5s", "provider b", []string{"`unproven allow`"}},
		{"nothing to prove by", twoProviders + "contract c {\nstatus 200\n}\nspace x", "contract c", []string{"contract c: has no case", "`case <file>`", "`unproven allow`"}},

		{"contract without a name", "owner shared\nspace x\ncontract {\nstatus 200\n}", "contract {", []string{"`contract <name> { … }`"}},
		{"another option", "owner shared\ncontract c {\nstatuses 200\n}", "statuses", []string{"statuses: there is no such option of contract", "status"}},
		{"status of another kind", "owner shared\ncontract c {\nstatus 200 301\n}", "status 200", []string{"301 is not a status", "200 to 299", "outcome"}},
		{"status twice", "owner shared\ncontract c {\nstatus 200 200\n}", "status 200", []string{"200 is given twice"}},
		{"no schema", "owner shared\ncontract c {\nmax_size 1KiB\nschema testdata/none.json\n}", "schema", []string{"contract schema testdata/none.json"}},
		{"no proper schema", "owner shared\ncontract c {\nmax_size 1KiB\nschema testdata/contract/charge.http\n}", "schema", []string{"contract schema"}},
		{"no case", "owner shared\ncontract c {\nmax_size 1KiB\ncase testdata/none*.http\n}", "case", []string{"no such file", "working directory"}},
		{"no proper case", "owner shared\nspace x\ncontract c {\ncase testdata/minimal.caddyfiletest\n}", "contract c", []string{"testdata/minimal.caddyfiletest:1"}},
		{"header twice", "owner shared\ncontract c {\nrequire_header X-A\nrequire_header x-a b\n}", "require_header x-a", []string{"given twice"}},
		{"no header", "owner shared\nspace x\ncontract c {\nrequire_header X:A\n}", "contract c", []string{"X:A", "not a field"}},
		{"another violation", "owner shared\ncontract c {\non_violation final\n}", "on_violation", []string{"must be failed", "or unknown"}},
		{"no age", "owner shared\n" + contract + "proof_max_age 0\n}", "proof_max_age", []string{"at least 1ms"}},
		{"no size", "owner shared\n" + contract + "max_size much\n}", "max_size", []string{"not a size"}},
	} {
		t.Run(c.name, c.refused)
	}
}

// What a Caddyfile can't say is refused as well.
func TestWrongProvidersInJSONAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ config, want string }{
		"no name":         {`{"owner": "shared", "providers": [{"handle": [{"handler": "static_response"}]}]}`, `provider "": not a name`},
		"twice":           {`{"owner": "shared", "providers": [{"name": "a", "handle": [{"handler": "static_response"}]}, {"name": "a", "handle": [{"handler": "static_response"}]}]}`, "provider a: given twice"},
		"no handlers":     {`{"owner": "shared", "providers": [{"name": "a"}]}`, "provider a: has no handlers"},
		"another handler": {`{"owner": "shared", "providers": [{"name": "a", "handle": [{"handler": "nothing"}]}]}`, "provider a"},
		"a retry": {
			`{"owner": "shared", "providers": [{"name": "a", "handle": [{"handler": "subroute", "routes": [{"handle": [{"handler": "reverse_proxy", "load_balancing": {"retry_match": [{"method": ["POST"]}]}}]}]}]}]}`,
			"lb_retry_match",
		},
		"no contract": {`{"owner": "shared", "contract": {"statuses": [200]}}`, "contract: has no name"},
		"a status":    {`{"owner": "shared", "contract": {"name": "c", "statuses": [404]}}`, "status 404"},
	} {
		t.Run(name, func(t *testing.T) {
			config := fmt.Sprintf(`{"admin": {"disabled": true}, "apps": {"http": {"servers": {"s": {"listen": [":80"], "routes": [{"handle": [%s]}]}}}}}`,
				strings.Replace(c.config, "{", `{"handler": "idempotency",`, 1))
			if err := validateJSON([]byte(config)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The digest is of what a provider does, and of nothing else.
func TestDigestOfAProvider(t *testing.T) {
	t.Setenv("KEY", "1")
	keyHeader := "Idempotency-Key"
	digest := func(site string) string {
		t.Helper()
		adapted, err := adaptAsIs(site)
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(string(adapted), `"providers":`)
		var providers []*Provider
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&providers); err != nil {
			t.Fatal(err)
		}
		d, err := providers[0].digest(keyHeader, "X-Default")
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	site := func(before, block string) string {
		return ":80 {\n" + before + "\nidempotency {\nowner shared\nprovider a {\n" + block + "\n}\n}\n}\n"
	}
	const block = "@a path /a\nhandle @a {\nreverse_proxy x {\nheader_up X-Key {env.KEY}\nlb_retries 2\n}\n}\nhandle {\nrespond 404\n}"
	own := digest(site("", block))
	for name, same := range map[string]string{
		"other groups before":  site("handle /b {\nrespond b\n}\nhandle /c {\nrespond c\n}", block),
		"the same header":      site("", block+"\nsend_key x-default"),
		"settings in an order": site("", strings.Replace(block, "header_up X-Key {env.KEY}\nlb_retries 2", "lb_retries 2\nheader_up X-Key {env.KEY}", 1)),
		"another name":         strings.Replace(site("", block), "provider a", "provider z", 1),
	} {
		if digest(same) != own {
			t.Errorf("%s: another digest", name)
		}
	}
	for name, other := range map[string]string{
		"another upstream":    strings.Replace(block, "reverse_proxy x", "reverse_proxy y", 1),
		"another placeholder": strings.Replace(block, "env.KEY", "env.KEY2", 1),
		"another key header":  block + "\nsend_key X-Other",
		"another order":       "handle {\nrespond 404\n}\n@a path /a\nroute @a {\nreverse_proxy x\n}",
		"another number":      strings.Replace(block, "lb_retries 2", "lb_retries 3", 1),
	} {
		if digest(site("", other)) == own {
			t.Errorf("%s: the same digest", name)
		}
	}
	t.Setenv("KEY", "2")
	if digest(site("", block)) == own {
		t.Error("another environment: the same digest")
	}
	t.Setenv("KEY", "1")
	if keyHeader = "idempotency-key"; digest(site("", block)) != own {
		t.Error("the same header for the client's key: another digest")
	}
	if keyHeader = "X-Key"; digest(site("", block)) == own {
		t.Error("another header for the client's key: the same digest")
	}
}
