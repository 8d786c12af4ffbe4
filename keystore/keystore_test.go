package keystore

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Without length prefixes the owner "a:b" with the key "c" would be served the
// answers of the owner "a" with the key "b:c".
func TestNameKeepsIdentitiesApart(t *testing.T) {
	t.Parallel()
	seen := map[Name][3]string{}
	for _, id := range [][3]string{
		{"main", "a:b", "c"},
		{"main", "a", "b:c"},
		{"main:a", "b", "c"},
		{"main", "ab", "c"},
		{"main", "a", "bc"},
		{"maina", "b", "c"},
		{"main", "", "abc"},
		{"main", "abc", ""},
		{"", "main", "abc"},
		{"main", "a\x00b", "c"},
		{"main", "a", "b\x00c"},
		{"main", "a", "\x00\x00\x00\x00\x00\x00\x00\x01b"},
		{"main", "a\x00\x00\x00\x00\x00\x00\x00\x01b", ""},
	} {
		n := NameOf(id[0], id[1], id[2])
		if other, ok := seen[n]; ok {
			t.Errorf("%q and %q have one name", id, other)
		}
		seen[n] = id
	}
}

func TestNameIsInjective(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.StringOfN(rapid.SampledFrom([]rune("ab:\x00\x01")), 0, 12, -1).Draw(t, "whole")
		cut := func(label string) (parts [3]string) {
			i := rapid.IntRange(0, len(whole)).Draw(t, label)
			k := rapid.IntRange(i, len(whole)).Draw(t, label)
			return [3]string{whole[:i], whole[i:k], whole[k:]}
		}
		a, b := cut("a"), cut("b")
		if same := NameOf(a[0], a[1], a[2]) == NameOf(b[0], b[1], b[2]); same != (a == b) {
			t.Fatalf("%q and %q: one name is %v", a, b, same)
		}
	})
}

// FuzzNameOf cuts one string in two ways: only equal cuts may meet in a name.
func FuzzNameOf(f *testing.F) {
	f.Add("main", "a:b", "c", "main", "a", "b:c")
	f.Add("main", "a", "bc", "main", "ab", "c")
	f.Add("", "", "", "", "", "\x00")
	f.Fuzz(func(t *testing.T, s1, o1, k1, s2, o2, k2 string) {
		same := s1 == s2 && o1 == o2 && k1 == k2
		if (NameOf(s1, o1, k1) == NameOf(s2, o2, k2)) != same {
			t.Fatalf("%q/%q/%q and %q/%q/%q", s1, o1, k1, s2, o2, k2)
		}
	})
}

// An owner's digest must not be usable as a record's name, nor the other way.
func TestOwnerDigestIsNoName(t *testing.T) {
	t.Parallel()
	if Digest(NameOf("", "", "alice")) == OwnerDigest("alice") || OwnerDigest("alice") == DigestOf([]byte("alice")) {
		t.Error("digests of different things meet")
	}
	if OwnerDigest("alice") == OwnerDigest("bob") {
		t.Error("two owners, one digest")
	}
}

func TestJobIDNamesItsRecord(t *testing.T) {
	t.Parallel()
	n := NameOf("main", "alice", "k1")
	id, again := NewJobID(n), NewJobID(n)
	if id == again {
		t.Error("a job created again has the id of the first")
	}
	if got, err := NameOfJobID(id); err != nil || got != n {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{
		"", ".", n.String(), n.String() + ".", n.String() + ".0123456", n.String() + ".012345678", n.String() + ".0123456x",
		"x" + n.String()[1:] + ".01234567", n.String()[2:] + ".01234567", strings.Replace(id, ".", "-", 1), id + ".00",
	} {
		if got, err := NameOfJobID(bad); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestTokensAndWriteIDsDiffer(t *testing.T) {
	t.Parallel()
	t1, t2, w1, w2 := NewToken(), NewToken(), NewWriteID(), NewWriteID()
	if t1 == t2 || w1 == w2 || t1.IsZero() || w1.IsZero() {
		t.Error("random identifiers repeat or are zero")
	}
	if got := tok(1).String(); got != "a7010000000000000000000000000000" {
		t.Errorf("token %s", got)
	}
}

func TestTimeArithmetic(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_999_999, time.UTC)
	if got := TimeOf(at); !got.Std().Equal(at.Truncate(time.Millisecond)) {
		t.Errorf("%v became %v", at, got.Std())
	}
	if got := epoch.Add(lease).Sub(epoch); got != lease {
		t.Errorf("got %v, want %v", got, lease)
	}
}

// The words go into logs and answers, where machines read them.
func TestWordsOfStates(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"starting": AttemptStarting.String(), "succeeded": AttemptSucceeded.String(), "failed": AttemptFailed.String(),
		"unknown": AttemptUnknown.String(), "cancelled": AttemptCancelled.String(), "discarded": AttemptDiscarded.String(),
		"open": JobOpen.String(), "running": JobRunning.String(), "completed": JobCompleted.String(),
		"create": Create.String(), "not executed": NotExecuted.String(), "start sibling": StartSibling.String(),
		"none": EffectNone.String(), "lost": EffectLost.String(), "already won": EffectAlreadyWon.String(),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, got := range []string{
		AttemptState(0).String(), AttemptState(99).String(), JobState(0).String(), JobState(99).String(),
		Verdict(0).String(), Verdict(99).String(), Effect(99).String(),
	} {
		if got != "invalid" {
			t.Errorf("an impossible value reads %q", got)
		}
	}
}
