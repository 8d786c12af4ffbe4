package keystore

import (
	"reflect"
	"testing"
	"time"
)

// The settings that the table tests share. The instants are far from zero, since
// zero means that there is none.
const (
	epoch     Time = 1_700_000_000_000
	lease          = 90 * time.Second
	listen         = 11 * time.Minute
	retention      = 24 * time.Hour
)

func after(d time.Duration) Time { return epoch.Add(d) }

// tok returns the token of attempt n; tests name attempts by it.
func tok(n byte) Token { return Token{0xa7, n} }

func fingerprint(recipe uint8, input string) Fingerprint {
	return Fingerprint{Recipe: recipe, Sum: DigestOf([]byte(input))}
}

func withSettings(f Fingerprint, settings string) Fingerprint {
	f.Settings = settings
	return f
}

// settingsOf returns the job as if its fingerprint had been made with settings.
func settingsOf(j *Job, settings string) *Job {
	c := *j
	c.Fingerprint = withSettings(c.Fingerprint, settings)
	return &c
}

func answer(body string) *Response {
	return &Response{
		Status: 201, Header: map[string][]string{"Content-Type": {"text/plain"}},
		Body: []byte(body), Size: int64(len(body)), Answered: after(time.Second),
	}
}

func identity() Job {
	name := NameOf("main", "alice", "k1")
	return Job{
		Name: name, ID: name.String() + ".00c0ffee", Space: "main", Owner: OwnerDigest("alice"), KeySent: `"k1"`,
		Fingerprint: fingerprint(1, "pay 10"),
		Request:     RequestInfo{Method: "POST", Path: "/pay", MediaType: "application/json", Size: 9, Label: "payment", Host: "api.example"},
		Created:     epoch, Retention: retention,
	}
}

func starts(n byte, at Time) NewAttempt {
	return NewAttempt{Token: tok(n), Provider: "primary", At: at, Lease: lease, Listen: listen}
}

// running returns a job whose attempt 1 started at epoch.
func running() *Job { return stored(NewJob(identity(), starts(1, epoch))) }

// stored gives a job the write id under which a store would keep it.
func stored(j *Job) *Job {
	c := *j
	c.WriteID = NewWriteID()
	return &c
}

// The reports of attempt n, at a second after epoch unless told otherwise.

func final(n byte, body string) Report {
	return Report{Token: tok(n), Outcome: OutcomeFinal, Response: answer(body), At: after(time.Second), Reason: "answered"}
}

func failed(n byte) Report {
	return Report{Token: tok(n), Outcome: OutcomeFailed, At: after(time.Second), Reason: "never sent"}
}

func unknown(n byte) Report {
	return Report{Token: tok(n), Outcome: OutcomeUnknown, At: after(time.Second), Reason: "cut"}
}

func timedOut(n byte) Report {
	return Report{Token: tok(n), Outcome: OutcomeUnknown, Listening: true, At: after(time.Second), Reason: "timeout"}
}

func renewal(n byte) Report {
	return Report{Token: tok(n), Outcome: OutcomeRunning, At: after(time.Minute), Lease: after(time.Minute).Add(lease)}
}

func (r Report) on(at Time) Report {
	r.At = at
	return r
}

// reported applies reports that must each change the record.
func reported(t *testing.T, j *Job, reports ...Report) *Job {
	t.Helper()
	for _, r := range reports {
		s := j.Report(r)
		if s.Next == nil {
			t.Fatalf("report %d of %s changed nothing", r.Outcome, r.Token)
		}
		j = stored(s.Next)
	}
	return j
}

func resolution(state AttemptState) Resolution {
	return Resolution{State: state, Actor: "op", Evidence: "bank statement", At: after(2 * time.Minute)}
}

// resolved applies a resolution that must be accepted.
func resolved(t *testing.T, j *Job, n byte, state AttemptState) *Job {
	t.Helper()
	var resp *Response
	if state == AttemptSucceeded {
		resp = answer("resolved")
	}
	next, err := j.Resolve(tok(n), resolution(state), resp)
	if err != nil {
		t.Fatal(err)
	}
	return stored(next)
}

// started adds attempt n.
func started(j *Job, n byte, at Time) *Job { return stored(j.Start(starts(n, at))) }

