package keystore

// The rules of what a claim is told, leases, and the write that starts an attempt.
var mutationsOfClaims = []mutation{
	{
		"no record: only a first claim creates", "judge.go",
		`		if c.First {
			return Create
		}
		return RecordLost`,
		"		return Create",
		byProperty,
	},
	{
		"no record: a first claim creates one", "judge.go",
		`			return Create
		}`,
		`			return RecordLost
		}`,
		"TestCL01JudgeEveryRule",
	},
	{
		"own token: recognised before everything else", "judge.go",
		"if a := j.Attempt(c.Token); a != nil {",
		"if a := j.Attempt(c.Token); a != nil && slices.Contains(c.Fingerprints, j.Fingerprint) {",
		"TestCL01JudgeEveryRule",
	},
	{
		"own token, not live: never dispatched", "judge.go",
		`		return OwnNotLive
	}
	if`,
		`		return Own
	}
	if`,
		"TestCL01JudgeEveryRule",
	},
	{
		"own token, live: ours", "judge.go",
		`			return Own
`,
		`			return OwnNotLive
`,
		"TestCL01JudgeEveryRule",
	},
	{
		"own token, lapsed: not ours to run", "judge.go",
		"if a.live(now) && j.CompletedBy.IsZero() {",
		"if a.State == AttemptStarting && j.CompletedBy.IsZero() {",
		"TestCL01JudgeEveryRule",
	},
	{
		"loop: noticed", "judge.go",
		`		return Loop
`,
		`		return Blocked
`,
		"TestCL01JudgeEveryRule",
	},
	{
		"loop: judged before the fingerprint", "judge.go",
		"if j.waitsFor(c.Caller) {",
		"if slices.Contains(c.Fingerprints, j.Fingerprint) && j.waitsFor(c.Caller) {",
		"TestCL01JudgeEveryRule",
	},
	{"loop: an attempt that is over calls nobody", "caller.go", "a.Unresolved() && ", "", "TestCL01JudgeEveryRule"},
	{"loop: by number and token", "caller.go", "a.Number == c.Number && ", "", "TestCL01JudgeEveryRule"},
	{"loop: by token and number", "caller.go", " && a.Token.Mark() == c.Mark", "", "TestCL01JudgeEveryRule"},
	{
		"other fingerprint: conflict", "judge.go",
		`		return Conflict
`,
		`		return Blocked
`,
		byProperty,
	},
	{
		"fingerprint: judged before the state", "judge.go",
		"if !slices.Contains(c.Fingerprints, j.Fingerprint) {",
		"if j.State(now) != JobRunning && !slices.Contains(c.Fingerprints, j.Fingerprint) {",
		byProperty,
	},
	{"fingerprint: compared at all", "judge.go", "if !slices.Contains(c.Fingerprints, j.Fingerprint) {", "if false {", byProperty},
	{"unknown recipe: its version compared", "job.go", "return f.Recipe == other.Recipe && f.Settings", "return f.Settings", "TestCL01JudgeEveryRule"},
	{"unknown recipe: its settings compared", "job.go", "return f.Recipe == other.Recipe && f.Settings == other.Settings", "return f.Recipe == other.Recipe", "TestCL01JudgeEveryRule"},
	{
		"unknown recipe: no guess", "judge.go",
		`			return UnknownRecipe
`,
		`			return Conflict
`,
		"TestCL01JudgeEveryRule",
	},
	{
		"completed: replay", "judge.go",
		`		return Replay
`,
		`		return NotExecuted
`,
		"TestCL01JudgeEveryRule",
	},
	{
		"completed: judged before a sibling may start", "judge.go",
		`	switch j.State(now) {
	case JobCompleted:`,
		`	if c.First && j.AttemptCount() < c.MaxAttempts {
		return StartSibling
	}
	switch j.State(now) {
	case JobCompleted:`,
		byProperty,
	},
	{
		"running: everybody waits, on a racing route too", "judge.go",
		`	case JobRunning:
		return Wait
`,
		`	case JobRunning:
		if c.First && j.AttemptCount() < c.MaxAttempts {
			return StartSibling
		}
		return Wait
`,
		byProperty,
	},
	{
		"running: nobody starts beside it", "judge.go",
		`		return Wait
`,
		`		return Start
`,
		byProperty,
	},
	{
		"lapsed: written down first", "judge.go",
		`			return Lapsed
`,
		`			return Blocked
`,
		"TestCL01JudgeEveryRule",
	},
	{
		"unknown: blocks", "judge.go",
		`		return Blocked
`,
		`		return Start
`,
		byProperty,
	},
	{"sibling: only a first claim adds one", "judge.go", "case c.First && j.AttemptCount() < c.MaxAttempts:", "case j.AttemptCount() < c.MaxAttempts:", byProperty},
	{"sibling: only below the most attempts", "judge.go", "j.AttemptCount() < c.MaxAttempts:", "j.AttemptCount() <= c.MaxAttempts:", byProperty},
	{"sibling: only on a racing route", "judge.go", "case c.First && j.AttemptCount() < c.MaxAttempts:", "case c.First:", byProperty},
	{
		"open: a first claim starts the next attempt", "judge.go",
		`			return Start
		}
		return NotExecuted`,
		`			return NotExecuted
		}
		return NotExecuted`,
		byProperty,
	},
	{
		"open: only a first claim starts", "judge.go",
		`		if c.First {
			return Start
		}
		return NotExecuted`,
		"		return Start",
		byProperty,
	},
	{"lease: missing is held", "attempt.go", "(a.Lease.IsZero() || now < a.Lease)", "now < a.Lease", "TestCL03MissingLeaseIsHeld"},
	{"lease: its end is its last instant", "attempt.go", "|| now < a.Lease)", "|| now <= a.Lease)", "TestCL01JudgeEveryRule"},
	{"lease: its end is noticed", "attempt.go", "(a.Lease.IsZero() || now < a.Lease)", "true", byProperty},
	{
		"unknown attempt: blocks its job", "attempt.go",
		"return a.State == AttemptStarting || a.State == AttemptUnknown",
		"return a.State == AttemptStarting",
		byProperty,
	},
	{"forget: not while a beaten sibling may report", "attempt.go", " || (a.Ended.IsZero() && now < a.ListensUntil)", "", "TestForget"},
	{
		"version: grows with a start", "start.go",
		`	if !next.Unresolved() {
		next.Version++
	}`,
		"",
		byProperty,
	},
	{
		"version: shared with siblings", "start.go",
		`	if !next.Unresolved() {
		next.Version++
	}`,
		"	next.Version++",
		byProperty,
	},
	{
		"version: a lapsed attempt shares it too", "start.go",
		`	next.lapse(n.At)
	if !next.Unresolved() {
		next.Version++
	}`,
		`	if next.State(n.At) != JobRunning {
		next.Version++
	}
	next.lapse(n.At)`,
		byProperty,
	},
	{
		"start: lapsed leases are written down with it", "start.go",
		`	next.lapse(n.At)
	if`,
		"	if",
		byProperty,
	},
	{
		"start: an unresolved job does not expire", "start.go",
		`	next.fixExpiry(n.At, false)
`,
		"",
		byProperty,
	},
	{"start: an attempt's number goes on after dropped ones", "start.go", "next.AttemptCount() + 1", "len(next.Attempts) + 1", "TestTrim"},
	{
		"lapse: makes attempts unknown, not failed", "start.go",
		`			a.State = AttemptUnknown
`,
		`			a.State = AttemptFailed
`,
		byProperty,
	},
}
