package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// What a JSON document may have beyond its size. No honest answer comes near it;
// past it, the time to judge one would be in no proportion to its length.
const (
	maxDepth     = 512
	maxNumber    = 1000 // characters
	maxExponents = 3    // digits of an exponent
)

// parseDocument returns the value of a JSON document, with numbers as they are
// written. What two readers could read in two ways breaks any contract: bytes
// that are no UTF-8, and a member that comes twice. Of the names of members only
// the known ones are shown; all of them if known is nil.
func parseDocument(body []byte, known map[string]bool) (any, *keystore.Violation) {
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return nil, &keystore.Violation{Expected: "a JSON document", Found: "an empty body"}
	case !utf8.Valid(body):
		return nil, &keystore.Violation{Expected: "a JSON document in UTF-8", Found: "bytes that are no UTF-8"}
	case !json.Valid(body):
		return nil, &keystore.Violation{Expected: "a JSON document", Found: "something else"}
	}
	p := documentParser{Decoder: json.NewDecoder(bytes.NewReader(body)), known: known}
	p.UseNumber()
	value, violation := p.value()
	return value, violation
}

// showBody has what broke a document show the body, if that is no JSON at all.
func showBody(v *keystore.Violation, body []byte) *keystore.Violation {
	if utf8.Valid(body) && !json.Valid(body) && len(bytes.TrimSpace(body)) > 0 {
		v.Found = short(strings.TrimSpace(string(body)))
	}
	return v
}

type documentParser struct {
	*json.Decoder
	known map[string]bool
	path  []string
}

func (p *documentParser) breaks(expected, found string) *keystore.Violation {
	return &keystore.Violation{Path: pointerOf(p.path), Expected: expected, Found: found}
}

// value reads the next value. Its recursion is as deep as the document, which is
// bounded.
func (p *documentParser) value() (any, *keystore.Violation) {
	token, err := p.Token()
	if err != nil {
		return nil, p.breaks("a JSON document", "something else")
	}
	if len(p.path) > maxDepth {
		p.path = p.path[:0]
		return nil, p.breaks(fmt.Sprintf("at most %d levels", maxDepth), "more")
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '{' {
			return p.object()
		}
		return p.array()
	case json.Number:
		if !boundedNumber(token.String()) {
			return nil, p.breaks(fmt.Sprintf("a number of at most %d characters, with an exponent of at most %d digits", maxNumber, maxExponents), "a longer one")
		}
	}
	return token, nil
}

func (p *documentParser) object() (any, *keystore.Violation) {
	object := map[string]any{}
	for p.More() {
		token, err := p.Token()
		name, isName := token.(string)
		if err != nil || !isName {
			return nil, p.breaks("a JSON document", "something else")
		}
		if _, twice := object[name]; twice {
			return nil, p.breaks("each member once", "one that comes twice")
		}
		p.path = append(p.path, shownName(name, p.known))
		value, violation := p.value()
		if violation != nil {
			return nil, violation
		}
		p.path = p.path[:len(p.path)-1]
		object[name] = value
	}
	_, _ = p.Token() // the end; the document is valid
	return object, nil
}

func (p *documentParser) array() (any, *keystore.Violation) {
	array := []any{}
	for p.More() {
		p.path = append(p.path, strconv.Itoa(len(array)))
		value, violation := p.value()
		if violation != nil {
			return nil, violation
		}
		p.path = p.path[:len(p.path)-1]
		array = append(array, value)
	}
	_, _ = p.Token()
	return array, nil
}

// boundedNumber reports whether a number can be computed with at little cost.
func boundedNumber(number string) bool {
	_, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	return len(number) <= maxNumber && len(strings.TrimLeft(exponent, "+-0")) <= maxExponents
}

// pointerOf returns the JSON pointer (RFC 6901) made of these tokens.
func pointerOf(tokens []string) string {
	var b strings.Builder
	for _, token := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(token))
	}
	return b.String()
}

// kindOf says what a value of a document is, and how large, but not what it says.
func kindOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string of " + count(utf8.RuneCountInString(v), "character")
	case []any:
		return "array of " + count(len(v), "item")
	case map[string]any:
		return "object of " + count(len(v), "member")
	}
	return "nothing"
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// safePath returns the JSON pointer to a place in a document. Names of members
// that nobody but the document knows may be somebody's data: they are shown as *.
func safePath(document any, tokens []string, known map[string]bool) string {
	shown := slices.Clone(tokens)
	for i, token := range tokens {
		switch v := document.(type) {
		case map[string]any:
			document, shown[i] = v[token], shownName(token, known)
		case []any:
			document = nil
			if at, err := strconv.Atoi(token); err == nil && at >= 0 && at < len(v) {
				document = v[at]
			}
		default:
			shown[i] = "*"
		}
	}
	return pointerOf(shown)
}

func shownName(name string, known map[string]bool) string {
	if known == nil || known[name] {
		return name
	}
	return "*"
}

// valueAt returns what stands at a place in a document.
func valueAt(document any, tokens []string) (any, bool) {
	for _, token := range tokens {
		switch v := document.(type) {
		case map[string]any:
			value, there := v[token]
			if !there {
				return nil, false
			}
			document = value
		case []any:
			at, err := strconv.Atoi(token)
			if err != nil || at < 0 || at >= len(v) || strconv.Itoa(at) != token {
				return nil, false
			}
			document = v[at]
		default:
			return nil, false
		}
	}
	return document, true
}
