package keystore

// The rules of expiry, histories, resolutions and aborted claims.
var mutationsOfJobs = []mutation{
	{
		"lapsed lease: unknown, never free", "job.go",
		`		case a.Unresolved():
			state = JobUnknown
`,
		`		case a.State == AttemptUnknown:
			state = JobUnknown
`,
		byProperty,
	},
	{
		"expiry: none while unresolved", "job.go",
		`	case j.Unresolved():
		j.Expires = 0
`,
		`	case false:
`,
		byProperty,
	},
	{"expiry: later writes keep it", "job.go", "case completes || j.Expires.IsZero():", "default:", byProperty},
	{
		"immutable: transitions leave their job alone", "job.go",
		`	c.Attempts = slices.Clone(j.Attempts)
`,
		"",
		byProperty,
	},
	{"trim: the first stays", "job.go", "if i == 0 || i >= cut", "if i >= cut", "TestTrim"},
	{"trim: the winner stays", "job.go", " || a.Token == j.CompletedBy {", " {", "TestTrim"},
	{"trim: the unresolved stay", "job.go", " || a.Unresolved() || a.Token ==", " || a.Token ==", "TestTrim"},
	{"trim: the last ones stay", "job.go", "const keptAttempts = 16", "const keptAttempts = 15", "TestTrim"},
	{
		"trim: the rest is counted", "job.go",
		`	j.Dropped += len(j.Attempts) - len(kept)
`,
		"",
		"TestTrim",
	},
	{
		"index: ordered by the lease of what is running", "job.go",
		`	if starting != 0 {
		return starting
	}
`,
		`	_ = starting
`,
		"TestLeaseEndOrdersTheIndex",
	},
	{
		"expiry: a resolution that opens the job fixes it", "resolve.go",
		`	next.fixExpiry(res.At, false)
`,
		"",
		byProperty,
	},
	{"resolve: only unknown attempts", "resolve.go", "case a.State != AttemptUnknown:", "case false:", byProperty},
	{"resolve: only with an empty slot", "resolve.go", "case !j.CompletedBy.IsZero():", "case false:", "TestResolveNeedsAnEmptySlot"},
	{"resolve: succeeded needs a response", "resolve.go", "if resp == nil {", "if false {", "TestResolveRefusesWhatItCannotMean"},
	{
		"resolve: succeeded takes the slot", "resolve.go",
		`				next.takeSlot(i, resp, res.At)
`,
		`				next.Result = resp
`,
		byProperty,
	},
	{
		"resolve: recorded as such", "resolve.go",
		`	a.Resolution = &res
`,
		"",
		byProperty,
	},
	{"forget: not while an attempt may report", "resolve.go", "case j.MayReport(now):", "case false:", byProperty},
	{"forget: only a completed job", "resolve.go", "case j.CompletedBy.IsZero():", "case j.State(now) == JobRunning:", byProperty},
	{
		"abort: a create that may still land is shut out", "abort.go",
		`			return c.neverDispatched(c.Written, at), true
`,
		`			return nil, false
`,
		byProperty,
	},
	{
		"abort: a swap without a record creates none", "abort.go",
		`		if c.Expected.IsZero() {
`,
		`		if true {
`,
		"TestAbortOfASwapWithoutARecord",
	},
	{
		"abort: what has landed is written down", "abort.go",
		`	case present.Attempt(c.Token) != nil:
		return c.neverDispatched(present, at), false
`,
		"",
		byProperty,
	},
	{
		"abort: what is met as unknown is written down", "abort.go",
		`	if j.Attempt(c.Token) == nil {
`,
		`	if a := j.Attempt(c.Token); a == nil || a.State == AttemptUnknown {
`,
		byProperty,
	},
	{"abort: a swap that may still land is shut out", "abort.go", "case !c.Expected.IsZero() && present.WriteID == c.Expected:", "case false:", byProperty},
	{
		"abort: whatever else was true is kept", "abort.go",
		`		next = c.neverDispatched(c.Written, at)
`,
		`		next = present.clone()
`,
		"TestAbortOfASwapThatMayStillLand",
	},
	{
		"abort: an open job goes on expiring when it did", "abort.go",
		`			next.Expires = present.Expires // the job was open, and goes on being so
`,
		`			_ = next
`,
		byProperty,
	},
	{
		"abort: what was true is kept if somebody else wrote first", "abort.go",
		`	return c.proven(present, at), false
`,
		`	return nil, false
`,
		"TestAbortOfASwapThatLostKeepsWhatIsTrue",
	},
	{"abort: a resolution is no proof", "abort.go", "a.Resolution == nil && !a.Ended.IsZero()", "!a.Ended.IsZero()", "TestAbortOfASwapThatLostKeepsWhatIsTrue"},
	{
		"abort: a wrong resolution is told", "abort.go",
		`c.Written.Attempt(a.Token).proved()) {
			return true`,
		`c.Written.Attempt(a.Token).proved()) {
			return false`,
		"TestAbortMeetsAResolution",
	},
}
