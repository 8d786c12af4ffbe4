package caddymodule

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// ownerWith is the owner of a request with these values of placeholders.
func ownerWith(setting string, values map[string]string) string {
	repl := caddy.NewEmptyReplacer()
	for name, value := range values {
		repl.Set(name, value)
	}
	return ownerOf(setting, repl)
}

// However callers are called, two of them are two owners, also where several
// placeholders make up the owner.
func TestSEC06OwnersOfManyNames(t *testing.T) {
	t.Parallel()
	names := []string{
		"a", "b", "a ", " a", "a\u00a0", "a\t", "A", "a:", ":a", ":", "a:b", "b:a", "a/b", "a%3Ab", "%3A", "%", "%25", "3A",
		"shared", "a\x00", "\x00", "{a}", "a|b", "→",
	}
	for _, setting := range []string{"{t}", "{t}:{u}", "{t}/{u}", "u-{t}|{u}@x", "{t}→{u}", "{t}::{u}", "{t}:{u}:{t}"} {
		owners := make(map[string][2]string)
		for _, tenant := range names {
			for _, user := range names {
				who := [2]string{tenant, user}
				if !strings.Contains(setting, "{u}") {
					who[1] = ""
				}
				owner := ownerWith(setting, map[string]string{"t": tenant, "u": user})
				if owner == "" {
					t.Errorf("%s: %q is nobody", setting, who)
				}
				if other, met := owners[owner]; met && other != who {
					t.Errorf("%s: %q and %q are one owner %q", setting, who, other, owner)
				}
				owners[owner] = who
			}
		}
	}
	for setting, want := range map[string]string{"{t}": "a:b", "{t}/{u}": "a:b/c%25", "u-{t}": "u-a:b"} {
		if got := ownerWith(setting, map[string]string{"t": "a:b", "u": "c%"}); got != want {
			t.Errorf("%s comes to %q, want %q", setting, got, want)
		}
	}
}

// Who can't be told is nobody, and who calls himself what the gateway calls the
// only caller is nobody either.
func TestSEC04Nobody(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"{t}", "{t}:{u}", "{u}:{t}", "x-{t}"} {
		for _, value := range []string{"", " ", "\t\u00a0\n"} {
			if got := ownerWith(setting, map[string]string{"t": value, "u": "alice"}); got != "" {
				t.Errorf("%s with %q is %q", setting, value, got)
			}
		}
		if got := ownerWith(setting, map[string]string{"u": "alice"}); got != "" {
			t.Errorf("%s without a value is %q", setting, got)
		}
	}
	if got := ownerWith("{t}", map[string]string{"t": sharedOwner}); got != "" {
		t.Errorf("the only caller can be forged: %q", got)
	}
	if got := ownerWith(ownerShared, nil); got != sharedOwner {
		t.Errorf("the only caller is %q", got)
	}
}

// A caller without a certificate is nobody, whatever of a certificate makes up the
// owner: Caddy has the digest of nothing for it, and other texts that are the same for
// everybody. So is one whose certificate says nothing of what is asked for.
func TestSEC04NobodyWithoutACertificate(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "https://a.example/", nil)
	named := &x509.Certificate{
		Raw: []byte("der"), SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "alice"}, Issuer: pkix.Name{CommonName: "ca"},
		DNSNames: []string{"a.example"}, EmailAddresses: []string{"a@a.example"}, IPAddresses: []net.IP{net.IPv6loopback}, URIs: []*url.URL{{Scheme: "spiffe", Host: "a"}},
	}
	for _, field := range []string{
		"client.fingerprint", "CLIENT.Fingerprint", "client.serial", "client.certificate_pem", "client.certificate_der_base64", "client.subject",
		"client.issuer", "client.san.dns_names", "client.san.emails", "client.san.ips", "client.san.uris", "client.san.dns_names.0",
	} {
		for _, setting := range []string{"{http.request.tls." + field + "}", "{http.request.host}/{http.request.tls." + field + "}"} {
			for name, state := range map[string]*tls.ConnectionState{"plain": nil, "no certificate": {}} {
				r.TLS = state
				if got := ownerOf(setting, caddyhttp.NewTestReplacer(r)); got != "" {
					t.Errorf("%s, %s: %q", setting, name, got)
				}
			}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{named}}
			if got := ownerOf(setting, caddyhttp.NewTestReplacer(r)); got == "" {
				t.Errorf("%s: the caller with a certificate is nobody", setting)
			}
			if !strings.Contains(field, "san.") {
				continue
			}
			r.TLS.PeerCertificates[0] = &x509.Certificate{Raw: named.Raw}
			if got := ownerOf(setting, caddyhttp.NewTestReplacer(r)); got != "" {
				t.Errorf("%s: a certificate without any is %q", setting, got)
			}
		}
	}
}

// What a placeholder stands for need not be a text.
func TestSEC06OwnersThatAreNoText(t *testing.T) {
	t.Parallel()
	seen := make(map[string]any)
	for _, value := range []any{
		[]string{"a b"}, []string{"a", "b"}, []string{"a", "b", ""}, []string{""}, []any{"a b"}, []any{"a", "b c"}, map[string]any{"a": "b c:d"}, map[string]any{"a": "b", "c": "d"}, 7, true,
	} {
		repl := caddy.NewEmptyReplacer()
		repl.Set("t", value)
		owner := ownerOf("{t}", repl)
		other, met := seen[owner]
		if met = met && fmt.Sprintf("%q", other) != fmt.Sprintf("%q", value); owner == "" || met {
			t.Errorf("%#v and %#v are one owner %q", value, other, owner)
		}
		seen[owner] = value
	}
	for _, value := range []any{nil, []string{}, []string(nil), []any{}, map[string]any{}, (*big.Int)(nil), (*url.URL)(nil)} {
		repl := caddy.NewEmptyReplacer()
		repl.Set("t", value)
		if owner := ownerOf("{t}", repl); owner != "" {
			t.Errorf("%#v is %q", value, owner)
		}
	}
}
