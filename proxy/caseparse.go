package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// caseFiles are the files that a case file can refer to.
type caseFiles struct {
	read   func(name string) ([]byte, error)
	schema func(name string) (*schema, error)
}

type caseParser struct {
	file  string
	files caseFiles
	lines []string
	at    int // the line that is next, from zero
	names map[string]int
}

const maxRepeat = 1000

var (
	expectsLine    = regexp.MustCompile(`^HTTP(/[0-9.]+)?[ \t]+[1-9]`)
	anyPlaceholder = regexp.MustCompile(`\{\{[^{}\n]*\}\}`)
)

// parseCases reads the text of a case file.
func parseCases(file string, text []byte, files caseFiles) ([]*Case, error) {
	p := &caseParser{file: file, files: files, names: map[string]int{}}
	if !utf8.Valid(text) {
		return nil, p.wrong(1, "it is not UTF-8")
	}
	p.lines = strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	var cases []*Case
	for {
		c, err := p.parseCase()
		if err != nil {
			return nil, err
		}
		if c == nil {
			break
		}
		cases = append(cases, c)
	}
	if len(cases) == 0 {
		return nil, p.wrong(1, "it has no case: a method and a path begin one, as in POST /charges")
	}
	return cases, nil
}

// wrong is an error in a line, counted from one.
func (p *caseParser) wrong(line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: "+format, append([]any{p.file, line}, args...)...)
}

func (p *caseParser) more() bool { return p.at < len(p.lines) }

func (p *caseParser) begins() bool { return strings.HasPrefix(p.lines[p.at], "###") }

// parseCase returns the next case, nil at the end.
func (p *caseParser) parseCase() (*Case, error) {
	c := &Case{File: p.file, Repeat: 1}
	if err := p.parseHead(c); err != nil || !p.more() {
		return nil, err
	}
	c.Line = p.at + 1
	if c.Name == "" {
		c.Name = strings.TrimSpace(p.lines[p.at])
	}
	if line, twice := p.names[c.Name]; twice {
		return nil, p.wrong(c.Line, "the case in line %d is called %q too; name them with a line of ### and a name", line, c.Name)
	}
	p.names[c.Name] = c.Line
	if err := p.parseRequest(c); err != nil {
		return nil, err
	}
	if err := p.parseBody(c); err != nil {
		return nil, err
	}
	return c, p.parseExpectations(c)
}

