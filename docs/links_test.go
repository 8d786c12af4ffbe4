// Package docs_test holds the documentation to what can be read off its text. What
// its commands print and its configurations do is tested where they can be run.
package docs_test

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// Each link within the project leads somewhere, to a heading too, and each link out
// of it is encrypted.
func TestLinks(t *testing.T) {
	t.Parallel()
	anchors := make(map[string]map[string]bool)
	all := pages.All(t, "..")
	for _, p := range all {
		anchors[p.Path] = p.Anchors()
	}
	seen := 0
	for _, p := range all {
		for _, link := range p.Links() {
			seen++
			if strings.Contains(link.Target, "://") {
				if !strings.HasPrefix(link.Target, "https://") {
					t.Errorf("%s:%d: %s: not https", p.Path, link.Line, link.Target)
				}
				continue
			}
			file, anchor, _ := strings.Cut(link.Target, "#")
			target := p.Path
			if file != "" {
				target = path.Join(path.Dir(p.Path), file)
			}
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(target))); err != nil || strings.HasPrefix(target, "../") {
				t.Errorf("%s:%d: %s: there is no such file", p.Path, link.Line, link.Target)
				continue
			}
			if anchor != "" && !anchors[target][anchor] {
				t.Errorf("%s:%d: %s: %s has no such heading", p.Path, link.Line, link.Target, target)
			}
		}
	}
	if seen < 40 {
		t.Errorf("there are %d links: the pages were not understood", seen)
	}
}

// Commands wait for what they have started in a shell of their own: in the reader's,
// wait would wait for the servers too that commands before have started, for ever.
func TestCommandsWaitForTheirOwn(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, p := range pages.All(t, "..") {
		for _, b := range p.Blocks() {
			for line := range strings.Lines(b.Text) {
				line = strings.TrimSpace(line)
				if b.Language != "console" || !strings.HasPrefix(line, "$ ") || !strings.Contains(line, "; wait") {
					continue
				}
				seen++
				if !strings.HasPrefix(line, "$ (") || !strings.HasSuffix(line, "; wait)") {
					t.Errorf("%s: %s: put it into parentheses", p.Path, line)
				}
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d commands wait: the pages were not understood", seen)
	}
}

// Every page can be reached from the README.
func TestPagesAreLinked(t *testing.T) {
	t.Parallel()
	links := make(map[string][]string)
	for _, p := range pages.All(t, "..") {
		for _, link := range p.Links() {
			file, _, _ := strings.Cut(link.Target, "#")
			if file != "" && !strings.Contains(file, "://") {
				links[p.Path] = append(links[p.Path], path.Join(path.Dir(p.Path), file))
			}
		}
	}
	reached := map[string]bool{"README.md": true}
	for todo := []string{"README.md"}; len(todo) > 0; todo = todo[1:] {
		for _, target := range links[todo[0]] {
			if !reached[target] {
				reached[target] = true
				todo = append(todo, target)
			}
		}
	}
	for _, p := range pages.All(t, "..") {
		if !reached[p.Path] {
			t.Errorf("%s: no page that can be reached from the README leads there", p.Path)
		}
	}
}
