package keystore

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func keyring(t testing.TB, keys ...SealKey) *Keyring {
	t.Helper()
	k, err := NewKeyring(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sealedJob is a completed job, all of whose secrets are sealed.
func sealedJob(t *testing.T, k *Keyring) *Job {
	t.Helper()
	j := stored(NewJob(k.SealJob(identity()), starts(1, epoch)))
	r := final(1, "the answer")
	r.Response.Header["X-Account"] = []string{"4711"}
	r.Response.Trailer = map[string][]string{"X-Sum": {"0815"}}
	r.Response = k.SealResponse(j.ID, r.Response)
	return reported(t, j, r)
}

// What is sealed comes back as it was, and nothing of it can be read in the record.
func TestSealedRecordShowsNothing(t *testing.T) {
	t.Parallel()
	k := keyring(t, SealKey{"k1", NewSecret()})
	j := sealedJob(t, k)
	checkRecord(t, j)
	rec := encoded(t, j)
	for _, secret := range []string{`"k1"`, "the answer", "4711", "X-Account", "0815", "text/plain"} {
		if bytes.Contains(rec, []byte(secret)) {
			t.Errorf("the record has %q in it", secret)
		}
	}
	if sum := DigestOf([]byte("the answer")); bytes.Contains(rec, sum[:]) {
		t.Error("the record has the plain digest of the answer's body in it, which can be guessed at")
	}
	if r := j.Result; r.Status != 201 || r.Size != 10 || r.Answered != after(time.Second) || r.NotKept {
		t.Errorf("operators are not shown what they may see: %+v", r)
	}
	opened, err := k.OpenJob(j)
	if err != nil || opened.KeySent != `"k1"` || opened.KeySealed != nil {
		t.Errorf("got the key %q, %v", opened.KeySent, err)
	}
	want := answer("the answer")
	want.Header["X-Account"], want.Trailer = []string{"4711"}, map[string][]string{"X-Sum": {"0815"}}
	if got, err := k.OpenResponse(j); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if j.KeySent != "" || j.KeySealed == nil || j.Result.SealedBy != "k1" {
		t.Error("opening has changed the job")
	}
}

// Two records of the same are different, so that nobody sees that they are the same.
func TestSealIsRandom(t *testing.T) {
	t.Parallel()
	k := keyring(t, SealKey{"k1", NewSecret()})
	one, two := sealedJob(t, k), sealedJob(t, k)
	if bytes.Equal(one.KeySealed.Box, two.KeySealed.Box) || bytes.Equal(one.Result.Body, two.Result.Body) {
		t.Error("the same is sealed the same way twice")
	}
}

// A record is bound to its job, each part to its place, and all of it to its key.
func TestSealIsBound(t *testing.T) {
	t.Parallel()
	secret := NewSecret()
	k := keyring(t, SealKey{"k1", secret}, SealKey{"k3", NewSecret()})
	broken := map[string]func(*Job){
		"moved to another job": func(j *Job) {
			j.Name = NameOf("main", "mallory", "k1")
			j.ID = j.Name.String() + ".00c0ffee"
		},
		"moved to the next job of the same name": func(j *Job) { j.ID = j.Name.String() + ".00c0ffef" },
		"key and response exchanged":             func(j *Job) { j.KeySealed.Box, j.Result.Body = j.Result.Body, j.KeySealed.Box },
		"said to be of another key":              func(j *Job) { j.KeySealed.By, j.Result.SealedBy = "k3", "k3" },
		"of a key that nobody has":               func(j *Job) { j.KeySealed.By, j.Result.SealedBy = "k2", "k2" },
		"one bit changed": func(j *Job) {
			j.KeySealed.Box[20] ^= 1
			j.Result.Body[20] ^= 1
		},
		"cut short": func(j *Job) { j.KeySealed.Box, j.Result.Body = j.KeySealed.Box[:10], j.Result.Body[:10] },
		"empty":     func(j *Job) { j.KeySealed.Box, j.Result.Body = nil, nil },
	}
	for name, do := range broken {
		j := sealedJob(t, k)
		do(j)
		if opened, err := k.OpenJob(j); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: the key opens: %+v, %v", name, opened, err)
		} else if !strings.Contains(err.Error(), j.KeySealed.By) && name != "cut short" && name != "empty" {
			t.Errorf("%s: the error does not name the key: %v", name, err)
		}
		if opened, err := k.OpenResponse(j); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: the response opens: %+v, %v", name, opened, err)
		}
	}
	for name, ring := range map[string]*Keyring{
		"no key":                    nil,
		"another key":               keyring(t, SealKey{"k2", NewSecret()}),
		"another secret of that id": keyring(t, SealKey{"k1", NewSecret()}),
		"that secret by another id": keyring(t, SealKey{"k2", secret}),
	} {
		if _, err := ring.OpenJob(sealedJob(t, k)); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: the key opens: %v", name, err)
		}
		if _, err := ring.OpenResponse(sealedJob(t, k)); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: the response opens: %v", name, err)
		}
	}
}

// The binding to the job is made twice, by the derived key and by the additional
// data, so that one of them can be forgotten without harm, but not unseen.
func TestSealIsBoundTwice(t *testing.T) {
	t.Parallel()
	k := SealKey{"k1", NewSecret()}
	one, two := k.of("job 1"), k.of("job 2")
	if bytes.Equal(one.about(purposeKey), two.about(purposeKey)) {
		t.Error("the additional data of two jobs is the same")
	}
	if bytes.Equal(one.mac, two.mac) {
		t.Error("two jobs have one key")
	}
}

