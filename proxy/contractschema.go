package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// schema is a compiled JSON Schema.
type schema struct {
	judges *judges
	// known are the names that the schema itself says, in whatever place.
	known map[string]bool
	// sum is a digest of all files that it was made of.
	sum keystore.Digest
}

// compileSchema compiles the JSON Schema (2020-12, with formats asserted) in a
// file. What it refers to must be files beside it, or below: there is no network,
// and no way out of the directory.
func compileSchema(file string) (*schema, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", file, err)
	}
	root, err := os.OpenRoot(filepath.Dir(abs))
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", file, err)
	}
	defer func() { _ = root.Close() }()
	loader := &schemaLoader{
		root: root, dir: filepath.Dir(abs), named: filepath.Base(abs),
		known: map[string]bool{}, files: map[string]keystore.Digest{}, documents: map[string]any{},
	}
	judges, err := newJudges((&url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}).String(), loader)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", file, err)
	}
	return &schema{judges: judges, known: loader.known, sum: loader.sum(loader.named)}, nil
}

// schemaLoader reads the files of one directory, and nothing else.
type schemaLoader struct {
	root  *os.Root
	dir   string
	named string // the schema, which may be a link to wherever
	known map[string]bool
	files map[string]keystore.Digest
	// documents are what was read, by where it was read from.
	documents map[string]any
}

var errForeignSchema = errors.New("a schema may refer only to files in its own directory: keep a copy there, and refer to it by a relative path (where a schema has an $id, that is what its relative paths start from)")

// Load implements [jsonschema.URLLoader].
func (l *schemaLoader) Load(location string) (any, error) {
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "file" || u.Host != "" {
		return nil, errForeignSchema
	}
	name, err := filepath.Rel(l.dir, filepath.FromSlash(u.Path))
	if err != nil || !filepath.IsLocal(name) {
		return nil, errForeignSchema
	}
	read := l.root.ReadFile
	if name == l.named {
		read = func(string) ([]byte, error) { return os.ReadFile(filepath.Join(l.dir, l.named)) }
	}
	text, err := read(name)
	if err != nil {
		return nil, err
	}
	document, violation := parseDocument(text, nil)
	if violation != nil {
		return nil, fmt.Errorf("%s: want %s, it is %s (at %q)", name, violation.Expected, violation.Found, violation.Path)
	}
	l.files[name] = keystore.DigestOf(text)
	l.documents[location] = document
	l.know(document)
	return document, nil
}

func (l *schemaLoader) know(value any) {
	switch v := value.(type) {
	case string:
		l.known[v] = true
	case []any:
		for _, item := range v {
			l.know(item)
		}
	case map[string]any:
		for name, member := range v {
			l.known[name] = true
			l.know(member)
		}
	}
}

// sum is a digest of all files and of which of them is the one to begin with.
func (l *schemaLoader) sum(root string) keystore.Digest {
	lines := []string{fmt.Sprintf("%s root\n", l.files[root])}
	for name, sum := range l.files {
		lines = append(lines, fmt.Sprintf("%s %q\n", sum, name))
	}
	slices.Sort(lines)
	return keystore.DigestOf([]byte(strings.Join(lines, "")))
}

// judge returns how a document breaks the schema, or nil. Of several ways it is
// always the same one. Only openly it shows what stands in the document.
func (s *schema) judge(document any, openly bool) (violation *keystore.Violation) {
	defer func() {
		switch recover() {
		case nil:
		case errTooManySteps:
			violation = &keystore.Violation{Expected: "a document that can be judged in time: the schema's alternatives repeat what they have in common at each level of nesting", Found: "one that takes too long"}
		default:
			violation = &keystore.Violation{Expected: "a document that the schema can be applied to", Found: "another one"}
		}
	}()
	err := s.judges.validate(document)
	if err == nil {
		return nil
	}
	var broken *jsonschema.ValidationError
	if !errors.As(err, &broken) {
		return &keystore.Violation{Expected: "a document that the schema can be applied to", Found: "another one"}
	}
	first := firstCause(broken)
	value, _ := valueAt(document, first.InstanceLocation)
	expected, found := explain(first, value)
	if openly {
		if k, ok := first.ErrorKind.(*kind.AdditionalProperties); ok {
			found = fromSchema(list(k.Properties)...) + " as well"
		} else {
			found = shown(value)
		}
		return &keystore.Violation{Path: pointerOf(first.InstanceLocation), Expected: expected, Found: found}
	}
	return &keystore.Violation{Path: safePath(document, first.InstanceLocation, s.known), Expected: expected, Found: found}
}

// firstCause returns the cause that comes first in the order of its place, since
// the members of an object have none.
func firstCause(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	if len(e.Causes) == 0 || choice(e.ErrorKind) {
		return e
	}
	var first *jsonschema.ValidationError
	for _, cause := range e.Causes {
		if c := firstCause(cause); first == nil || compareCauses(c, first) < 0 {
			first = c
		}
	}
	return first
}

func compareCauses(a, b *jsonschema.ValidationError) int {
	return cmp.Or(
		slices.Compare(a.InstanceLocation, b.InstanceLocation),
		cmp.Compare(a.SchemaURL, b.SchemaURL),
		slices.Compare(a.ErrorKind.KeywordPath(), b.ErrorKind.KeywordPath()),
	)
}

// fromSchema shows values that stand in the schema.
func fromSchema(values ...any) string {
	var b bytes.Buffer
	for i, v := range values {
		if i > 0 {
			b.WriteString(", ")
		}
		text, err := json.Marshal(v)
		if err != nil {
			return "what the schema says"
		}
		b.Write(text)
		if b.Len() > 200 {
			b.WriteString(", …")
			break
		}
	}
	return b.String()
}
