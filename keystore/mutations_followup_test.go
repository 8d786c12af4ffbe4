package keystore

// The rules of failovers, races, their providers, and of answers that break the
// contract.
var mutationsOfFollowUps = []mutation{
	{"failover: only after a failure", "followup.go", "if s.Effect != EffectFailed || ", "if s.Next == nil || ", "TestFailOver"},
	{"failover: never from unknown", "followup.go", " || s.Before != AttemptStarting", "", "TestFailOver"},
	{
		"failover: not beside an unresolved attempt", "followup.go",
		`	if s.Next.Unresolved() && s.Next.AttemptCount() >= max {
		return s
	}
`,
		"",
		"TestFailOver",
	},
	{"failover: the failure is in the same write", "followup.go", "s.Next, s.Starts = s.Next.Start(n), true", "s.Next, s.Starts = j.Start(n), true", "TestFailOver"},
	{"race: only beside an own attempt that is unresolved", "followup.go", "a == nil || !a.Unresolved()", "a == nil", "TestStartSibling"},
	{"race: only up to so many attempts", "followup.go", " || j.AttemptCount() >= max {\n\t\treturn nil", " {\n\t\treturn nil", byProperty},
	{"failover: not on a provider that is busy with the job", "followup.go", "if slices.Contains(s.Next.Busy(), n.Provider) {", "if false {", "TestFailOver"},
	{"race: not on a provider that is busy with the job", "followup.go", " || slices.Contains(j.Busy(), n.Provider)", "", "TestStartSibling"},
	{"provider: after a failure the next one", "provider.go", "for i := last + 1; i <", "for i := max(0, last); i <", "TestNextProvider"},
	{"provider: only one that may be used", "provider.go", "if i == 0 || eligible(configured[i]) {", "if true {", "TestNextProvider"},
	{"provider: the primary needs no proof", "provider.go", "if i == 0 || eligible(configured[i]) {", "if eligible(configured[i]) || i > len(configured) {", "TestNextProvider"},
	{"provider: after a resolution the same again", "provider.go", "if a.Resolution != nil && slices", "if false && slices", "TestNextProvider"},
	{"provider: a sibling's failure hides no resolution", "provider.go", "if a.Version != latest.Version {", "if a != latest {", "TestNextProvider"},
	{"provider: a resolution before a failure is past", "provider.go", "if a.Version != latest.Version {", "if false {", "TestNextProvider"},
	{"provider: what was never dispatched says nothing", "provider.go", "case a.neverDispatched():", "case false:", "TestNextProvider"},
	{"violation: kept by an unknown attempt only", "report.go", "	if state == AttemptUnknown {\n		a.Kept", "	if true {\n		a.Kept", "TestKeptAnswerIsDroppedWhenItIsNoLongerWanted"},
	{
		"violation: what was kept goes when a sibling wins", "report.go",
		`			j.drop(a)
`,
		"",
		"TestKeptAnswerIsDroppedWhenItIsNoLongerWanted",
	},
	{
		"violation: what was kept goes with any decision", "resolve.go",
		`	next.drop(a)
`,
		"",
		"TestKeptAnswerIsDroppedWhenItIsNoLongerWanted",
	},
	{"violation: its store is told what nobody keeps any more", "violation.go", "a.Kept.Apart != nil {", "false {", "TestResolveWithTheKeptAnswer"},
	{"violation: only a whole answer becomes a result", "violation.go", " || !a.Kept.whole() {", " {", "TestResolveWithTheKeptAnswer"},
	{"violation: one answer, the kept one or another", "resolve.go", "if !ok || resp != nil {", "if !ok {", "TestResolveWithTheKeptAnswer"},
	{"violation: told of a failure that an aborted claim knew of", "abort.go", " Violation: w.Violation,", "", "TestAbortOfAFailoverKeepsTheViolation"},
	{"violation: bounded", "violation.go", "if len(s) <= maxViolation {", "if true {", "TestViolationIsBounded"},
	{"record: only an unknown attempt keeps an answer", "record.go", "if a.Kept != nil && a.State != AttemptUnknown {", "if false {", "TestImpossibleRecordsAreRefused"},
}
