package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// jsonPointer returns the part of a JSON document that a pointer (RFC 6901) names,
// as it stands there.
func jsonPointer(doc []byte, pointer string) ([]byte, error) {
	part := json.RawMessage(doc)
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
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
