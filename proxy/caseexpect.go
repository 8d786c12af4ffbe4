package proxy

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// expectation is one line of what is expected of an answer.
type expectation struct {
	line int
	// check says what was looked at, what was expected there and what was found.
	check func(answer *caseAnswer, key string) (what, expected, found string, ok bool)
}

// caseAnswer is an answer that is looked at again and again.
type caseAnswer struct {
	*keystore.Response
	header http.Header

	parsed    bool
	document  any
	violation *keystore.Violation
}

func (a *caseAnswer) json() (any, *keystore.Violation) {
	if !a.parsed {
		a.parsed = true
		if a.document, a.violation = parseDocument(a.Body, nil); a.violation != nil {
			a.violation = showBody(a.violation, a.Body)
		}
	}
	return a.document, a.violation
}

// parseExpectations reads what is expected, up to the next case.
func (p *caseParser) parseExpectations(c *Case) error {
	if !p.more() || p.begins() {
		return p.wrong(c.Line, "nothing is expected of its answer: say at least which status, as in HTTP 200")
	}
	status, err := p.parseStatus()
	if err != nil {
		return err
	}
	c.expect = append(c.expect, status)
	for p.at++; p.more() && !p.begins(); p.at++ {
		line := strings.TrimSpace(p.lines[p.at])
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "//") {
			continue
		}
		if line[0] == '{' || line[0] == '[' {
			e, err := p.parseDocument()
			if err != nil {
				return err
			}
			c.expect = append(c.expect, e)
			return nil
		}
		check, err := p.parseExpectation(line)
		if err != nil {
			return err
		}
		c.expect = append(c.expect, expectation{line: p.at + 1, check: check})
	}
	return nil
}

// parseStatus reads the line that says which statuses are expected.
func (p *caseParser) parseStatus() (expectation, error) {
	word := strings.Fields(p.lines[p.at])
	var allowed []string
	for i, w := range word[1:] {
		class := len(w) == 3 && w[0] >= '1' && w[0] <= '5' && w[1:] == "xx"
		if n, err := strconv.Atoi(w); !class && (err != nil || n < 100 || n > 599 || len(w) != 3) {
			if i > 0 && strings.HasPrefix(word[0], "HTTP/") {
				break // a reason phrase, as servers send it
			}
			return expectation{}, p.wrong(p.at+1, "%q is no status; want one or more, as in HTTP 200 201, or HTTP 2xx", w)
		}
		allowed = append(allowed, w)
	}
	return expectation{line: p.at + 1, check: func(answer *caseAnswer, _ string) (string, string, string, bool) {
		got := strconv.Itoa(answer.Status)
		ok := slices.ContainsFunc(allowed, func(w string) bool { return w == got || (w[1:] == "xx" && w[0] == got[0]) })
		return "status", strings.Join(allowed, " or "), got, ok
	}}, nil
}

type check = func(answer *caseAnswer, key string) (what, expected, found string, ok bool)

var operators = []string{"==", "=~", "exists", "absent"}

func (p *caseParser) parseExpectation(line string) (check, error) {
	if err := p.checkPlaceholders(p.at+1, line); err != nil {
		return nil, err
	}
	subject, rest, _ := strings.Cut(line, " ")
	operator, operand, _ := strings.Cut(strings.TrimSpace(rest), " ")
	operand = strings.TrimSpace(operand)
	switch {
	case subject == "schema" && rest != "" && !slices.Contains(operators, operator):
		return p.expectSchema(strings.TrimSpace(rest))
	case !slices.Contains(operators, operator):
		name, value, ok := strings.Cut(line, ":")
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return nil, p.wrong(p.at+1, "want a header field, as in Content-Type: application/json, or a JSON pointer or field with ==, =~, exists or absent")
		}
		return expectHeader(name, "==", strings.TrimSpace(value), nil), nil
	case (operator == "==" || operator == "=~") == (operand == ""):
		return nil, p.wrong(p.at+1, "== and =~ need something to compare with, exists and absent nothing")
	}
	var pattern *regexp.Regexp
	if operator == "=~" {
		compiled, err := regexp.Compile(strings.ReplaceAll(operand, placeholder, "x"))
		if err != nil {
			return nil, p.wrong(p.at+1, "%w", err)
		}
		if pattern = compiled; strings.Contains(operand, placeholder) {
			pattern = nil // another one for each key
		}
	}
	if subject[0] != '/' {
		if !httpguts.ValidHeaderFieldName(subject) {
			return nil, p.wrong(p.at+1, "%q is neither a JSON pointer nor a header field", short(subject))
		}
		return expectHeader(subject, operator, operand, pattern), nil
	}
	tokens := strings.Split(subject, "/")[1:]
	for i, token := range tokens {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(token), "~") {
			return nil, p.wrong(p.at+1, "%q is no JSON pointer: ~ is written ~0, and / within a name ~1", short(subject))
		}
		tokens[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	}
	if operator == "==" {
		if _, v := parseDocument([]byte(fillIn(operand, "x")), nil); v != nil {
			return nil, p.wrong(p.at+1, "what it is compared with is no JSON; a string stands in quotes")
		}
	}
	return expectPointer(subject, tokens, operator, operand, pattern), nil
}

