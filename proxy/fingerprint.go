package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// noLength can't be the length of a part. It tells the digests of recipes with
// settings from those without.
const noLength = 1<<64 - 1

// How the body went into a digest.
const (
	bodyRaw  = 0
	bodyJSON = 1
)

// hash returns what all that was asked is written to.
func (rc *recipe) hash() hash.Hash { return rc.digester.New() }

// fingerprint digests what was asked: method, host, original path and raw query,
// media type, chosen headers and body. Each part is length-prefixed and each list
// counted, so that no two different requests are one and the same sequence of bytes.
//
// It fails only where the body is in a file that can't be read.
func (rc *recipe) fingerprint(asked *http.Request, body *requestBody) (keystore.Fingerprint, error) {
	f := keystore.Fingerprint{Recipe: rc.version, Settings: rc.settings}
	h := partsHash{rc.hash()}
	if rc.settings != "" {
		h.number(noLength)
		h.part(rc.settings)
	}
	h.part(asked.Method)
	if !rc.ignoreHost {
		h.part(strings.ToLower(asked.Host))
	}
	h.part(asked.URL.EscapedPath())
	if !rc.ignoreQuery {
		h.part(asked.URL.RawQuery)
	}
	h.part(mediaType(asked.Header.Get("Content-Type")))
	for _, name := range rc.headers {
		lines := asked.Header.Values(name)
		h.number(uint64(len(lines)))
		for _, line := range lines {
			h.part(line)
		}
	}
	if rc.json {
		canonical, ok, err := rc.canonicalBody(asked, body)
		if err != nil {
			return f, fmt.Errorf("fingerprint the request body: %w", err)
		}
		if ok {
			h.number(bodyJSON)
			h.part(string(canonical))
			h.Sum(f.Sum[:0])
			return f, nil
		}
		h.number(bodyRaw)
	}
	// The body comes as its length and its digest, since it was read before.
	h.number(uint64(body.size))
	h.Write(body.sum[:])
	h.Sum(f.Sum[:0])
	return f, nil
}

// partsHash is a hash to which parts are written.
type partsHash struct{ hash.Hash }

func (h partsHash) number(n uint64) { h.Write(binary.BigEndian.AppendUint64(nil, n)) }

func (h partsHash) part(part string) {
	h.number(uint64(len(part)))
	_, _ = io.WriteString(h, part)
}

// canonicalBody returns the one form of all bodies that are the same JSON
// document, or not ok where the body has to be taken as it is.
func (rc *recipe) canonicalBody(asked *http.Request, body *requestBody) (canonical []byte, ok bool, err error) {
	if body.size > maxJSONBody || !isJSON(asked.Header.Get("Content-Type")) {
		return nil, false, nil
	}
	src := body.open()
	defer src.Close()
	doc := bytes.NewBuffer(make([]byte, 0, body.size+bytes.MinRead))
	if _, err := doc.ReadFrom(src); err != nil {
		return nil, false, err
	}
	canonical, ok = canonicalJSON(doc.Bytes(), rc.ignored)
	return canonical, ok, nil
}

// isJSON reports whether a media type says that the body is JSON.
func isJSON(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
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