// checkRecord asserts what holds of every record that the state machine makes:
// it survives the codec unchanged, and a completed job has nothing unresolved.
func checkRecord(t *testing.T, j *Job) {
	t.Helper()
	rec, err := EncodeRecord(j)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRecord(j.Name, rec)
	if err != nil {
		t.Fatalf("the codec refuses the record: %v\n%+v", err, j)
	}
	if !reflect.DeepEqual(got, j) {
		t.Fatalf("the codec changed the record:\n got %+v\nwant %+v", got, j)
	}
	if j.CompletedBy.IsZero() {
		return
	}
	for i := range j.Attempts {
		if a := &j.Attempts[i]; a.Unresolved() {
			t.Fatalf("attempt %d of a completed job is %s", a.Number, a.State)
		}
	}
}

// unchanged returns a check that j is still as it is now: transitions return
// new jobs and leave theirs alone.
func unchanged(t *testing.T, j *Job) func() {
	t.Helper()
	rec, err := EncodeRecord(j)
	if err != nil {
		t.Fatal(err)
	}
	before, err := DecodeRecord(j.Name, rec)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if !reflect.DeepEqual(j, before) {
			t.Fatalf("the transition changed the job it was given:\n now %+v\n was %+v", j, before)
		}
	}
}

// situations are the places in which attempt 1 can be when its gateway reports.
// Each is reached by transitions, not made by hand, but for the store's own lapses.
func situations(t *testing.T) map[string]*Job {
	t.Helper()
	isUnknown := reported(t, running(), timedOut(1))
	isEnded := reported(t, running(), unknown(1))
	asFailed := resolved(t, isUnknown, 1, AttemptFailed)
	asCancelled := resolved(t, isUnknown, 1, AttemptCancelled)
	siblings := started(isUnknown, 2, after(time.Second))
	moved := running() // as after a store's rollback of half its writes
	moved.Version++
	movedUnknown := stored(isUnknown)
	movedUnknown.Version++
	return map[string]*Job{
		"starting":                                  running(),
		"starting, lapsed":                          running(),
		"starting beside an unknown one":            swapRoles(siblings),
		"starting, version changed":                 moved,
		"unknown, listening":                        isUnknown,
		"unknown, lapsed":                           stored(running().Lapse(after(lease))),
		"unknown, ended":                            isEnded,
		"unknown beside a running one":              siblings,
		"unknown, version changed":                  movedUnknown,
		"failed":                                    reported(t, running(), failed(1)),
		"failed, next one runs":                     started(reported(t, running(), failed(1)), 2, after(time.Second)),
		"resolved failed":                           asFailed,
		"resolved failed, sibling runs":             resolved(t, siblings, 1, AttemptFailed),
		"resolved failed, next one runs":            started(asFailed, 2, after(time.Hour)),
		"resolved failed, next one failed":          reported(t, started(asFailed, 2, after(time.Hour)), failed(2)),
		"resolved failed, slot taken":               reported(t, started(asFailed, 2, after(time.Hour)), final(2, "two")),
		"resolved failed, sibling took the slot":    reported(t, resolved(t, siblings, 1, AttemptFailed), final(2, "two")),
		"cancelled":                                 asCancelled,
		"cancelled, next one runs":                  started(asCancelled, 2, after(time.Hour)),
		"cancelled, slot taken":                     reported(t, started(asCancelled, 2, after(time.Hour)), final(2, "two")),
		"succeeded":                                 reported(t, running(), final(1, "own")),
		"succeeded after an unknown":                reported(t, isUnknown, final(1, "own")),
		"succeeded against a resolution":            reported(t, asFailed, final(1, "own")),
		"resolved succeeded":                        resolved(t, isUnknown, 1, AttemptSucceeded),
		"resolved succeeded after its end":          resolved(t, isEnded, 1, AttemptSucceeded),
		"discarded by a sibling":                    reported(t, siblings, final(2, "two")),
		"discarded by a sibling, reported":          reported(t, siblings, final(2, "two"), final(1, "own")),
		"discarded after a cancellation":            reported(t, asCancelled, final(1, "own")),
		"discarded after a resolution":              reported(t, started(asFailed, 2, after(time.Hour)), final(1, "own")),
		"discarded by a sibling resolved succeeded": resolved(t, reported(t, siblings, timedOut(2)), 2, AttemptSucceeded),
	}
}

// swapRoles turns "1 unknown, 2 starting" into "2 unknown, 1 starting".
func swapRoles(j *Job) *Job {
	c := stored(j)
	c.Attempts = []Attempt{j.Attempts[0], j.Attempts[1]}
	c.Attempts[0].Token, c.Attempts[1].Token = tok(2), tok(1)
	return c
}
