// Package pages reads the project's documentation, for the tests that hold it to
// what it says.
package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Page is a page of the documentation.
type Page struct {
	Path string // below the checkout, with slashes
	Text string
}

// Block is what stands between fences.
type Block struct {
	Language string
	Text     string
	Line     int // of its first line in the page
}

// Link is a link or a picture.
type Link struct {
	Target string
	Line   int
}

// All returns all pages of the checkout.
func All(t testing.TB, root string) (all []Page) {
	t.Helper()
	files := os.DirFS(root)
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "node_modules" || name == "testdata" || (path != "." && strings.HasPrefix(name, "."))):
			return fs.SkipDir
		case !strings.HasSuffix(name, ".md"):
			return nil
		}
		text, err := fs.ReadFile(files, path)
		all = append(all, Page{path, string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(p Page) bool { return p.Path == "README.md" }) {
		t.Fatalf("there is no README.md in %s: this is not the checkout", root)
	}
	return all
}

// Of returns one page.
func Of(t testing.TB, root, path string) Page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return Page{path, string(text)}
}

// Section returns what stands below a heading, up to the next one of its level or
// of a higher one.
func (p Page) Section(t testing.TB, heading string) Page {
	t.Helper()
	_, text, found := strings.Cut("\n"+p.Text, "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no %q", p.Path, heading)
	}
	level := len(heading) - len(strings.TrimLeft(heading, "#"))
	var section strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		fenced = fenced != strings.HasPrefix(line, "```")
		marks := len(line) - len(strings.TrimLeft(line, "#"))
		if !fenced && marks > 0 && marks <= level {
			break
		}
		section.WriteString(line)
	}
	return Page{p.Path, section.String()}
}

// Table returns the cells of the first table with this heading in its first column.
func (p Page) Table(t testing.TB, first string) (rows [][]string) {
	t.Helper()
	_, table, found := strings.Cut("\n"+p.Text, "\n| "+first+" |")
	if !found {
		t.Fatalf("%s has no table of %q", p.Path, first)
	}
	n := 0
	for line := range strings.Lines(table) {
		if n++; n <= 2 {
			continue // the rest of the heading, and the line below
		}
		if !strings.HasPrefix(line, "| ") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), " | ") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

// Blocks returns the page's blocks.
func (p Page) Blocks() (all []Block) {
	var b *Block
	indent := ""
	n := 0
	for line := range strings.Lines(p.Text) {
		n++
		unindented := strings.TrimLeft(line, " ")
		language, fence := strings.CutPrefix(strings.TrimRight(unindented, " \r\n"), "```")
		switch {
		case fence && b == nil:
			b = &Block{Language: strings.TrimSpace(language), Line: n + 1}
			indent = line[:len(line)-len(unindented)]
		case fence:
			all = append(all, *b)
			b = nil
		case b != nil:
			b.Text += strings.TrimPrefix(line, indent)
		}
	}
	return all
}

var (
	link      = regexp.MustCompile(`\]\(([^()\s]+)(?: "[^"]*")?\)`)
	code      = regexp.MustCompile("`[^`]*`")
	noLetter  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	linkText  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	htmlPlace = regexp.MustCompile(`<a (?:id|name)="([^"]+)">`)
)

// prose calls f with the lines outside of blocks.
func (p Page) prose(f func(n int, line string)) {
	fenced := false
	n := 0
	for line := range strings.Lines(p.Text) {
		n++
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			fenced = !fenced
			continue
		}
		if !fenced {
			f(n, strings.TrimRight(line, "\r\n"))
		}
	}
}

// Links returns the page's links.
func (p Page) Links() (all []Link) {
	p.prose(func(n int, line string) {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(line, "``"), -1) {
			all = append(all, Link{found[1], n})
		}
	})
	return all
}

// Anchors returns the places in the page that a link can name, made of its
// headings as GitHub does it.
func (p Page) Anchors() map[string]bool {
	all := make(map[string]bool)
	p.prose(func(_ int, line string) {
		for _, found := range htmlPlace.FindAllStringSubmatch(line, -1) {
			all[found[1]] = true
		}
		marks := len(line) - len(strings.TrimLeft(line, "#"))
		if marks == 0 || !strings.HasPrefix(line[marks:], " ") {
			return
		}
		heading := linkText.ReplaceAllString(strings.TrimSpace(line[marks:]), "$1")
		slug := strings.ReplaceAll(noLetter.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
		name := slug
		for i := 1; all[name]; i++ {
			name = slug + "-" + strconv.Itoa(i)
		}
		all[name] = true
	})
	return all
}
