package pages_test

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// The readers of the documentation's tests see what a reader of it sees. If they saw
// nothing, these tests would pass whatever it says.
func TestPage(t *testing.T) {
	t.Parallel()
	p := pages.Page{Path: "x.md", Text: "# One, two: `three`\n" +
		"See [this](a.md#b), `[no](link)` and ![that](c.png \"x\").\n" +
		"\n```sh\n# no heading [no](link)\nls\n```\n\n" +
		"- a list\n\n  ```json\n  {\"a\":\n    1}\n  ```\n\n" +
		"## Again\n## Again\nlast\n# End\n"}
	blocks := p.Blocks()
	if len(blocks) != 2 || blocks[0] != (pages.Block{Language: "sh", Text: "# no heading [no](link)\nls\n", Line: 5}) ||
		blocks[1] != (pages.Block{Language: "json", Text: "{\"a\":\n  1}\n", Line: 12}) {
		t.Errorf("blocks: %+v", blocks)
	}
	links := p.Links()
	if len(links) != 2 || links[0] != (pages.Link{Target: "a.md#b", Line: 2}) || links[1].Target != "c.png" {
		t.Errorf("links: %+v", links)
	}
	anchors := p.Anchors()
	for _, name := range []string{"one-two-three", "again", "again-1", "end"} {
		if !anchors[name] {
			t.Errorf("no anchor %s in %v", name, anchors)
		}
	}
	if len(anchors) != 4 {
		t.Errorf("anchors: %v", anchors)
	}
	if got := p.Section(t, "## Again").Text; got != "" {
		t.Errorf("section: %q", got)
	}
	if got := p.Section(t, "# One, two: `three`").Blocks(); len(got) != 2 {
		t.Errorf("section: %+v", got)
	}
}
