package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

// pointerTokens returns the names and indices of which a JSON pointer consists.
// The pointer to the whole document has none.
func pointerTokens(pointer string) []string {
	tokens := strings.Split(pointer, "/")[1:]
	for i, token := range tokens {
		tokens[i] = pointerEscapes.Replace(token)
	}
	return tokens
}

// jsonPointer returns the part of a JSON document that a pointer (RFC 6901) names,
// as it stands there.
func jsonPointer(doc []byte, pointer string) ([]byte, error) {
	part := json.RawMessage(doc)
	for _, token := range pointerTokens(pointer) {
		var object map[string]json.RawMessage
		var array []json.RawMessage
		switch {
		case json.Unmarshal(part, &object) == nil && object != nil:
			value, ok := object[token]
			if !ok {
				return nil, fmt.Errorf("the answer has no %s", pointer)
			}
			part = value
		case json.Unmarshal(part, &array) == nil:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(array) || strconv.Itoa(i) != token {
				return nil, fmt.Errorf("the answer has no %s", pointer)
			}
			part = array[i]
		default:
			return nil, fmt.Errorf("the answer has no %s", pointer)
		}
	}
	if bytes.Equal(bytes.TrimSpace(part), []byte("null")) {
		return nil, fmt.Errorf("the answer has nothing at %s", pointer)
	}
	return part, nil
}
