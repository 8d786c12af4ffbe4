package keystore

// The rules of commits, late results, contradictions and recoveries.
var mutationsOfReports = []mutation{
	{"commit: only into an empty slot", "report.go", "if !next.CompletedBy.IsZero() || next.Version != a.Version {", "if next.Version != a.Version {", "TestCommitNeedsAnEmptySlot"},
	{
		"commit: only with the version of its start", "report.go",
		"if !next.CompletedBy.IsZero() || next.Version != a.Version {",
		"if !next.CompletedBy.IsZero() || next.Version < a.Version {",
		"TestCL05LateGatewayTouchesOnlyItsOwn",
	},
	{"commit: only with the version or the slot as they were", "report.go", "if !next.CompletedBy.IsZero() || next.Version != a.Version {", "if next.Version < a.Version {", "TestCommitNeedsAnEmptySlot"},
	{
		"commit: takes the slot", "report.go",
		`	j.CompletedBy = j.Attempts[i].Token
	j.Result = resp
`,
		`	j.Result = resp
`,
		byProperty,
	},
	{
		"commit: the version grows", "report.go",
		`	j.Version++
`,
		"",
		byProperty,
	},
	{"commit: unresolved siblings are discarded in the same write", "report.go", "k != i && a.Unresolved() {", "k != i && a.State == AttemptStarting {", byProperty},
	{"commit: settled siblings keep their state", "report.go", "k != i && a.Unresolved() {", "k != i {", byProperty},
	{
		"commit: fixes the expiry", "report.go",
		`	j.fixExpiry(at, true)
`,
		`	j.fixExpiry(at, false)
`,
		"TestCL13ExpiryIsFixedByTheWriteThatSettles",
	},
	{"already won: the first write stands", "report.go", "		if a.Resolution == nil || a.Resolution.State != AttemptSucceeded {", "		if false {", "TestRacingSiblingsOneWins"},
	{
		"already won: also against a resolution", "report.go",
		"		if a.Resolution == nil || a.Resolution.State != AttemptSucceeded {",
		"		if a.Resolution == nil {",
		"TestReportTable",
	},
	{
		"already won: nothing overwrites it", "report.go",
		`	case AttemptSucceeded:
		if`,
		`	case AttemptSucceeded:
		if a.Resolution == nil && r.Outcome == OutcomeFinal {
			next := j.clone()
			next.Result = r.Response
			return Settlement{Next: next, Effect: EffectWon}
		}
		if`,
		"TestRacingSiblingsOneWins",
	},
	{"failed by its own proof: final", "report.go", "if a.Resolution == nil || r.Outcome != OutcomeFinal {", "if r.Outcome != OutcomeFinal {", "TestReportTable"},
	{"failed by resolution: a late success may take the slot", "report.go", "if a.Resolution == nil || r.Outcome != OutcomeFinal {", "if true {", byProperty},
	{
		"contradiction: success after failed", "report.go",
		`		s.Contradicts = true
`,
		"",
		byProperty,
	},
	{
		"contradiction: success after cancelled", "report.go",
		`		s.Contradicts = r.Outcome == OutcomeFinal
`,
		"",
		byProperty,
	},
	{
		"contradiction: only a success contradicts a cancellation", "report.go",
		`		s.Contradicts = r.Outcome == OutcomeFinal
`,
		`		s.Contradicts = true
`,
		"TestReportTable",
	},
	{
		"contradiction: proof of non-execution after succeeded", "report.go",
		`contradicts := r.Outcome == OutcomeFailed ||
			(r.Outcome == OutcomeFinal && !j.Result.sameAs(r.Response))`,
		"contradicts := r.Outcome == OutcomeFinal && !j.Result.sameAs(r.Response)",
		"TestReportTable",
	},
	{"contradiction: another answer after succeeded", "report.go", "(r.Outcome == OutcomeFinal && !j.Result.sameAs(r.Response))", "false", byProperty},
	{"contradiction: the same answer is none", "report.go", "(r.Outcome == OutcomeFinal && !j.Result.sameAs(r.Response))", "r.Outcome == OutcomeFinal", "TestSameAnswerConfirmsAResolution"},
	{"contradiction: told although nothing is left to write", "report.go", "return Settlement{Contradicts: contradicts}", "return Settlement{}", "TestReportTable"},
	{"contradiction: told again by a discarded attempt", "report.go", "contradicts := r.Outcome == OutcomeFinal && a.Resolution != nil", "contradicts := false", "TestReportTable"},
	{
		"cancelled: a late result makes it discarded", "report.go",
		`		s := j.discard(i, r)
		s.Contradicts`,
		`		s := j.settle(i, r)
		s.Contradicts`,
		byProperty,
	},
	{
		"cancelled: listening on changes nothing", "report.go",
		`	case AttemptCancelled:
		if r.Outcome == OutcomeUnknown && r.Listening {`,
		`	case AttemptCancelled:
		if false {`,
		"TestReportTable",
	},
	{
		"discarded: final", "report.go",
		`	default: // AttemptDiscarded
`,
		`	default: // AttemptDiscarded
		if r.Outcome == OutcomeFailed {
			return j.settle(i, r)
		}
`,
		"TestReportTable",
	},
	{"renewal: only of a starting attempt", "report.go", "if a.State != AttemptStarting || r.Lease <= a.Lease {", "if r.Lease <= a.Lease {", "TestReportTable"},
	{"renewal: never shortens", "report.go", "if a.State != AttemptStarting || r.Lease <= a.Lease {", "if a.State != AttemptStarting {", "TestRenewalOnlyExtends"},
	{
		"renewal: extends how long it may report", "report.go",
		`		renewed.ListensUntil = max(renewed.ListensUntil, r.Lease)
`,
		"",
		"TestRenewalOnlyExtends",
	},
	{
		"unknown, listening: a late result may follow", "report.go",
		`	if r.Outcome != OutcomeUnknown || !r.Listening {
`,
		`	if true {
`,
		"TestReportTable",
	},
	{
		"evidence: what stands keeps its reason", "report.go",
		`	next.Attempts[i].Reason = a.Reason
`,
		"",
		"TestReportKeepsEvidence",
	},
	{
		"expiry: a failure that opens the job fixes it", "report.go",
		`		next.end(i, AttemptFailed, r)
		next.fixExpiry(r.At, false)
`,
		`		next.end(i, AttemptFailed, r)
`,
		byProperty,
	},
	{"trim: what was dropped does not come back as lost", "report.go", ", present.trimmed(own.Number):", ":", "TestLateReportOfATrimmedAttempt"},
	{
		"recover: a lost record is created again", "report.go",
		`		s.Recreates, s.Recovers = true, true
`,
		`		s.Recovers = true
`,
		byLoss,
	},
	{
		"recover: even if the report says nothing new", "report.go",
		`		if s.Next == nil { // the store lost a write that said the same
			s.Next = last.clone()
		}
`,
		"",
		"TestRecoverCreatesTheJobAgain",
	},
	{"recover: not what its gateway saw decided", "report.go", "case own == nil, !own.Unresolved(), own.Resolution != nil:", "case own == nil:", "TestRecoverLeavesNoRoom"},
	{
		"recover: not what is older than the retention", "report.go",
		`	case r.At.Sub(own.Started) > last.Retention:
		return lost // decided by somebody and expired since, for all we know
`,
		"",
		"TestRecoverLeavesNoRoom",
	},
	{"recover: a failure that was lost as well is no obstacle", "report.go", "wiser != nil", "false", "TestRecoverAfterALostFailover"},
	{"recover: not into another job", "report.go", "case present.ID != last.ID, !present", "case !present", "TestRecoverLeavesNoRoom"},
	{"recover: not into a taken slot", "report.go", "!present.CompletedBy.IsZero(), present.Unresolved()", "present.Unresolved()", "TestRecoverLeavesNoRoom"},
	{"recover: not beside an unresolved attempt", "report.go", "present.Unresolved(), present.trimmed", "present.trimmed", "TestRecoverLeavesNoRoom"},
	{
		"recover: with the version that the job has", "report.go",
		`	again.Version = next.Version
`,
		"",
		"TestRecoveredAttemptCanStillWin",
	},
	{
		"recover: with the next number of the job", "report.go",
		`	again.Number = next.AttemptCount() + 1
`,
		"",
		"TestRecoveredAttemptCanStillWin",
	},
	{
		"recover: an unresolved job does not expire", "report.go",
		`	s.Next.fixExpiry(r.At, false)
	s.Recovers`,
		"	s.Recovers",
		"TestRecoverAddsTheAttempt",
	},
	{
		"recover: the job keeps its identity and history", "report.go",
		`	next := present.clone()
	again`,
		`	next := last.clone()
	next.Attempts = nil
	again`,
		byLoss,
	},
	{
		"recover: trims", "report.go",
		`	s.Next.trim()
`,
		"",
		"TestRecoverIntoALongHistory",
	},
}
