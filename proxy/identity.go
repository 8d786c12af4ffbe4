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

// AttemptNumber returns the number of the attempt that a request is, as the header
// that the gateway has given it says.
func AttemptNumber(h http.Header) int { return callerOf(h).Number }

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

// SentKey is the key of a job for upstreams to which many owners' requests go
// under one account: a UUID of version 8 (RFC 9562, section 5.8) made of the
// job's id. Two owners' jobs differ in it where their keys don't.
func SentKey(job string) string {
	sum := sha256.Sum256([]byte(job))
	id := sum[:16]
	id[6] = id[6]&0x0f | 0x80 // the version
	id[8] = id[8]&0x3f | 0x80 // the variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// unlist takes names out of what a request says about its connection. Proxies drop
// the fields that are listed there, so that a client could keep from the upstream
// by which an intent it is known.
func unlist(h http.Header, names ...string) {
	var kept []string
	for _, line := range h["Connection"] {
		listed := strings.Split(line, ",")
		listed = slices.DeleteFunc(listed, func(name string) bool {
			return slices.Contains(names, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		})
		if len(listed) > 0 {
			kept = append(kept, strings.Join(listed, ","))
		}
	}
	delete(h, "Connection")
	if len(kept) > 0 {
		h["Connection"] = kept
	}
}

// CheckSendKey reports why attempts can't carry a key in a header of that name.
func CheckSendKey(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return errors.New("not the name of a header field")
	case slices.Contains(ownHeaders, canonical):
		return errors.New("headers of that name are the gateway's own; choose the one that your provider takes keys from")
	case slices.Contains(hopByHop, canonical), slices.Contains(noKey, canonical):
		return errors.New("a key in it would break the request; choose the header that your provider takes keys from")
	}
	return nil
}

// noKey are headers that can't carry a key, since they mean something else, or are
// never sent on.
var noKey = []string{
	"Accept-Encoding", "Authorization", "Content-Length", "Content-Type", "Cookie", "Expect", "Host", "Http2-Settings",
}

// checkKeyHeader reports why keys can't come in a header of that name.
func checkKeyHeader(name string) error {
	switch canonical := http.CanonicalHeaderKey(name); {
	case !httpguts.ValidHeaderFieldName(name):
		return errors.New("not the name of a header field")
	case slices.Contains(ownHeaders, canonical):
		return errors.New("headers of that name are the gateway's own, and taken out of requests, so that no key would ever be seen; choose another")
	case slices.Contains(hopByHop, canonical), slices.Contains(noKey, canonical):
		return errors.New("no key can come in it; choose the header that clients send their keys in")
	}
	return nil
}
