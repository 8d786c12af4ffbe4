package keystore

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Secret is the key of encryption or of digests: random bytes that nobody can guess.
type Secret [32]byte

// ParseSecret reads a secret that is written as 64 hexadecimal digits or in
// base64. Its error doesn't show what was given.
func ParseSecret(text string) (s Secret, err error) {
	text = strings.TrimSpace(text)
	if len(text) == hex.EncodedLen(len(s)) {
		if _, err := hex.Decode(s[:], []byte(text)); err == nil {
			return s, nil
		}
	}
	unpadded := strings.TrimRight(text, "=")
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if b, err := encoding.DecodeString(unpadded); err == nil && len(b) == len(s) {
			return Secret(b), nil
		}
	}
	return Secret{}, errors.New("not 32 bytes as 64 hexadecimal digits or in base64; make it with: openssl rand -hex 32")
}

// Format implements fmt.Formatter: a secret never shows.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(secret)") }

// MarshalText implements encoding.TextMarshaler: a secret never shows.
func (Secret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }
