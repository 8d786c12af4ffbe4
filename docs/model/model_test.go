package model_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// world is what can happen around a job, to be searched to the last state. Its
// switches are those that idempotency.pml explains.
type world struct{ name, switches string }

func (w world) flags() []string { return strings.Fields(w.switches) }

// The largest come first, so that none of them is searched alone at the end.
var worlds = []world{
	{"race", "-DTWO -DRACING -DSPLIT"},
	{"race with faults", "-DTWO -DREQUEST2 -DRACING -DFAULTS=1"},
	{"race with loss", "-DTWO -DREQUEST2 -DRACING -DLOSSES=1 -DCALM"},
	{"race of three", "-DREQUEST2 -DREQUEST3 -DRACING -DMAX=2 -DCALM"},
	{"crash", "-DTWO -DREQUEST2 -DCRASHES=1 -DOPS=1"},
	{"race with an operator", "-DTWO -DRACING -DOPS=1"},
	{"race with a crash", "-DTWO -DRACING -DCRASHES=1"},
	{"gone with faults", "-DTWO -DREQUEST2 -DGONE=1 -DFAULTS=1"},
	{"loss", "-DTWO -DREQUEST2 -DLOSSES=1"},
	{"three requests", "-DREQUEST2 -DREQUEST3"},
	{"durable with faults", "-DTWO -DREQUEST2 -DLOSSES=1 -DFAULTS=1 -DDURABLE"},
	{"gone", "-DTWO -DREQUEST2 -DGONE=1 -DOPS=1"},
	{"wrong", "-DTWO -DREQUEST2 -DWRONG -DOPS=1"},
	{"wrong with faults", "-DTWO -DWRONG -DOPS=1 -DFAULTS=1"},
	{"faults", "-DTWO -DREQUEST2 -DFAULTS=1"},
	{"failover", "-DREQUEST3 -DFAILOVER"},
	{"failover with faults", "-DTWO -DFAILOVER -DFAULTS=1"},
	{"failover with loss", "-DTWO -DFAILOVER -DLOSSES=1"},
	{"race with failover", "-DTWO -DRACING -DFAILOVER"},
	{"durable", "-DTWO -DREQUEST2 -DLOSSES=1 -DOPS=1 -DDURABLE"},
	{"renewals", "-DTWO -DREQUEST2 -DRENEWALS=1 -DSPLIT"},
	{"loss with an operator", "-DTWO -DLOSSES=1 -DOPS=1"},
	{"input", "-DREQUEST3 -DOTHER_INPUT"},
}

// mutations break one rule each, in a world that must notice it.
var mutations = []struct{ rule, world string }{
	// Judging a claim.
	{"OWN_CLAIM_IS_ANOTHERS", "faults"},
	{"STATE_BEFORE_FINGERPRINT", "input"},
	{"NO_FINGERPRINT", "input"},
	{"COMPLETED_IS_OPEN", "three requests"},
	{"RUNNING_IS_OPEN", "three requests"},
	{"UNKNOWN_IS_OPEN", "three requests"},
	{"LAPSED_IS_FREE", "crash"},
	{"WAITER_BECOMES_LEADER", "three requests"},
	{"REFUSED_CLAIMS_AGAIN", "three requests"},
	{"LOST_IS_CREATED", "gone"},

	// The state machine.
	{"SILENCE_IS_FAILURE", "three requests"},
	{"LAPSED_HAS_FAILED", "crash"},
	{"RENEWAL_REVIVES", "renewals"},
	{"LATE_RESULT_IS_DROPPED", "three requests"},
	{"LATE_PROOF_IS_DROPPED", "three requests"},
	{"RESOLVED_FAILURE_IS_FINAL", "wrong"},
	{"CANCEL_THEN_COMMIT", "wrong"},
	{"CANCELLED_IS_FINAL", "wrong"},
	{"FAILURE_IS_CONTRADICTED_IN_SILENCE", "wrong"},
	{"CANCELLED_IS_CONTRADICTED_IN_SILENCE", "wrong"},
	{"SUCCESS_IS_CONTRADICTED_IN_SILENCE", "wrong"},
	{"CONTRADICTION_IS_TOLD_ONCE", "wrong with faults"},
	{"SLOT_IS_OVERWRITTEN", "race"},
	{"OWN_COMMIT_IS_ANOTHERS", "faults"},
	{"COMMIT_IGNORES_VERSION", "wrong"},
	{"NEXT_ATTEMPT_KEEPS_THE_VERSION", "three requests"},
	{"NEXT_ATTEMPT_KEEPS_THE_EXPIRY", "three requests"},
	{"NEXT_ATTEMPT_RENAMES_THE_JOB", "three requests"},
	{"UNRESOLVED_EXPIRES", "gone"},
	{"FORGET_WHILE_LISTENING", "gone"},
	{"RESOLVES_STARTING", "crash"},
	{"RESOLVES_WHAT_IS_PROVEN", "crash"},

	// Racing and failover.
	{"SIBLINGS_SHARE_NO_VERSION", "race"},
	{"SIBLINGS_STAY", "race"},
	{"RACES_BESIDE_RUNNING", "race with faults"},
	{"WAITER_ADDS_SIBLING", "race with faults"},
	{"NO_MAXIMUM", "race of three"},
	{"RACES_WHAT_IS_OVER", "race"},
	{"FAILOVER_FROM_UNKNOWN", "failover"},

	// Dispatch.
	{"AMBIGUOUS_IS_CLAIMED", "faults"},
	{"DISPATCHES_LATE", "crash"},
	{"TELLS_FIRST", "crash"},

	// Aborted claims.
	{"AMBIGUOUS_IS_LEFT", "faults"},
	{"ABORT_LEAVES_THE_CREATE", "faults"},
	{"ABORT_LEAVES_THE_SWAP", "faults"},
	{"ABORT_LEAVES_THE_UNKNOWN", "faults"},
	{"ABORT_FORGETS_THE_PROOF", "failover with faults"},

	// The store.
	{"CREATE_OVERWRITES", "three requests"},
	{"SWAP_IS_BLIND", "race"},
	{"NO_WRITE_ID", "race"},
	{"DOUBT_IS_DONE", "durable with faults"},
	{"REPLAYS_UNACKNOWLEDGED", "durable with faults"},
	{"SHORT_CLAIM_IS_RUN", "durable"},

	// A store that forgets.
	{"NEVER_RECOVERS", "loss"},
	{"RECOVERS_UNDER_ANOTHER_ID", "loss"},
	{"RECOVERS_NO_PROOF", "failover with loss"},
	{"RECOVERS_BESIDE", "race with loss"},
	{"RECOVERS_INTO_ANOTHER_JOB", "loss"},
	{"RECOVERS_WHAT_WAS_DECIDED", "loss with an operator"},
	{"RECOVERS_WHAT_IS_OLD", "gone"},
}

