package keystore

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
)

func encoded(t testing.TB, j *Job) []byte {
	t.Helper()
	rec, err := EncodeRecord(j)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// fullJob has a value in every field that a record can have.
func fullJob() *Job {
	id := identity()
	return &Job{
		WriteID: WriteID{0x11, 0x22}, Name: id.Name, ID: id.ID, Space: id.Space, Owner: id.Owner, KeySent: id.KeySent,
		Fingerprint: withSettings(id.Fingerprint, "json"), Request: id.Request, Created: id.Created, Retention: id.Retention,
		Version: 3, Dropped: 2, CompletedBy: tok(4), Expires: after(time.Hour).Add(retention),
		Attempts: []Attempt{
			{
				Number: 1, Token: tok(1), Provider: "primary", State: AttemptDiscarded, Version: 1, Started: epoch,
				Lease: after(lease), ListensUntil: after(listen), Ended: after(time.Minute), Reason: "late",
				Evidence: Evidence{
					Upstream: "10.0.0.1:80", Hooked: true, Asked: 2, Connected: 2, Wrote: 1, FirstByte: 1,
					Status: 200, Size: 5,
				},
				Resolution: &Resolution{State: AttemptCancelled, Actor: "op", Evidence: "bank statement", At: after(time.Minute), ID: WriteID{0x33}, Kept: true},
				Violation:  &Violation{Path: "/amount", Expected: "integer", Found: "string"},
				Lookups:    Lookups{Count: 3, Last: after(time.Minute), Status: 404, Note: "too early to tell"},
				Trace:      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			},
			{
				Number: 4, Token: tok(4), Provider: "second", State: AttemptSucceeded, Version: 2, Started: after(time.Minute),
				Lease: after(time.Hour), ListensUntil: after(time.Hour), Ended: after(time.Hour),
			},
		},
		Result: &Response{
			Status: 201, Header: map[string][]string{"Content-Type": {"text/plain"}, "Set-Cookie": {"a=1", "b=2"}},
			Trailer: map[string][]string{"Checksum": {"x"}}, Body: []byte("done\x00\xff"), Size: 6, NotKept: true,
			Answered: after(time.Hour), Apart: &BodyRef{Token: tok(4), Size: 6, Sum: 1<<63 + 4},
			SealedBy: "k2", Sum: DigestOf([]byte("sum")),
		},
		KeySealed: &Sealed{By: "k1", Box: []byte("box\x00\xff")},
	}
}

// keepingJob has an attempt that keeps an answer, as only an unknown one does.
func keepingJob() *Job {
	r := broken(1)
	r.Kept.Apart = &BodyRef{Token: tok(8), Size: 3, Sum: 1<<63 + 8}
	j := running().Report(r).Next
	j.WriteID = WriteID{0x44, 0x55}
	return j
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	checkRecord(t, fullJob())
	checkRecord(t, keepingJob())
	attempt := fullJob().Attempts[0]
	attempt.Kept = keepingJob().Attempts[0].Kept
	// Should somebody add a field, this test has to hold it too.
	for _, v := range []any{*fullJob(), attempt, *attempt.Violation, *fullJob().Attempts[0].Resolution, *fullJob().Result, *fullJob().Result.Apart, *fullJob().KeySealed, fullJob().Request, fullJob().Fingerprint, fullJob().Attempts[0].Evidence, fullJob().Attempts[0].Lookups} {
		s := reflect.ValueOf(v)
		for i := range s.NumField() {
			if s.Field(i).IsZero() && s.Type().Field(i).Tag.Get("cbor") != "-" {
				t.Errorf("%s.%s is not tried", s.Type().Name(), s.Type().Field(i).Name)
			}
		}
	}
	for name, j := range situations(t) {
		t.Run(name, func(t *testing.T) { checkRecord(t, j) })
	}
}

// TestRecordGolden reads a record as the first version of this code wrote it.
// Whoever changes the format must go on reading it, or draw another version.
func TestRecordGolden(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]*Job{
		"record-format-1.hex": fullJob(), "record-format-1-kept.hex": keepingJob(),
		// With ids and instants in full, as they were written at first.
		"record-format-1-long.hex": fullJob(), "record-format-1-kept-long.hex": keepingJob(),
	} {
		digits, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := hex.DecodeString(strings.Join(strings.Fields(string(digits)), ""))
		if err != nil {
			t.Fatal(err)
		}
		j, err := DecodeRecord(want.Name, rec)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(j, want) {
			t.Errorf("%s: got %+v\nwant %+v", file, j, want)
		}
		if len(encoded(t, want)) != len(rec) && !strings.Contains(file, "-long") {
			t.Errorf("%s: the same job now takes %d bytes, not %d: the format has changed", file, len(encoded(t, want)), len(rec))
		}
	}
}