func expectHeader(name, operator, operand string, pattern *regexp.Regexp) check {
	return func(answer *caseAnswer, key string) (what, expected, found string, ok bool) {
		values := answer.header.Values(name)
		want := fillIn(operand, key)
		found = strings.Join(values, ", ")
		if len(values) == 0 {
			found = "none"
		}
		switch operator {
		case "==":
			return name, want, found, slices.ContainsFunc(values, RequiredHeader{Name: name, Value: want}.matches)
		case "=~":
			re := patternFor(pattern, operand, key)
			return name, "=~ " + want, found, slices.ContainsFunc(values, re.MatchString)
		case "exists":
			return name, "a value", found, len(values) > 0
		}
		return name, "none", found, len(values) == 0
	}
}

// patternFor returns the pattern, with the key in it if it is another for each.
func patternFor(pattern *regexp.Regexp, operand, key string) *regexp.Regexp {
	if pattern != nil {
		return pattern
	}
	return regexp.MustCompile(fillIn(operand, key)) // letters, digits and hyphens, as when it was tried
}

func expectPointer(pointer string, tokens []string, operator, operand string, pattern *regexp.Regexp) check {
	return func(answer *caseAnswer, key string) (what, expected, found string, ok bool) {
		document, violation := answer.json()
		if violation != nil {
			return "body", violation.Expected, violation.Found, false
		}
		value, there := valueAt(document, tokens)
		if found = shown(value); !there {
			found = "nothing"
		}
		switch operator {
		case "exists":
			return pointer, "something", found, there
		case "absent":
			return pointer, "nothing", found, !there
		case "==":
			want, _ := parseDocument([]byte(fillIn(operand, key)), nil)
			return pointer, shown(want), found, there && equalValues(want, value)
		}
		text, isText := value.(string)
		if number, isNumber := value.(json.Number); isNumber {
			text, isText = number.String(), true
		}
		return pointer, "=~ " + fillIn(operand, key), found, isText && patternFor(pattern, operand, key).MatchString(text)
	}
}

func (p *caseParser) expectSchema(name string) (check, error) {
	s, err := p.files.schema(name)
	if err != nil {
		return nil, p.wrong(p.at+1, "%w", err)
	}
	return func(answer *caseAnswer, _ string) (what, expected, found string, ok bool) {
		document, violation := answer.json()
		if violation == nil {
			violation = s.judge(document, true)
		}
		if violation == nil {
			return "schema", "", "", true
		}
		if answer.violation != nil {
			return "body", violation.Expected, violation.Found, false
		}
		return strings.TrimSpace("schema " + violation.Path), violation.Expected, violation.Found, false
	}, nil
}

// parseDocument reads the JSON document that ends what is expected.
func (p *caseParser) parseDocument() (expectation, error) {
	first := p.at
	for p.more() && !p.begins() {
		if err := p.checkPlaceholders(p.at+1, p.lines[p.at]); err != nil {
			return expectation{}, err
		}
		p.at++
	}
	text := strings.Join(p.lines[first:p.at], "\n")
	if _, v := parseDocument([]byte(fillIn(text, "x")), nil); v != nil {
		return expectation{}, p.wrong(first+1, "what is expected of the body is no JSON document: want %s, it is %s", v.Expected, v.Found)
	}
	return expectation{line: first + 1, check: func(answer *caseAnswer, key string) (what, expected, found string, ok bool) {
		want, _ := parseDocument([]byte(fillIn(text, key)), nil)
		document, violation := answer.json()
		if violation != nil {
			return "body", violation.Expected, violation.Found, false
		}
		path, expected, found, ok := contains(document, want, nil)
		return strings.TrimSpace("body " + pointerOf(path)), expected, found, ok
	}}, nil
}

// contains reports whether a document says all that is wanted: the members of
// objects, which may have others too, and the items of arrays, one by one.
func contains(value, want any, at []string) (path []string, expected, found string, ok bool) {
	switch want := want.(type) {
	case map[string]any:
		object, isObject := value.(map[string]any)
		if !isObject {
			return at, "an object", shown(value), false
		}
		names := make([]string, 0, len(want))
		for name := range want {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			member, there := object[name]
			if !there {
				return append(at, name), shown(want[name]), "nothing", false
			}
			if path, expected, found, ok := contains(member, want[name], append(at, name)); !ok {
				return path, expected, found, false
			}
		}
		return nil, "", "", true
	case []any:
		array, isArray := value.([]any)
		if !isArray || len(array) != len(want) {
			return at, "an array of " + count(len(want), "item"), shown(value), false
		}
		for i := range want {
			if path, expected, found, ok := contains(array[i], want[i], append(at, strconv.Itoa(i))); !ok {
				return path, expected, found, false
			}
		}
		return nil, "", "", true
	}
	return at, shown(want), shown(value), equalValues(want, value)
}

// equalValues compares two values of JSON; numbers by what they say, not by how.
func equalValues(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		other, isNumber := b.(json.Number)
		if !isNumber {
			return false
		}
		x, okX := new(big.Rat).SetString(a.String())
		y, okY := new(big.Rat).SetString(other.String())
		return okX && okY && x.Cmp(y) == 0
	case []any:
		other, isArray := b.([]any)
		return isArray && slices.EqualFunc(a, other, equalValues)
	case map[string]any:
		other, isObject := b.(map[string]any)
		if !isObject || len(a) != len(other) {
			return false
		}
		for name, member := range a {
			if o, there := other[name]; !there || !equalValues(member, o) {
				return false
			}
		}
		return true
	}
	return a == b
}

// shown is a value of JSON as it is shown.
func shown(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%T", value)
	}
	return short(string(text))
}