// parseHead reads up to a case's request line: name, comments, directives.
func (p *caseParser) parseHead(c *Case) error {
	named := 0
	directive := 0
	for ; p.more(); p.at++ {
		line := strings.TrimSpace(p.lines[p.at])
		switch {
		case p.begins():
			if directive > 0 {
				return p.wrong(directive, "this belongs to no request")
			}
			c.Name, named = strings.TrimSpace(strings.TrimLeft(line, "#")), p.at+1
		case line == "":
		case strings.HasPrefix(line, "#"), strings.HasPrefix(line, "//"):
			word := strings.Fields(strings.TrimLeft(line, "#/"))
			if len(word) == 0 || word[0][0] != '@' {
				continue
			}
			directive = p.at + 1
			if err := p.parseDirective(c, word); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	switch {
	case directive > 0:
		return p.wrong(directive, "this belongs to no request")
	case c.Name != "":
		return p.wrong(named, "the case %q has no request", c.Name)
	}
	return nil
}

func (p *caseParser) parseDirective(c *Case, word []string) error {
	switch {
	case word[0] == "@safe" && len(word) == 1:
		c.Safe = true
		return nil
	case word[0] == "@repeat" && len(word) == 2:
		n, err := strconv.Atoi(word[1])
		if err != nil || n < 1 || n > maxRepeat {
			return p.wrong(p.at+1, "@repeat wants a number from 1 to %d", maxRepeat)
		}
		c.Repeat = n
		return nil
	}
	return p.wrong(p.at+1, "%q is not known; there are @safe and @repeat with a number", strings.Join(word, " "))
}

// parseRequest reads the request line and the header.
func (p *caseParser) parseRequest(c *Case) error {
	word := strings.Fields(p.lines[p.at])
	if len(word) == 3 && strings.HasPrefix(word[2], "HTTP/") {
		word = word[:2]
	}
	if len(word) != 2 || !httpguts.ValidHeaderFieldName(word[0]) || word[0] != strings.ToUpper(word[0]) {
		return p.wrong(p.at+1, "want a method and a path, as in POST /charges")
	}
	c.method, c.target = word[0], word[1]
	if err := p.checkPlaceholders(p.at+1, c.target); err != nil {
		return err
	}
	u, err := url.ParseRequestURI(fillIn(c.target, "x"))
	if err != nil || (u.Host == "") != strings.HasPrefix(c.target, "/") || u.User != nil || u.Path == "" ||
		(u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https") || strings.Contains(c.target, "#") || strings.HasPrefix(c.target, "//") {
		return p.wrong(p.at+1, "want a path that begins with /, or a whole URL with one")
	}
	c.header = http.Header{}
	for p.at++; p.more(); p.at++ {
		line := p.lines[p.at]
		if strings.TrimSpace(line) == "" || p.begins() || expectsLine.MatchString(line) {
			return nil
		}
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "//") {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return p.wrong(p.at+1, "want a header field, as in Content-Type: application/json, or an empty line before the body")
		}
		if err := p.checkField(name, value); err != nil {
			return err
		}
		c.header.Add(name, value)
	}
	return nil
}

// checkField refuses what a case can't say of its request.
func (p *caseParser) checkField(name, value string) error {
	switch canonical := http.CanonicalHeaderKey(name); canonical {
	case "Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Expect", "Upgrade", "Te", "Keep-Alive":
		return p.wrong(p.at+1, "%s is set by the gateway", canonical)
	case HeaderJob, HeaderAttempt, HeaderExpires, HeaderReplayed, HeaderAnsweredAt, HeaderRecorded:
		return p.wrong(p.at+1, "%s is set by the gateway", canonical)
	case "Idempotency-Key":
		if strings.Trim(value, `"`) != placeholder {
			return p.wrong(p.at+1, "a fixed key would get the same answer again, and prove nothing: leave the field out, or write %s", placeholder)
		}
	}
	return p.checkPlaceholders(p.at+1, value)
}

// parseBody reads the body, up to what is expected.
func (p *caseParser) parseBody(c *Case) error {
	first := p.at
	for p.more() && !p.begins() && !expectsLine.MatchString(p.lines[p.at]) {
		p.at++
	}
	lines := p.lines[first:p.at]
	for len(lines) > 0 && strings.TrimSpace(lines[0]) == "" {
		lines, first = lines[1:], first+1
	}
	for len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1]) == "" {
		lines = lines[:len(lines)-1]
	}
	text := strings.Join(lines, "\n")
	if name, ok := strings.CutPrefix(text, "<"); ok && len(lines) == 1 && !strings.HasSuffix(strings.TrimSpace(text), ">") {
		name, filled := strings.CutPrefix(name, "@")
		c.raw = !filled
		body, err := p.files.read(strings.TrimSpace(name))
		if err != nil {
			return p.wrong(first+1, "the body: %w", err)
		}
		c.body, text = body, string(body)
		if c.raw {
			return nil
		}
		return p.checkPlaceholders(first+1, text)
	}
	c.body = []byte(text)
	for i, line := range lines {
		if err := p.checkPlaceholders(first+i+1, line); err != nil {
			return err
		}
	}
	return nil
}

func (p *caseParser) checkPlaceholders(line int, text string) error {
	for _, found := range anyPlaceholder.FindAllString(text, -1) {
		if found != placeholder {
			return p.wrong(line, "%s is not known; the only placeholder is %s", short(found), placeholder)
		}
	}
	return nil
}