// Instants are told by how far they are from the job's creation, wherever they are.
func TestRecordKeepsInstants(t *testing.T) {
	t.Parallel()
	for _, created := range []Time{1, 1_000, 1_700_000_000_000} { // a job without creation there is none
		for _, at := range []Time{1, 999, 1_000, 1_001, 1_699_999_999_999, 1_700_000_000_000, 1<<40 - 1, 1 << 40, 1<<40 + 1_000, 3_000_000_000_000, 1 << 60} {
			j := running()
			j.Created = created
			a := &j.Attempts[0]
			a.Started, a.Lease, a.ListensUntil, a.Ended = at, at+1, at-1, 0
			checkRecord(t, j)
		}
	}
}

// Reasons are abbreviated, and come back as they were, whatever is in them.
func TestRecordKeepsReasons(t *testing.T) {
	t.Parallel()
	long := "answered with status 502, which may be somebody else's guess; if it proves that nothing happened, set `outcome 502 failed` on the route"
	for _, reason := range append([]string{"", "\x00", "\x00a", "\x00\x00b\x00", long, long + "\x00" + long, "a" + long + "c"}, phrases...) {
		j := running()
		j.Attempts[0].Reason = reason
		checkRecord(t, j)
	}
	short, full := running(), running()
	full.Attempts[0].Reason = long
	if more := len(encoded(t, full)) - len(encoded(t, short)); more > 20 {
		t.Errorf("a common reason takes %d bytes", more)
	}
}

// A claim or an answer can hold bytes that are no UTF-8: a path with an escaped
// byte, a file name in a header. Such a record must be readable, or the job would
// be stuck and its answer lost.
func TestRecordKeepsForeignBytes(t *testing.T) {
	t.Parallel()
	j := running()
	j.Request.Path, j.Request.MediaType, j.KeySent = "/caf\xe9/\xff", "text/\xe9", "\xfe"
	checkRecord(t, j)
	r := final(1, "\xff\x00")
	r.Reason, r.Evidence.Upstream = "dial \xff", "\xff"
	r.Response.Header = map[string][]string{"Content-Disposition": {"attachment; filename=\"caf\xe9\""}}
	checkRecord(t, reported(t, j, r))
}

// However many lines of a header an answer has: what was written must be readable.
func TestRecordKeepsManyHeaderLines(t *testing.T) {
	t.Parallel()
	r := final(1, "done")
	r.Response.Header = map[string][]string{"A": make([]string, 1<<20+1)}
	checkRecord(t, reported(t, running(), r))
}

