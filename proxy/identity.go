package proxy

import (
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Around the token's mark in the header that names an attempt.
const (
	markBegins = `;token="`
	markEnds   = `"`
)

// attemptHeader tells an upstream which attempt this is, and lets a gateway
// recognise the job that its caller holds without being told the token.
func attemptHeader(c keystore.Caller) string {
	return strconv.Itoa(c.Number) + markBegins + hex.EncodeToString(c.Mark[:]) + markEnds
}

// callerOf returns the attempt that sent a request, if it says that it is one.
// It proves nothing, and all that it can bring about is a refusal.
func callerOf(h http.Header) (c keystore.Caller) {
	lines := h[HeaderAttempt]
	if len(lines) != 1 {
		return keystore.Caller{}
	}
	number, mark, _ := strings.Cut(lines[0], markBegins)
	mark, whole := strings.CutSuffix(mark, markEnds)
	n, err := strconv.Atoi(number)
	if err != nil || !whole || len(mark) != hex.EncodedLen(len(c.Mark)) {
		return keystore.Caller{}
	}
	if _, err := hex.Decode(c.Mark[:], []byte(mark)); err != nil {
		return keystore.Caller{}
	}
	c.Number = n
	return c
}
