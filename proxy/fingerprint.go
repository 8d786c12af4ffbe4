package proxy

import (
	"crypto/sha256"
	"encoding/binary"
	"mime"
	"net/http"
	"strings"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// recipeRaw is the version of the fingerprint's recipe that takes everything as
// it was sent. A recipe never changes; a new one gets a new number.
const recipeRaw = 1

// fingerprintRaw digests what was asked: method, host, original path and raw
// query, media type and body. Each part is length-prefixed, so that no two
// different requests are one and the same sequence of bytes.
func fingerprintRaw(asked *http.Request, body *requestBody) keystore.Fingerprint {
	h := sha256.New()
	put := func(part string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	put(asked.Method)
	put(strings.ToLower(asked.Host))
	put(asked.URL.EscapedPath())
	put(asked.URL.RawQuery)
	put(mediaType(asked.Header.Get("Content-Type")))
	// The body comes as its length and its digest, since it was read before.
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(body.size)))
	h.Write(body.sum[:])
	f := keystore.Fingerprint{Recipe: recipeRaw}
	h.Sum(f.Sum[:0])
	return f
}

// mediaType returns a media type in one spelling: lower case, with its
// parameters in order. One that can't be parsed is taken as it is.
func mediaType(contentType string) string {
	t, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType
	}
	if formatted := mime.FormatMediaType(t, params); formatted != "" {
		return formatted
	}
	return contentType
}