func TestRecordHeaderStandsWhereStoresCompareIt(t *testing.T) {
	t.Parallel()
	j := running()
	rec := encoded(t, j)
	if rec[0] != FormatVersion || string(rec[WriteIDOffset:WriteIDOffset+WriteIDLen]) != j.WriteID.String() || rec[WaiterOffset] != WaiterNone {
		t.Errorf("header %q", rec[:WaiterOffset+1])
	}
	if id, err := RecordWriteID(rec); err != nil || id != j.WriteID {
		t.Errorf("got %v, %v", id, err)
	}
	rec[WaiterOffset] = WaiterSome // a waiter registered itself
	if got, err := DecodeRecord(j.Name, rec); err != nil || !reflect.DeepEqual(got, j) {
		t.Errorf("got %+v, %v", got, err)
	}
	j.WriteID = WriteID{}
	if rec, err := EncodeRecord(j); err == nil {
		t.Errorf("a record without a write id: %q", rec)
	}
}

// What is there but can't be read is an error, never "no record", and never a panic.
func TestCL14GarbageIsCorrupt(t *testing.T) {
	t.Parallel()
	j := running()
	good := encoded(t, j)
	header := good[:WaiterOffset+1]
	changed := func(at int, b byte) []byte {
		c := bytes.Clone(good)
		c[at] = b
		return c
	}
	body := func(v any) []byte {
		b, err := cbor.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return append(bytes.Clone(header), b...)
	}
	// A field that this version does not know may change what the others mean.
	var fields map[int]any
	if err := cbor.Unmarshal(good[len(header):], &fields); err != nil {
		t.Fatal(err)
	}
	fields[99] = "from the future"
	for name, rec := range map[string][]byte{
		"nothing": nil, "a word": []byte("garbage"), "a lock's token": []byte(strings.Repeat("0123456789abcdef", 4)),
		"only a header": header, "half a header": header[:10], "cut": good[:len(good)-1], "longer": append(bytes.Clone(good), 0),
		"an older format": changed(0, FormatVersion-1), "a future format": changed(0, FormatVersion+1), "a format in ASCII": changed(0, '1'),
		"a write id that is no number": changed(WriteIDOffset+3, 'x'),
		"a write id in capitals":       append(append([]byte{FormatVersion}, bytes.Repeat([]byte{'A'}, WriteIDLen)...), good[WaiterOffset:]...),
		"a zero write id":              append(append([]byte{FormatVersion}, bytes.Repeat([]byte{'0'}, WriteIDLen)...), good[WaiterOffset:]...),
		"not a map":                    body([]int{1, 2}), "another map": body(map[string]int{"a": 1}), "an empty map": body(map[int]int{}),
		"null": body(nil), "a field of the future": body(fields),
		"a field twice": append(bytes.Clone(header), 0xa2, 0x0a, 0x01, 0x0a, 0x02),
	} {
		if got, err := DecodeRecord(j.Name, rec); !errors.Is(err, ErrCorrupt) || got != nil {
			t.Errorf("%s: got %+v, %v; want ErrCorrupt", name, got, err)
		}
	}
	for i := range good {
		if got, err := DecodeRecord(j.Name, good[:i]); !errors.Is(err, ErrCorrupt) || got != nil {
			t.Errorf("the first %d bytes: got %+v, %v", i, got, err)
		}
	}
}

func TestFutureFormatIsRefused(t *testing.T) {
	t.Parallel()
	rec := encoded(t, running())
	rec[0] = FormatVersion + 1
	if _, err := RecordWriteID(rec); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
}

// A record that stands under a name not its own is somebody else's answer.
func TestRecordOfAnotherNameIsRefused(t *testing.T) {
	t.Parallel()
	j := running()
	other := NameOf("main", "mallory", "k1")
	if got, err := DecodeRecord(other, encoded(t, j)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %+v, %v", got, err)
	}
	j.Name = other
	if got, err := DecodeRecord(running().Name, encoded(t, j)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("with another name in it: got %+v, %v", got, err)
	}
	j = running()
	j.ID = NewJobID(other)
	if got, err := DecodeRecord(j.Name, encoded(t, j)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("with another job's id: got %+v, %v", got, err)
	}
}