var (
	errorsFound  = regexp.MustCompile(`errors: (\d+)`)
	statesStored = regexp.MustCompile(`(\d+) states, stored`)
)

// search makes a verifier of the model and runs it. It says how many states there
// are and whether an assertion was violated; a search that is not complete is a
// failure of the test.
func search(t *testing.T, optimize string, switches ...string) (states int, violated bool) {
	t.Helper()
	dir := t.TempDir()
	source, err := filepath.Abs("idempotency.pml")
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, "spin", append(switches, "-a", source)...)
	run(t, dir, "gcc", optimize, "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=1900", "-o", "pan", "pan.c")
	out := run(t, dir, filepath.Join(dir, "pan"), "-m100000", "-w22")
	found, stored := errorsFound.FindStringSubmatch(out), statesStored.FindStringSubmatch(out)
	switch {
	case found == nil, stored == nil, strings.Contains(out, "max search depth too small"):
		t.Fatalf("the search is not complete:\n%s", out)
	case found[1] != "0":
		if !strings.Contains(out, "assertion violated") {
			t.Fatalf("something else than a rule is broken:\n%s", out)
		}
		return 0, true
	case strings.Contains(out, "Search not completed"):
		t.Fatalf("the search is not complete:\n%s", out)
	}
	states, err = strconv.Atoi(stored[1])
	if err != nil {
		t.Fatal(err)
	}
	return states, false
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// The invariants of the design hold in every state that these worlds can reach.
func TestInvariantsInEveryState(t *testing.T) {
	var total atomic.Int64
	began := time.Now()
	t.Cleanup(func() {
		t.Logf("%d states in %d worlds, %s", total.Load(), len(worlds), time.Since(began).Round(time.Second))
	})
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			// More optimizing takes the compiler longer than it saves the search.
			states, violated := search(t, "-O1", w.flags()...)
			if violated {
				t.Fatal("an invariant does not hold; to see how, run pan and spin -k by hand as README.md says")
			}
			total.Add(int64(states))
			t.Logf("%d states, %s with making the verifier", states, time.Since(began).Round(100*time.Millisecond))
		})
	}
}

// A rule that is broken is noticed, or the search would prove nothing.
func TestBrokenRulesAreCaught(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.rule, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(worlds, func(w world) bool { return w.name == m.world })
			if i < 0 {
				t.Fatalf("there is no world %q", m.world)
			}
			if _, violated := search(t, "-O0", append(worlds[i].flags(), "-DBREAK_"+m.rule)...); !violated {
				t.Fatal("nothing notices that this rule is broken")
			}
		})
	}
}

// Every rule that the model can break is broken, and the page beside it names the
// same worlds and rules as this test.
func TestNothingIsLeftOut(t *testing.T) {
	model, readme := read(t, "idempotency.pml"), read(t, "README.md")
	var inModel, here []string
	for _, m := range regexp.MustCompile(`\bBREAK_(\w+)`).FindAllStringSubmatch(model, -1) {
		inModel = append(inModel, m[1])
	}
	for _, m := range mutations {
		here = append(here, m.rule)
	}
	slices.Sort(inModel)
	slices.Sort(here)
	if inModel = slices.Compact(inModel); !slices.Equal(inModel, here) {
		t.Errorf("the model can break\n%v, and these are broken:\n%v", inModel, here)
	}

	var table []string
	for _, row := range regexp.MustCompile("(?m)^\\| ([^|]+) \\| `([^`]+)` \\| [0-9,]+ \\|").FindAllStringSubmatch(readme, -1) {
		table = append(table, row[1]+": "+row[2])
	}
	var want []string
	for _, w := range worlds {
		want = append(want, w.name+": "+w.switches)
	}
	slices.Sort(table)
	slices.Sort(want)
	if !slices.Equal(table, want) {
		t.Errorf("README.md has the worlds\n%s\nand these are searched:\n%s", strings.Join(table, "\n"), strings.Join(want, "\n"))
	}

	table, want = nil, nil
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(readme, -1) {
		table = append(table, row[1]+": "+row[2])
	}
	for _, m := range mutations {
		want = append(want, m.rule+": "+m.world)
	}
	slices.Sort(table)
	slices.Sort(want)
	if !slices.Equal(table, want) {
		t.Errorf("README.md has the broken rules\n%s\nand these are broken:\n%s", strings.Join(table, "\n"), strings.Join(want, "\n"))
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
