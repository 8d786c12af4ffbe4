package caddymodule

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// ownerShared is the word of the configuration that says that there is only one
// caller.
const ownerShared = "shared"

// sharedOwner is the owner where there is only one caller. It is not the word of
// the configuration, which another route's placeholder could come to.
const sharedOwner = "\x00" + ownerShared

var errNobody = errors.New("a placeholder of the owner is empty")

// ownerOf returns the caller whom a request's key belongs to. A placeholder that
// is empty or unknown makes it nobody: what is left of the setting would be the
// same for all callers. Otherwise not a byte of it is left out, since to whatever
// has authenticated them two callers can differ in white space alone.
func ownerOf(setting string, repl *caddy.Replacer) string {
	if setting == ownerShared {
		return sharedOwner
	}
	between := separators(setting)
	owner, err := repl.ReplaceFunc(setting, func(name string, value any) (any, error) {
		text := textOf(value)
		if strings.TrimSpace(text) == "" || ofNoCertificate(name, repl) {
			return nil, errNobody
		}
		return apart(text, between), nil
	})
	if err != nil || owner == sharedOwner {
		return ""
	}
	return owner
}

// textOf returns what a placeholder stands for as a text, in which two lists differ
// wherever they do, and nothing at all, of whatever kind, is nothing.
func textOf(value any) string {
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return ""
		}
	case reflect.Slice, reflect.Map, reflect.Array:
		if v.Len() == 0 {
			return ""
		}
		switch value.(type) {
		case fmt.Stringer, error, []byte, []rune: // a text by themselves
		default:
			return fmt.Sprintf("%q", value)
		}
	}
	return caddy.ToString(value)
}

// ofNoCertificate reports whether a placeholder is about the client's certificate and
// there is none. Caddy then has values for it all the same, which are those of every
// such caller: the digest of nothing, for one.
func ofNoCertificate(name string, repl *caddy.Replacer) bool {
	const ofTLS = "http.request.tls."
	field, ok := strings.CutPrefix(name, ofTLS)
	if !ok || !strings.HasPrefix(strings.ToLower(field), "client.") {
		return false
	}
	der, _ := repl.GetString(ofTLS + "client.certificate_der_base64")
	return der == ""
}

// separators are the characters with which the text after a placeholder begins,
// where several placeholders make up the owner.
func separators(setting string) (between string) {
	if strings.Count(setting, "{") < 2 {
		return ""
	}
	for i := range len(setting) - 1 {
		if setting[i] == '}' {
			between += setting[i+1 : i+2]
		}
	}
	return between
}

// apart returns a part of the owner in which no separator stands as such, so that
// where it ends can't be moved by what is in it.
func apart(text, between string) string {
	if between == "" {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c == '%' || strings.IndexByte(between, c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// checkOwner refuses an owner that is the same for every caller: their keys
// would be one, and they would get to see each other's answers.
func checkOwner(owner string) error {
	const remedy = "write `owner {http.auth.user.id}`, or another placeholder for the caller that the site has authenticated; or `owner shared` if there is only one caller"
	// Placeholders that are known without a request, such as {env.…}, don't
	// depend on the caller.
	_, err := caddy.NewReplacer().ReplaceOrErr(owner, false, true)
	switch {
	case owner == "":
		return errors.New("owner: not given; " + remedy)
	case owner != ownerShared && err == nil:
		return fmt.Errorf("owner %q: the same for all callers, who would get each other's answers; %s", owner, remedy)
	}
	if i := strings.IndexAny(separators(owner), "{%0123456789ABCDEF"); i >= 0 {
		return fmt.Errorf("owner %q: where one placeholder ends and the next begins can't be told, so that two callers could be one owner; write something such as / or : between them", owner)
	}
	return nil
}