// What stays open for operators is bound too: a replay never has another status.
func TestSealedResponseKeepsItsStatus(t *testing.T) {
	t.Parallel()
	k := keyring(t, SealKey{"k1", NewSecret()})
	for name, do := range map[string]func(*Response){
		"status":   func(r *Response) { r.Status = 200 },
		"size":     func(r *Response) { r.Size++ },
		"instant":  func(r *Response) { r.Answered++ },
		"not kept": func(r *Response) { r.NotKept = true },
	} {
		j := sealedJob(t, k)
		do(j.Result)
		if _, err := k.OpenResponse(j); !errors.Is(err, ErrSealed) {
			t.Errorf("%s changed: the response opens: %v", name, err)
		}
	}
}

// A new key is first; what the old ones have sealed is still read.
func TestKeyringRotates(t *testing.T) {
	t.Parallel()
	k1, k2 := SealKey{"k1", NewSecret()}, SealKey{"k2", NewSecret()}
	old, rotated := keyring(t, k1), keyring(t, k2, k1)
	j := sealedJob(t, old)
	if _, err := rotated.OpenResponse(j); err != nil {
		t.Errorf("after a rotation, an old answer is not read: %v", err)
	}
	if opened, err := rotated.OpenJob(j); err != nil || opened.KeySent != `"k1"` {
		t.Errorf("after a rotation, an old key is not read: %v", err)
	}
	j = sealedJob(t, rotated)
	if j.KeySealed.By != "k2" || j.Result.SealedBy != "k2" {
		t.Errorf("sealed by %s and %s, want by the first key", j.KeySealed.By, j.Result.SealedBy)
	}
	if _, err := old.OpenResponse(j); !errors.Is(err, ErrSealed) {
		t.Errorf("the new key's answer opens with the old key: %v", err)
	}
}

func TestNoKeyringSealsNothing(t *testing.T) {
	t.Parallel()
	var none *Keyring
	j := sealedJob(t, none)
	if j.KeySent != `"k1"` || j.KeySealed != nil || j.Result.SealedBy != "" {
		t.Errorf("without a key it seals: %+v", j)
	}
	for name, k := range map[string]*Keyring{"none": nil, "one": keyring(t, SealKey{"k1", NewSecret()})} {
		if r, err := k.OpenResponse(j); err != nil || r != j.Result {
			t.Errorf("keyring %s: an open response is not read: %v", name, err)
		}
		if opened, err := k.OpenJob(j); err != nil || opened != j {
			t.Errorf("keyring %s: an open key is not read: %v", name, err)
		}
	}
}

func TestKeyringRefusesTwins(t *testing.T) {
	t.Parallel()
	one, two := NewSecret(), NewSecret()
	if _, err := NewKeyring(SealKey{"k1", one}, SealKey{"k1", two}); err == nil {
		t.Error("one id, two secrets")
	}
	if _, err := NewKeyring(SealKey{"k1", one}, SealKey{"k2", one}); err == nil {
		t.Error("two ids, one secret")
	}
	a, b := keyring(t, SealKey{"k1", one}, SealKey{"k2", two}), keyring(t, SealKey{"k2", two}, SealKey{"k1", one})
	if !a.Equal(keyring(t, SealKey{"k1", one}, SealKey{"k2", two})) || a.Equal(b) || a.Equal(nil) || !keyring(t).Equal(nil) || a.Equal(keyring(t, SealKey{"k1", one})) {
		t.Error("keyrings are equal that are not, or the other way round")
	}
}

// A late answer is compared with the one that was decided on, without anybody
// reading either.
func TestSealedAnswersAreCompared(t *testing.T) {
	t.Parallel()
	k := keyring(t, SealKey{"k1", NewSecret()})
	resolved := func(body string) *Job {
		j := stored(NewJob(k.SealJob(identity()), starts(1, epoch)))
		j = reported(t, j, timedOut(1))
		next, err := j.Resolve(tok(1), Resolution{State: AttemptSucceeded, Actor: "op", Evidence: "e", At: after(time.Minute)}, k.SealResponse(j.ID, answer(body)))
		if err != nil {
			t.Fatal(err)
		}
		return stored(next)
	}
	for late, contradicts := range map[string]bool{"paid as 1": false, "paid as 2": true} {
		j := resolved("paid as 1")
		r := final(1, late)
		r.Response = k.SealResponse(j.ID, r.Response)
		if s := j.Report(r); s.Contradicts != contradicts {
			t.Errorf("%s: contradicts %t, want %t", late, s.Contradicts, contradicts)
		}
	}
}

// An answer that an attempt keeps because it broke the contract is sealed like one
// that was accepted, and becomes the result without anybody opening it.
func TestSealedAnswerIsKeptAndAccepted(t *testing.T) {
	t.Parallel()
	k := keyring(t, SealKey{"k1", NewSecret()})
	j := stored(NewJob(k.SealJob(identity()), starts(1, epoch)))
	r := broken(1)
	want := *r.Kept
	r.Kept = k.SealResponse(j.ID, r.Kept)
	j = reported(t, j, r)
	next, err := j.Resolve(tok(1), Resolution{State: AttemptSucceeded, Actor: "op", Evidence: "e", At: after(time.Minute), Kept: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.OpenResponse(next); err != nil || !reflect.DeepEqual(got, &want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}
