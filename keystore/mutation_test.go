package keystore

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mutation breaks one rule of the design in the code. The named test must fail on
// the broken code, or nothing would notice if the rule were lost one day.
type mutation struct {
	rule     string
	file     string
	old, new string
	caughtBy string
}

// The properties catch what they can. What no interleaving shows, a table does.
const (
	byProperty = "TestInvariantsUnderRandomInterleavings"
	byLoss     = "TestInvariantsUnderStoreLoss"
)

// A property that is run from a fixed seed draws the same interleavings each time,
// so that a mutation is caught always or never.
var mutantFlags = []string{
	"-test.timeout=2m", "-rapid.seed=1", "-rapid.checks=100", "-rapid.nofailfile", "-rapid.shrinktime=1ns",
}

var mutations = slices.Concat(mutationsOfClaims, mutationsOfReports, mutationsOfJobs, mutationsOfRecords, mutationsOfFollowUps)

func TestEveryRuleHasAMutationThatIsCaught(t *testing.T) {
	t.Parallel()
	checkCatchersPass(t)
	turns := make(chan struct{}, 2)
	for _, m := range mutations {
		t.Run(m.rule, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			m.mustBeCaught(t)
		})
	}
}

// checkCatchersPass runs the tests that have to catch something on the code as it
// is: one that fails there, or does not exist, catches nothing.
func checkCatchersPass(t *testing.T) {
	t.Helper()
	names := map[string]bool{}
	for _, m := range mutations {
		names[m.caughtBy] = true
	}
	bin := buildTests(t, filepath.Join(t.TempDir(), "code.test"))
	for name := range names {
		out, err := runTests(t, bin, "-test.v", "-test.run=^"+name+"$")
		if err != nil || !strings.Contains(out, "--- PASS: "+name) {
			t.Fatalf("%s does not pass on the code as it is: %v\n%s", name, err, out)
		}
	}
}

func (m mutation) mustBeCaught(t *testing.T) {
	t.Helper()
	source, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has the text to replace %d times, want once:\n%s", m.file, n, m.old)
	}
	dir := t.TempDir()
	mutant := filepath.Join(dir, m.file)
	if err := os.WriteFile(mutant, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := buildTests(t, filepath.Join(dir, "mutant.test"), "-overlay="+list)
	out, err := runTests(t, bin, "-test.run=^"+m.caughtBy+"$")
	switch {
	case err == nil:
		t.Fatalf("the mutant survives %s", m.caughtBy)
	case strings.Contains(out, "panic: test timed out"):
		t.Fatalf("%s did not end on the mutant, which may have nothing to do with the rule", m.caughtBy)
	case !strings.Contains(out, "--- FAIL: "+m.caughtBy) && !strings.Contains(out, "panic:"):
		t.Fatalf("%s neither passes nor fails on the mutant: %v\n%s", m.caughtBy, err, out)
	}
}

func buildTests(t *testing.T, bin string, args ...string) string {
	t.Helper()
	// A hundred builds: neither optimised nor with debugging information, they take
	// half the time.
	args = append([]string{"test", "-c", "-vet=off", "-gcflags=-N -l", "-ldflags=-s -w", "-o=" + bin}, args...)
	if out, err := exec.CommandContext(t.Context(), "go", append(args, ".")...).CombinedOutput(); err != nil {
		t.Fatalf("the code does not compile: %v\n%s", err, out)
	}
	return bin
}

func runTests(t *testing.T, bin string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin, append(args, mutantFlags...)...).CombinedOutput()
	return string(out), err
}

// Every sentence of the design that a file of the state machine implements should
// have its mutation; at least no file is forgotten. What stores promise and find out is
// none of it.
func TestMutationsCoverTheStateMachine(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile(`(?m)^\s+(return|case|if) `)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") || file == "store.go" || file == "inspection.go" || !code.Match(source) {
			continue
		}
		if !slices.ContainsFunc(mutations, func(m mutation) bool { return m.file == file }) {
			t.Errorf("no mutation of %s", file)
		}
	}
	rules := map[string]bool{}
	for _, m := range mutations {
		if rules[m.rule] {
			t.Errorf("two mutations are called %q", m.rule)
		}
		rules[m.rule] = true
	}
	if len(mutations) < 35 {
		t.Errorf("%d mutations", len(mutations))
	}
}
