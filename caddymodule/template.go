package caddymodule

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// jobPlaceholders are those that stand for what a lookup is about.
var jobPlaceholders = []string{
	"http.idempotency.key_sent",
	"http.idempotency.key",
	"http.idempotency.job",
	"http.idempotency.attempt",
}

// globalPlaceholders begin the names of placeholders that need no request.
var globalPlaceholders = []string{"env.", "file.", "system.", "time."}

// template is a text with placeholders. It is not the work of a caddy.Replacer,
// since what a value has to be escaped for depends on where it stands.
type template []templatePart

// templatePart is a literal, or the name of a placeholder.
type templatePart struct {
	literal, name string
	escape        escaper
}

// escaper makes a value fit for its place. Whether it is the job's, and so
// chosen by a client, or the operator's own makes a difference.
type escaper func(value string, ofJob bool) (string, error)

// newTemplate takes a text apart.
func newTemplate(text string, escape escaper) (t template, err error) {
	for text != "" {
		literal, rest, found := strings.Cut(text, "{")
		if strings.Contains(literal, "}") {
			return nil, errors.New("there is a } without its {")
		}
		if literal != "" {
			t = append(t, templatePart{literal: literal})
		}
		if !found {
			break
		}
		name, rest, closed := strings.Cut(rest, "}")
		switch {
		case !closed:
			return nil, errors.New("there is a { without its }")
		case !slices.Contains(jobPlaceholders, name) && !slices.ContainsFunc(globalPlaceholders, func(p string) bool { return strings.HasPrefix(name, p) }):
			return nil, fmt.Errorf("{%s} has no value here, where there is no request; there are {%s}, {env.*} and {file.*}",
				name, strings.Join(jobPlaceholders, "}, {"))
		}
		t = append(t, templatePart{name: name, escape: escape})
		text = rest
	}
	return t, nil
}

// expand replaces the placeholders: those of the job by the values given, the
// others by what they stand for at present. An error names the placeholder and
// not what stands around it.
func (t template) expand(ofJob map[string]string) (string, error) {
	var text strings.Builder
	var global *caddy.Replacer
	for _, part := range t {
		if part.name == "" {
			text.WriteString(part.literal)
			continue
		}
		value, isJobs := ofJob[part.name]
		if !isJobs {
			if global == nil {
				global = caddy.NewReplacer()
			}
			value, _ = global.GetString(part.name)
			if strings.HasPrefix(part.name, "file.") {
				value = strings.TrimRight(value, "\r\n") // editors end files with a line break
			}
		}
		if value == "" {
			return "", proxy.LookupError("{" + part.name + "} stands for nothing; is the environment variable or file there?")
		}
		value, err := part.escape(value, isJobs)
		if err != nil {
			return "", proxy.LookupError(fmt.Sprintf("{%s} %v", part.name, err))
		}
		text.WriteString(value)
	}
	return text.String(), nil
}

// names returns the names of the template's placeholders.
func (t template) names() (names []string) {
	for _, part := range t {
		if part.name != "" {
			names = append(names, part.name)
		}
	}
	return names
}

// asItIs escapes nothing.
func asItIs(value string, _ bool) (string, error) { return value, nil }

// inQuery escapes for a part of a query.
func inQuery(value string, _ bool) (string, error) { return url.QueryEscape(value), nil }

