package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// runs names the test that runs the commands and programs of a page, for each page
// that has any.
var runs = map[string]string{
	"README.md":                      "TestReadme",
	"docs/admin.md":                  "TestCommandsOfThePages",
	"docs/clients.md":                "TestClientsPage",
	"docs/http.md":                   "TestHTTPPageClients",
	"docs/operating.md":              "TestOperatingPage",
	"docs/redis.md":                  "TestCommandsOfThePages",
	"docs/security.md":               "TestCommandsOfThePages",
	"examples/ai-failover/README.md": "TestExamples",
	"examples/payments/README.md":    "TestExamples",
	"examples/worker/README.md":      "TestExamples",
}

// byTheGate are the lines of pages that the gate runs, or what has to be there for
// it: no test could.
var byTheGate = regexp.MustCompile(`^(git clone .*|cd \S+|make (build|test|lint)\b.*|\.ci/run\b.*|export PATH="\$PWD:\$PATH")$`)

// All that a page tells somebody to run is run, by a test or by the gate.
func TestEverythingIsRun(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, folder := range []string{"e2e", "caddymodule", "proxy", "bench", "docs/model"} {
		files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(text)
		}
	}
	seen := make(map[string]bool)
	for _, p := range pages.All(t, "..") {
		for _, b := range p.Blocks() {
			if !slices.Contains([]string{"console", "sh", "bash", "go", "js", "python", "promql"}, b.Language) {
				continue
			}
			gate := b.Language == "sh"
			for line := range strings.Lines(b.Text) {
				gate = gate && byTheGate.MatchString(strings.TrimSpace(line))
			}
			if gate {
				continue
			}
			seen[p.Path] = true
			if runs[p.Path] == "" {
				t.Errorf("%s:%d: who runs that? Write a test, see e2e/page_test.go, and name it here", p.Path, b.Line)
			}
		}
	}
	for page, test := range runs {
		if !seen[page] {
			t.Errorf("%s has nothing to be run any more: remove it here", page)
		}
		if !strings.Contains(tests.String(), "func "+test+"(t *testing.T)") {
			t.Errorf("%s: there is no test %s", page, test)
		}
	}
}