// What no transition makes is not believed when it is read.
func TestImpossibleRecordsAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Job){
		"a slot without a response":    func(j *Job) { j.Result = nil },
		"a response without a slot":    func(j *Job) { j.CompletedBy = Token{} },
		"a slot that names nobody":     func(j *Job) { j.CompletedBy = tok(7) },
		"a slot whose winner is gone":  func(j *Job) { j.CompletedBy, j.Attempts = tok(7), j.Attempts[:1] },
		"a winner that failed":         func(j *Job) { j.Attempts[1].State = AttemptFailed },
		"a winner that is unknown":     func(j *Job) { j.Attempts[1].State = AttemptUnknown },
		"two that succeeded":           func(j *Job) { j.Attempts[0].State = AttemptSucceeded },
		"no attempt":                   func(j *Job) { j.Attempts = nil },
		"an attempt in no state":       func(j *Job) { j.Attempts[0].State = 0 },
		"an attempt in a future state": func(j *Job) { j.Attempts[0].State = AttemptDiscarded + 1 },
		"an attempt without a token":   func(j *Job) { j.Attempts[0].Token = Token{} },
		"no retention":                 func(j *Job) { j.Retention = 0 },
		"a negative retention":         func(j *Job) { j.Retention = -1 },
		"settled without an expiry":    func(j *Job) { j.Expires = 0 },
		"unresolved with an expiry": func(j *Job) {
			j.CompletedBy, j.Result, j.Attempts[1].State = Token{}, nil, AttemptUnknown
		},
		"an answer kept by one that isn't unknown": func(j *Job) { j.Attempts[0].Kept = answer("odd") },
		"no job id": func(j *Job) { j.ID = "" },
	} {
		j := fullJob()
		change(j)
		if got, err := DecodeRecord(j.Name, encoded(t, j)); !errors.Is(err, ErrCorrupt) || got != nil {
			t.Errorf("%s: got %+v, %v; want ErrCorrupt", name, got, err)
		}
	}
}

// FuzzDecodeRecord: whatever stands in a store, reading it gives a job or
// ErrCorrupt. A job that was read can be written, and is then read as the same.
func FuzzDecodeRecord(f *testing.F) {
	name := fullJob().Name
	f.Add(encoded(f, fullJob()))
	f.Add(encoded(f, running()))
	f.Add([]byte("garbage"))
	f.Add(encoded(f, running())[:WaiterOffset+1])
	f.Fuzz(func(t *testing.T, rec []byte) {
		j, err := DecodeRecord(name, rec)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || j != nil {
				t.Fatalf("got %+v, %v", j, err)
			}
			return
		}
		// Once more, so that an empty list and a missing one are the same.
		once, err := DecodeRecord(name, encoded(t, j))
		if err != nil {
			t.Fatal(err)
		}
		twice, err := DecodeRecord(name, encoded(t, once))
		if err != nil || !reflect.DeepEqual(once, twice) {
			t.Fatalf("got %+v, %v\nwant %+v", twice, err, once)
		}
		// Nothing that can be read makes the state machine panic.
		for _, now := range []Time{0, j.Created, after(1000 * time.Hour)} {
			Judge(j, Claim{Token: tok(9), First: true, MaxAttempts: 3}, now)
			if v := Judge(j, Claim{Token: tok(9), Fingerprints: []Fingerprint{j.Fingerprint}}, now); v == UnknownRecipe || v == Conflict {
				t.Fatalf("its own fingerprint is judged as %s", v)
			}
			_ = j.Lapse(now)
			_, _ = j.Forget(now)
			for i := range j.Attempts {
				for _, r := range []Report{{Outcome: OutcomeRunning, Lease: now}, {Outcome: OutcomeFinal, Response: answer("x")}, {Outcome: OutcomeFailed}, {Outcome: OutcomeUnknown}} {
					r.Token, r.At = j.Attempts[i].Token, now
					j.Report(r)
				}
				_, _ = j.Resolve(j.Attempts[i].Token, resolution(AttemptSucceeded), answer("x"))
			}
		}
	})
}
