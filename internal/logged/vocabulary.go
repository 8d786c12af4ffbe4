package logged

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// Open ends the text of a line that goes on with what only the moment knows.
const Open = "…"

// varies stands for several levels of one line.
const varies = "varies"

// Vocabulary is what can be logged.
type Vocabulary struct {
	Lines   map[string]string // the level of each text
	Fields  []string          // of all lines
	Loggers []string
}

// check checks that a line is part of it.
func (v Vocabulary) check(t testing.TB, l Line) {
	t.Helper()
	listed := v.Lines[l.Text]
	for text, level := range v.Lines {
		if isOpen(text, l.Text) {
			listed = level
		}
	}
	if level := strings.ToLower(l.Level.String()); listed != level && listed != varies {
		t.Errorf("%s: is logged as %s, and documented as %q", l.Text, level, listed)
	}
	if l.Logger != "" && !slices.Contains(v.Loggers, l.Logger) {
		t.Errorf("%s: is logged by %s, which is not documented", l.Text, l.Logger)
	}
	for name := range l.Fields {
		if !slices.Contains(v.Fields, name) {
			t.Errorf("%s: the field %s is not documented", l.Text, name)
		}
	}
}

// Complete checks that the lines that were seen are all that the code in a folder can
// log, and none besides, and that each of its fields was seen on one of them.
func Complete(t testing.TB, dir string, seen []string, fields []string) {
	t.Helper()
	code := Of(t, dir)
	for line := range code.Lines {
		if !slices.Contains(seen, line) {
			t.Errorf("no test sees %q", line)
		}
	}
	for _, line := range seen {
		if _, can := code.Lines[line]; !can {
			t.Errorf("nothing in %s logs %q", dir, line)
		}
	}
	for _, name := range code.Fields {
		if !slices.Contains(fields, name) {
			t.Errorf("no test sees the field %s", name)
		}
	}
}

var inCode = regexp.MustCompile("`([^`]+)`")

// Documented is what the page on observability lists.
func Documented(t testing.TB, root string) Vocabulary {
	t.Helper()
	section := pages.Of(t, root, "docs/observability/README.md").Section(t, "## Log")
	v := Vocabulary{Lines: make(map[string]string)}
	about, _, _ := strings.Cut(section.Text, "\n\n|")
	about, _, _ = strings.Cut(about, ". ")
	for _, name := range inCode.FindAllStringSubmatch(about, -1) {
		v.Loggers = append(v.Loggers, name[1])
	}
	for _, row := range section.Table(t, "line") {
		v.Lines[row[0]] = row[1]
	}
	for _, row := range section.Table(t, "field") {
		for _, name := range inCode.FindAllStringSubmatch(row[0], -1) {
			v.Fields = append(v.Fields, name[1])
		}
	}
	return v
}

// methods are those of a logger that log: with which level, and how many arguments
// come before the text.
var methods = map[string]struct {
	level  string
	before int
}{
	"Debug": {"debug", 0}, "Info": {"info", 0}, "Warn": {"warn", 0}, "Error": {"error", 0},
	"DebugContext": {"debug", 1}, "InfoContext": {"info", 1}, "WarnContext": {"warn", 1}, "ErrorContext": {"error", 1},
	"LogAttrs": {varies, 2}, "Log": {varies, 2},
}

// Of is what the code in these folders can log.
func Of(t testing.TB, dirs ...string) Vocabulary {
	t.Helper()
	v := Vocabulary{Lines: make(map[string]string)}
	fields := make(map[string]bool)
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", dir, err, len(files))
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					v.learn(call, fields)
				}
				return true
			})
		}
	}
	v.Fields = slices.Sorted(maps.Keys(fields))
	return v
}

// learn adds what a call logs, if it does.
func (v Vocabulary) learn(call *ast.CallExpr, fields map[string]bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	if of, ok := method.X.(*ast.Ident); ok && of.Name == "slog" && len(call.Args) == 2 {
		if key, exact := textOf(call.Args[0]); exact {
			fields[key] = true
		}
		return
	}
	how, ok := methods[method.Sel.Name]
	if !ok || !logs(method.X) {
		return
	}
	args, level := call.Args[how.before:], how.level
	text, exact := textOf(args[0])
	if !exact {
		text += Open
	}
	if before := v.Lines[text]; before != "" && before != level {
		level = varies
	}
	v.Lines[text] = level
	for i := 1; i < len(args); i += 2 { // some are pairs
		if key, exact := textOf(args[i]); exact {
			fields[key] = true
		}
	}
}

// logs reports whether an expression is a logger.
func logs(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log"
	case *ast.SelectorExpr:
		return x.Sel.Name == "log"
	case *ast.CallExpr: // slog.New(…), or one that is made when there is something to say
		f, ok := x.Fun.(*ast.SelectorExpr)
		return ok && (f.Sel.Name == "New" || f.Sel.Name == "log")
	}
	return false
}

// textOf returns the beginning of a text that stands in the code, and whether that is
// all of it.
func textOf(x ast.Expr) (text string, exact bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(x.Value)
		return text, err == nil && x.Kind == token.STRING
	case *ast.BinaryExpr:
		left, exact := textOf(x.X)
		if !exact {
			return left, false
		}
		right, exact := textOf(x.Y)
		return left + right, exact
	}
	return "", false
}
