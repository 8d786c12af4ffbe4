package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

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

// sentKey is the key of a job for upstreams to which many owners' requests go
// under one account: a UUID of version 8 (RFC 9562, section 5.8) made of the
// job's id. Two owners' jobs differ in it where their keys don't.
func sentKey(job string) string {
	sum := sha256.Sum256([]byte(job))
	id := sum[:16]
	id[6] = id[6]&0x0f | 0x80 // the version
	id[8] = id[8]&0x3f | 0x80 // the variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// CheckSendKey reports why attempts can't carry a key in a header of that name.
func CheckSendKey(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return errors.New("not the name of a header field")
	case slices.Contains(ownHeaders, canonical):
		return errors.New("headers of that name are the gateway's own; choose the one that your provider takes keys from")
	case slices.Contains(hopByHop, canonical), slices.Contains([]string{"Host", "Content-Type", "Content-Length", "Authorization", "Cookie"}, canonical):
		return errors.New("a key in it would break the request; choose the header that your provider takes keys from")
	}
	return nil
}
