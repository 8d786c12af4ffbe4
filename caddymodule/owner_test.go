package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
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
