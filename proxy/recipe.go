package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// FingerprintOptions say what of a request is part of its fingerprint. The zero
// value is the default: everything that counts, as it was sent.
type FingerprintOptions struct {
	// JSON compares JSON bodies as documents: white space and the order of
	// members make no difference.
	JSON bool
	// IncludeHeader names request headers that are part of it besides.
	IncludeHeader []string
	// IgnoreQuery leaves the query out.
	IgnoreQuery bool
	// IgnoreHost leaves the host out.
	IgnoreHost bool
	// Ignore points (RFC 6901) to what is left out of a JSON body. Only with JSON.
	Ignore []string
}

// recipeVersion is the version of the recipe that new jobs get. What a version
// stands for never changes: jobs are judged by it for as long as they are kept.
const recipeVersion = 1

// recipe is how a fingerprint is made.
type recipe struct {
	version uint8
	// settings say what else was chosen, in a text that parseSettings reads.
	settings string
	digester keystore.Digester

	json, ignoreQuery, ignoreHost bool
	headers                       []string // canonical and in order
	ignored                       *pointerTree
}

// newRecipe returns the recipe of new jobs with these options.
func newRecipe(o FingerprintOptions, d keystore.Digester) *recipe {
	rc := &recipe{
		version: recipeVersion, settings: o.settings(), digester: d,
		json: o.JSON, ignoreQuery: o.IgnoreQuery, ignoreHost: o.IgnoreHost, headers: canonicalHeaders(o.IncludeHeader),
	}
	for _, pointer := range o.Ignore {
		rc.ignored = rc.ignored.with(pointerTokens(pointer))
	}
	return rc
}

// recipeOf returns the recipe that made a fingerprint, or nil where it is none
// that this gateway understands completely.
func recipeOf(f keystore.Fingerprint, d keystore.Digester) *recipe {
	if f.Recipe != recipeVersion {
		return nil
	}
	o, ok := parseSettings(f.Settings)
	if !ok {
		return nil
	}
	return newRecipe(o, d)
}

// settings returns the options in one spelling: words apart by a blank, each with
// what it is about behind an equals sign. It is empty for the default.
func (o FingerprintOptions) settings() string {
	var words []string
	add := func(word string, on bool) {
		if on {
			words = append(words, word)
		}
	}
	add("json", o.JSON)
	add("ignore_query", o.IgnoreQuery)
	add("ignore_host", o.IgnoreHost)
	for _, name := range canonicalHeaders(o.IncludeHeader) {
		words = append(words, "include_header="+name)
	}
	for _, pointer := range slices.Compact(slices.Sorted(slices.Values(o.Ignore))) {
		words = append(words, "ignore="+url.QueryEscape(pointer))
	}
	return strings.Join(words, " ")
}

// compared says in words what has to be the same.
func (o FingerprintOptions) compared() string {
	parts := []string{"method", "host", "path", "query", "media type", "body"}
	parts = slices.DeleteFunc(parts, func(part string) bool {
		return part == "host" && o.IgnoreHost || part == "query" && o.IgnoreQuery
	})
	for _, name := range canonicalHeaders(o.IncludeHeader) {
		parts = append(parts, "header "+name)
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

// parseSettings returns the options that a text stands for. It is not ok where
// there is anything that settings would not have written just so.
func parseSettings(settings string) (o FingerprintOptions, ok bool) {
	for word := range strings.FieldsSeq(settings) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "json":
			o.JSON = true
		case "ignore_query":
			o.IgnoreQuery = true
		case "ignore_host":
			o.IgnoreHost = true
		case "include_header":
			if !httpguts.ValidHeaderFieldName(value) {
				return o, false
			}
			o.IncludeHeader = append(o.IncludeHeader, value)
		case "ignore":
			pointer, err := url.QueryUnescape(value)
			if err != nil {
				return o, false
			}
			o.Ignore = append(o.Ignore, pointer)
		default:
			return o, false
		}
	}
	return o, o.settings() == settings && o.validateIgnored() == nil
}

func canonicalHeaders(names []string) []string {
	canonical := make([]string, len(names))
	for i, name := range names {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	slices.Sort(canonical)
	return slices.Compact(canonical)
}

// validate reports what is wrong with the options of a route whose keys come in
// the given header.
func (o FingerprintOptions) validate(keyHeader string) error {
	for _, name := range o.IncludeHeader {
		if err := CheckIncludedHeader(name, keyHeader); err != nil {
			return fmt.Errorf("fingerprint: include_header %s: %w", name, err)
		}
	}
	return o.validateIgnored()
}

func (o FingerprintOptions) validateIgnored() error {
	for _, pointer := range o.Ignore {
		if err := CheckIgnoredPointer(pointer); err != nil {
			return fmt.Errorf("fingerprint: ignore %s: %w", pointer, err)
		}
	}
	if len(o.Ignore) > 0 && !o.JSON {
		return fmt.Errorf("fingerprint: ignore %s: nothing can be left out of a body that is compared byte by byte; write `fingerprint json`, or remove it", o.Ignore[0])
	}
	return nil
}

// CheckIncludedHeader reports why a header of requests can't be part of their
// fingerprints.
func CheckIncludedHeader(name, keyHeader string) error {
	if !httpguts.ValidHeaderFieldName(name) {
		return errors.New("not the name of a header field")
	}
	canonical := http.CanonicalHeaderKey(name)
	switch canonical {
	case "Host", "Content-Type", "Content-Length":
		return errors.New("part of every fingerprint already, with the host, the media type and the body; remove it")
	case "Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return errors.New("about the connection, which is another one at each repetition; remove it")
	case http.CanonicalHeaderKey(keyHeader):
		return errors.New("the key itself, which is the same for all that is compared; remove it")
	}
	if strings.HasPrefix(canonical, "Idempotency-") || strings.HasPrefix(canonical, "Idempotent-") {
		return errors.New("headers of that name are the gateway's own; remove it")
	}
	return nil
}

// CheckIgnoredPointer reports why a JSON pointer can't be ignored.
func CheckIgnoredPointer(pointer string) error {
	switch {
	case pointer == "":
		return errors.New("the empty pointer is the whole document, and all requests would be one; name a member, as in `ignore /sent_at`")
	case !strings.HasPrefix(pointer, "/"):
		return fmt.Errorf("a JSON pointer begins with a /; write `ignore /%s`", strings.ReplaceAll(pointer, ".", "/"))
	case !utf8.ValidString(pointer):
		return errors.New("no UTF-8, so that no member can have that name")
	}
	for rest := pointer; ; {
		_, after, found := strings.Cut(rest, "~")
		if !found {
			return nil
		}
		if !strings.HasPrefix(after, "0") && !strings.HasPrefix(after, "1") {
			return errors.New("in a JSON pointer a ~ is written ~0, and a / in a name ~1")
		}
		rest = after
	}
}
