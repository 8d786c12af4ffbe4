package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"mime"
	"net/http"
	"net/url"
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

// fingerprint digests what was asked: method, host, original path and raw query,
// media type, chosen headers and body. Each part is length-prefixed and each list
// counted, so that no two different requests are one and the same sequence of bytes.
//
// It fails only where the body is in a file that can't be read.
func (rc *recipe) fingerprint(asked *http.Request, body *requestBody) (keystore.Fingerprint, error) {
	f := keystore.Fingerprint{Recipe: rc.version, Settings: rc.settings}
	h := make(digested, 0, 512) // on the stack, where they are as short as they usually are
	if rc.settings != "" {
		h = h.number(noLength)
		h = h.part(rc.settings)
	}
	h = h.part(asked.Method)
	if !rc.ignoreHost {
		h = h.part(strings.ToLower(asked.Host))
	}
	h = h.part(pathOf(asked.URL))
	if !rc.ignoreQuery {
		h = h.part(asked.URL.RawQuery)
	}
	h = h.part(mediaType(contentType(asked.Header)))
	for _, name := range rc.headers {
		lines := asked.Header.Values(name)
		h = h.number(uint64(len(lines)))
		for _, line := range lines {
			h = h.part(line)
		}
	}
	if rc.json {
		canonical, ok, err := rc.canonicalBody(asked, body)
		if err != nil {
			return f, fmt.Errorf("fingerprint the request body: %w", err)
		}
		if ok {
			h = h.number(bodyJSON)
			h = h.number(uint64(len(canonical)))
			f.Sum = rc.digester.Sum(append(h, canonical...))
			return f, nil
		}
		h = h.number(bodyRaw)
	}
	// The body comes as its length and its digest, since it was read before.
	h = h.number(uint64(body.size))
	f.Sum = rc.digester.Sum(append(h, body.sum[:]...))
	return f, nil
}

// pathOf returns the path as it was sent, or what stands in its place: of a URL such
// as x:y all the rest.
func pathOf(u *url.URL) string {
	if u.Opaque != "" {
		return u.Scheme + ":" + u.Opaque
	}
	return u.EscapedPath()
}

// contentType returns what a request says of its body's media type, in one line: if
// that is said twice, it is none.
func contentType(h http.Header) string {
	lines := h["Content-Type"]
	if len(lines) == 1 {
		return lines[0]
	}
	return strings.Join(lines, ", ")
}

// digested is what a digest is made of, one behind the other.
type digested []byte

func (p digested) number(n uint64) digested { return binary.BigEndian.AppendUint64(p, n) }

func (p digested) part(part string) digested {
	return append(p.number(uint64(len(part))), part...)
}

// canonicalBody returns the one form of all bodies that are the same JSON
// document, or not ok where the body has to be taken as it is.
func (rc *recipe) canonicalBody(asked *http.Request, body *requestBody) (canonical []byte, ok bool, err error) {
	if body.size > maxJSONBody || !isJSON(contentType(asked.Header)) {
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
// parameters in order. One that can't be parsed is taken as it is, and so is one of
// which the parser could make what others don't: it drops encoded parameters that it
// can't read, and lets backslashes stand.
func mediaType(contentType string) string {
	if isPlainType(contentType) {
		return contentType
	}
	t, params, err := mime.ParseMediaType(contentType)
	if err != nil || strings.ContainsAny(contentType, `*\`) {
		return contentType
	}
	formatted := mime.FormatMediaType(t, params)
	if formatted == "" || strings.Contains(formatted, "*") {
		return contentType
	}
	return formatted
}

// isPlainType reports whether a media type is in that spelling to begin with: two
// tokens in lower case, and no parameters. Most are.
func isPlainType(t string) bool {
	main, sub, _ := strings.Cut(t, "/")
	return isPlainToken(main) && isPlainToken(sub)
}

func isPlainToken(t string) bool {
	for i := range len(t) {
		if c := t[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '+' {
			return false
		}
	}
	return t != ""
}