// inPath escapes for a part of a path. What a client has chosen stays within its
// segment: many servers take an escaped slash for a slash.
func inPath(value string, ofJob bool) (string, error) {
	if ofJob && strings.ContainsAny(value, `/\`) {
		return "", errors.New("has a slash, and stands in a path")
	}
	segments := strings.Split(value, "/")
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	return strings.Join(segments, "/"), nil
}

// inOrigin is for where a URL's scheme and host stand, which is the operator's
// to say.
func inOrigin(value string, ofJob bool) (string, error) {
	if ofJob {
		return "", errors.New("can't stand for where the upstream is")
	}
	return strings.TrimSuffix(value, "/"), nil
}

// urlTemplate is the template of a URL, in the parts for which values are
// escaped differently.
type urlTemplate struct{ origin, path, query template }

// newURLTemplate takes a URL apart before its placeholders are replaced.
func newURLTemplate(text string) (t urlTemplate, err error) {
	if strings.ContainsAny(text, "\\#\" \t") {
		return t, errors.New("a URL of a lookup has no backslash, quote, blank or fragment")
	}
	head, query, _ := cutOutside(text, "?")
	origin, path := "", head
	switch {
	case strings.HasPrefix(head, "http://"), strings.HasPrefix(head, "https://"):
		scheme, rest, _ := strings.Cut(head, "://")
		host, after, found := cutOutside(rest, "/")
		origin, path = scheme+"://"+host, ""
		if found {
			path = "/" + after
		}
	case strings.HasPrefix(head, "{"):
		// The placeholder of an origin, and of a path before what follows.
		end := strings.Index(head, "}") + 1
		origin, path = head[:end], head[end:]
		if path != "" && (path[0] != '/' || strings.HasPrefix(path, "//")) {
			return t, errors.New("what follows the placeholder must begin with a /")
		}
	}
	if origin == "" && (!strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//")) {
		return t, errors.New("write a path such as /charges?key={http.idempotency.key}, for the provider of the attempt, or a URL with http:// or https://")
	}
	if t.origin, err = newTemplate(origin, inOrigin); err != nil {
		return t, err
	}
	for _, name := range t.origin.names() {
		if slices.Contains(jobPlaceholders, name) {
			return t, fmt.Errorf("{%s} can't stand for where the upstream is", name)
		}
	}
	if t.path, err = newTemplate(path, inPath); err != nil {
		return t, err
	}
	t.query, err = newTemplate(query, inQuery)
	return t, err
}

// cutOutside is strings.Cut at the first separator outside of placeholders.
func cutOutside(text, sep string) (before, after string, found bool) {
	depth := 0
	for i := range len(text) {
		switch {
		case text[i] == '{':
			depth++
		case text[i] == '}':
			depth--
		case depth == 0 && strings.HasPrefix(text[i:], sep):
			return text[:i], text[i+len(sep):], true
		}
	}
	return text, "", false
}

// expand returns the URL. Its errors don't show it, as there may be keys and
// secrets in it.
func (t *urlTemplate) expand(ofJob map[string]string) (*url.URL, error) {
	origin, err := t.origin.expand(ofJob)
	if err != nil {
		return nil, err
	}
	path, err := t.path.expand(ofJob)
	if err != nil {
		return nil, err
	}
	query, err := t.query.expand(ofJob)
	if err != nil {
		return nil, err
	}
	text := origin + path
	if query != "" {
		text += "?" + query
	}
	u, err := url.Parse(text)
	switch {
	case err != nil, strings.ContainsAny(origin, "?#"):
		return nil, errors.New("what it comes to is no URL")
	case u.User != nil:
		return nil, errors.New("what it comes to has a user or password; give them as a header, as in `header Authorization {env.LOOKUP_TOKEN}`")
	case u.Scheme == "" && u.Host == "" && strings.HasPrefix(text, "/"): // of the provider of the attempt
	case (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "":
	default:
		return nil, errors.New("what it comes to is neither a path nor a URL with http:// or https://")
	}
	for segment := range strings.SplitSeq(strings.ReplaceAll(u.Path, `\`, "/"), "/") {
		if segment == "." || segment == ".." {
			return nil, proxy.LookupError("what the URL comes to leaves its path, by a segment of dots")
		}
	}
	return u, nil
}

// static reports whether only what the lookup is about is yet to be replaced.
func (t *urlTemplate) static() bool {
	names := slices.Concat(t.origin.names(), t.path.names(), t.query.names())
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(jobPlaceholders, name) })
}
