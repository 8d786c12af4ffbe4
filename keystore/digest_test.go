package keystore

import "testing"

// With a secret, what stands for owner and key can't be found by guessing, and
// with another one it is something else.
func TestSecretChangesDigests(t *testing.T) {
	t.Parallel()
	s := NewSecret()
	plain, keyed, again, other := Digester{}, NewDigester(s), NewDigester(s), NewDigester(NewSecret())
	if plain.NameOf("main", "alice", "k1") != NameOf("main", "alice", "k1") || plain.OwnerDigest("alice") != OwnerDigest("alice") {
		t.Error("without a secret, digests are not the plain ones")
	}
	names, owners := map[Name]bool{}, map[Digest]bool{}
	for _, d := range []Digester{plain, keyed, other} {
		names[d.NameOf("main", "alice", "k1")], owners[d.OwnerDigest("alice")] = true, true
	}
	if len(names) != 3 || len(owners) != 3 {
		t.Errorf("3 digesters make %d names and %d owners", len(names), len(owners))
	}
	if keyed.NameOf("main", "alice", "k1") != again.NameOf("main", "alice", "k1") || keyed.OwnerDigest("alice") != again.OwnerDigest("alice") {
		t.Error("one secret makes different digests")
	}
	if !keyed.Equal(again) || keyed.Equal(other) || keyed.Equal(plain) || plain.Equal(keyed) || !plain.Equal(Digester{}) {
		t.Error("digesters are equal that are not, or the other way round")
	}
	if plain.Keyed() || !keyed.Keyed() {
		t.Error("it does not know whether it has a secret")
	}
}

func TestSecretKeepsIdentitiesApart(t *testing.T) {
	t.Parallel()
	d := NewDigester(NewSecret())
	names := map[Name]bool{}
	for _, id := range [][3]string{{"a", "b", "c"}, {"ab", "", "c"}, {"a", "bc", ""}, {"", "ab", "c"}, {"a", "b:", "c"}, {"a", "b", ":c"}} {
		names[d.NameOf(id[0], id[1], id[2])] = true
	}
	if len(names) != 6 {
		t.Errorf("6 identities have %d names", len(names))
	}
}
