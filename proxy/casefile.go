package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Case is a recorded case: a request, and what is expected of its answer. Cases
// stand in .http files, as editors and REST clients know them:
//
//	### a card is charged
//	# @safe
//	# @repeat 5
//	POST /v1/charges
//	Content-Type: application/json
//
//	{"amount": 1200, "currency": "eur", "order": "order-{{key}}"}
//
//	HTTP 200 201
//	Content-Type: application/json
//	Location =~ ^/v1/charges/
//	/status == "succeeded"
//	/id =~ ^ch_[0-9a-z]+$
//	/refunded exists
//	/error absent
//	schema charge.schema.json
//
//	{"amount": 1200, "source": {"brand": "visa"}}
//
//	### no amount is refused
//	POST /v1/charges
//	…
//
// A line of ### and a name begins a case. Lines that begin with # or // before its
// request are comments, but for "# @safe", which says that it may be run without
// further ado, and "# @repeat", which says how often it has to pass.
//
// The request is a method and a path, header fields, an empty line, and the body,
// up to the line that begins with HTTP. A body that is the one line "< file" is
// that file, relative to the case's; with "<@ file" placeholders in it are filled
// in. The one placeholder is {{key}}, which is another key in each run; the request
// itself carries that key anyway. In place of the path a whole URL says which host is
// asked for, and with https that the client's connection is encrypted.
//
// HTTP and one or more statuses (201, or 2xx) begin what is expected, line by line:
// "Name: value" for a header field; a field's name or a JSON pointer with == and a
// value, =~ and a regular expression, exists, or absent; and schema with a file.
// A JSON document, if there is one, comes last: what it says must be in the answer,
// which may have other members too.
type Case struct {
	File   string
	Line   int // of the request
	Name   string
	Safe   bool
	Repeat int // at least 1

	method, target string
	header         http.Header
	body           []byte
	raw            bool // the body has no placeholders

	expect []expectation
}

// readCases reads a case file. The digest is that of everything it was made of.
func readCases(file string) ([]*Case, keystore.Digest, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, keystore.Digest{}, fmt.Errorf("case file: %w", err)
	}
	about := fmt.Sprintf("cases 1\n%s\n", keystore.DigestOf(text))
	cases, err := parseCases(file, text, caseFiles{
		read: func(name string) ([]byte, error) {
			part, err := os.ReadFile(filepath.Join(filepath.Dir(file), filepath.FromSlash(name)))
			about += keystore.DigestOf(part).String() + "\n"
			return part, err
		},
		schema: func(name string) (*schema, error) {
			s, err := compileSchema(filepath.Join(filepath.Dir(file), filepath.FromSlash(name)))
			if err == nil {
				about += s.sum.String() + "\n"
			}
			return s, err
		},
	})
	if err != nil {
		return nil, keystore.Digest{}, err
	}
	return cases, keystore.DigestOf([]byte(about)), nil
}

// ParseCases reads the cases of a file. Its errors begin with file and line.
func ParseCases(file string) ([]*Case, error) {
	cases, _, err := readCases(file)
	return cases, err
}

var caseKey = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// Request returns the case's request with this key in its placeholders: 1 to 64
// letters, digits and hyphens. It does not carry the key otherwise.
func (c *Case) Request(ctx context.Context, key string) (*http.Request, error) {
	if !caseKey.MatchString(key) {
		return nil, fmt.Errorf("%s:%d: the key of a case is 1 to 64 letters, digits and hyphens", c.File, c.Line)
	}
	target := fillIn(c.target, key)
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", c.File, c.Line, err)
	}
	body := c.body
	if !c.raw {
		body = []byte(fillIn(string(body), key))
	}
	r, err := http.NewRequestWithContext(ctx, c.method, u.String(), io.NopCloser(bytes.NewReader(body)))
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", c.File, c.Line, err)
	}
	r.ContentLength, r.RequestURI = int64(len(body)), u.RequestURI()
	if u.Scheme == "https" { // as it is for a site whose clients come by it
		r.TLS = &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true, ServerName: u.Hostname()}
	}
	r.URL.Scheme, r.URL.Host = "", ""
	if len(body) == 0 {
		r.Body = http.NoBody
	}
	for name, values := range c.header {
		for _, value := range values {
			r.Header.Add(name, fillIn(value, key))
		}
	}
	r.Host = u.Host
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
		r.Header.Del("Host")
	}
	return r, nil
}

// CaseFailure is an expectation that was not met.
type CaseFailure struct {
	Line     int    `json:"line"`
	What     string `json:"what"` // status, a header field, a JSON pointer, schema or body
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

// Judge returns what an answer to the case's request with this key lacks. It shows
// values of the answer: whoever records a case knows what comes. That a body can't
// be read is told once.
func (c *Case) Judge(answer *keystore.Response, key string) (failures []CaseFailure) {
	seen := &caseAnswer{Response: answer, header: http.Header(answer.Header)}
	for _, e := range c.expect {
		if what, expected, found, ok := e.check(seen, key); !ok {
			f := CaseFailure{Line: e.line, What: what, Expected: short(expected), Found: short(found)}
			if seen.violation == nil || !slices.ContainsFunc(failures, f.same) {
				failures = append(failures, f)
			}
		}
	}
	return failures
}

// same reports whether two failures tell the same.
func (f CaseFailure) same(other CaseFailure) bool {
	return f.Expected == other.Expected && f.Found == other.Found
}

const placeholder = "{{key}}"

func fillIn(text, key string) string { return strings.ReplaceAll(text, placeholder, key) }

// short bounds what is shown of an answer.
func short(text string) string {
	const limit = 200
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "…"
	}
	return text
}

func (c *Case) String() string { return c.File + ":" + strconv.Itoa(c.Line) + ": " + c.Name }
