package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// maxKeyLen bounds a key, in characters.
const maxKeyLen = 255

// KeyFormat says which keys are taken.
type KeyFormat string

// The formats of keys.
const (
	// KeyAny takes every key.
	KeyAny KeyFormat = "any"
	// KeyUUID takes keys that are written like a UUID (RFC 9562, section 4), of
	// whatever version, in capitals or not. As all keys, two of them are one key
	// only if they are the same characters.
	KeyUUID KeyFormat = "uuid"
)

// check reports why a key is not of the format. The name is for errors.
func (f KeyFormat) check(key, name string) error {
	if f == KeyUUID && !uuidFormat.MatchString(key) {
		return fmt.Errorf("%s is not a UUID; send one such as 8e03978e-40d5-43e8-bc93-6894a57f9324", name)
	}
	return nil
}

var uuidFormat = regexp.MustCompile(`^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$`)

var errNoKey = errors.New("the request has no key")

// keyOf returns the request's key and the spelling in which it was sent. It is
// errNoKey where the header is absent; an empty one is an error of its own, as
// switching protection off by sending nothing would be a surprise.
//
// A key is a structured-field string (RFC 9651, section 3.3.3) or the same
// characters bare: "abc" and abc are one key.
func keyOf(h http.Header, name string) (key, sent string, err error) {
	lines := h.Values(name)
	switch len(lines) {
	case 0:
		return "", "", errNoKey
	case 1:
	default:
		return "", "", fmt.Errorf("%s is sent %d times; send it once", name, len(lines))
	}
	return parseKey(lines[0], name)
}

// KeyOf returns the key of a job, which keeps the spelling in which it was sent.
func KeyOf(j *keystore.Job) string {
	key, _, err := parseKey(j.KeySent, "key")
	if err != nil {
		return "" // no job was ever made of such a key
	}
	return key
}

// parseKey returns the key that a value means, and the value as it is sent on.
// The name is for errors.
func parseKey(value, name string) (key, sent string, err error) {
	sent = strings.Trim(value, " \t")
	key = sent
	if strings.HasPrefix(sent, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{sent})
		if err != nil {
			return "", "", fmt.Errorf("%s is no structured-field string (RFC 9651, section 3.3.3)", name)
		}
		s, ok := item.Value.(string)
		if !ok {
			return "", "", fmt.Errorf("%s is no structured-field string (RFC 9651, section 3.3.3)", name)
		}
		if item.Params != nil && len(item.Params.Names()) > 0 {
			return "", "", fmt.Errorf("%s has parameters; a key has none", name)
		}
		key = s
	} else if strings.ContainsAny(sent, `,;"\`) {
		return "", "", fmt.Errorf("%s looks like a list or has parameters; put a key with such characters in double quotes", name)
	}
	switch {
	case key == "":
		return "", "", fmt.Errorf("%s is empty; send a key, such as a random UUID, or leave the header out", name)
	case len(key) > maxKeyLen:
		return "", "", fmt.Errorf("%s has %d characters; at most %d are allowed", name, len(key), maxKeyLen)
	}
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return "", "", fmt.Errorf("%s has a character that is not visible ASCII", name)
		}
	}
	return key, sent, nil
}
