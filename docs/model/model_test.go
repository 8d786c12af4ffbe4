package model_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// configurations are worlds that are searched to the last state, each with the
// switches that idempotency.pml explains.
var configurations = map[string][]string{
	"three requests": {"-DREQUEST2", "-DREQUEST3"},
	"faults":         {"-DTWO", "-DREQUEST2", "-DFAULTS=1"},
	"crash":          {"-DTWO", "-DREQUEST2", "-DCRASHES=1", "-DOPS=1"},
	"wrong":          {"-DTWO", "-DREQUEST2", "-DWRONG", "-DOPS=1"},
	"input":          {"-DREQUEST3", "-DOTHER_INPUT"},
	"failover":       {"-DREQUEST3", "-DFAILOVER"},
	"loss":           {"-DTWO", "-DREQUEST2", "-DLOSSES=1"},
	"durable":        {"-DTWO", "-DREQUEST2", "-DLOSSES=1", "-DOPS=1", "-DDURABLE"},
	"durable faults": {"-DTWO", "-DREQUEST2", "-DLOSSES=1", "-DFAULTS=1", "-DDURABLE"},
}

// mutations break one rule each, in a configuration that must notice it.
var mutations = []struct{ rule, configuration string }{
	{"UNKNOWN_IS_OPEN", "three requests"},
	{"CREATE_OVERWRITES", "three requests"},
	{"WAITER_BECOMES_LEADER", "three requests"},
	{"COMMIT_IGNORES_VERSION", "wrong"},
	{"CANCEL_THEN_COMMIT", "wrong"},
	{"AMBIGUOUS_IS_CLAIMED", "faults"},
	{"AMBIGUOUS_IS_LEFT", "faults"},
	{"RESOLVES_STARTING", "crash"},
	{"DISPATCHES_LATE", "crash"},
	{"FAILOVER_FROM_UNKNOWN", "failover"},
	{"STATE_BEFORE_FINGERPRINT", "input"},
	{"NO_FINGERPRINT", "input"},
}

var errorsFound = regexp.MustCompile(`errors: (\d+)`)

// search makes a verifier of the model and runs it. It says whether an assertion
// was violated; a search that is not complete is a failure of the test.
func search(t *testing.T, optimize string, switches ...string) (violated bool) {
	t.Helper()
	dir := t.TempDir()
	source, err := filepath.Abs("idempotency.pml")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	run(t, dir, "spin", append(switches, "-a", source)...)
	run(t, dir, "gcc", optimize, "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=1900", "-o", "pan", "pan.c")
	out := run(t, dir, filepath.Join(dir, "pan"), "-m100000", "-w22")
	found := errorsFound.FindStringSubmatch(out)
	switch {
	case found == nil, strings.Contains(out, "max search depth too small"):
		t.Fatalf("the search is not complete:\n%s", out)
	case found[1] != "0":
		if !strings.Contains(out, "assertion violated") {
			t.Fatalf("something else than a rule is broken:\n%s", out)
		}
		return true
	case strings.Contains(out, "Search not completed"):
		t.Fatalf("the search is not complete:\n%s", out)
	}
	states := regexp.MustCompile(`\d+ states, stored`).FindString(out)
	t.Logf("%s, %s with making the verifier", states, time.Since(began).Round(100*time.Millisecond))
	return false
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// The invariants of the design hold in every state that these worlds can reach.
func TestInvariantsInEveryState(t *testing.T) {
	for name, switches := range configurations {
		t.Run(name, func(t *testing.T) {
			if search(t, "-O1", switches...) {
				t.Fatal("an invariant does not hold; to see how, run pan and spin -t by hand as README.md says")
			}
		})
	}
}

// A rule that is broken is noticed, or the search would prove nothing.
func TestBrokenRulesAreCaught(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.rule, func(t *testing.T) {
			t.Parallel()
			if !search(t, "-O0", append([]string{"-DBREAK_" + m.rule}, configurations[m.configuration]...)...) {
				t.Fatal("nothing notices that this rule is broken")
			}
		})
	}
}
