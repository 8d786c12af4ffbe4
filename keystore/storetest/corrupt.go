package storetest

import (
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

var corruptTests = []testCase{
	{"corrupt/is an error and stays", func(t *testing.T, b Backend) {
		s := b.Open(t)
		for what, garble := range garbled {
			j := starting(s, what)
			raw := garble(s, j)
			b.Garble(t, j.Name, raw)
			// The second round shows that the first has overwritten nothing.
			for range 2 {
				got, err := s.Get(contextOf(t), j.Name)
				if got != nil {
					t.Errorf("%s: get: got a record", what)
				}
				mustFailWith(t, what+": get", err, keystore.ErrCorrupt)

				got, created, err := s.Create(contextOf(t), starting(s, what))
				if created || got != nil {
					t.Errorf("%s: create: got %v, %t", what, got, created)
				}
				mustFailWith(t, what+": create", err, keystore.ErrCorrupt)

				got, swapped, err := s.Swap(contextOf(t), keystore.NewWriteID(), unknown(s, j))
				if swapped || got != nil {
					t.Errorf("%s: swap: got %v, %t", what, got, swapped)
				}
				mustFailWith(t, what+": swap", err, keystore.ErrCorrupt)
			}
		}
	}},
	{"corrupt/another format with the expected write id", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := starting(s, "k")
		b.Garble(t, j.Name, garbled["a later format"](s, j))
		_, swapped, err := s.Swap(contextOf(t), j.WriteID, unknown(s, j))
		if swapped {
			t.Error("a record of a later format was replaced")
		}
		mustFailWith(t, "swap", err, keystore.ErrCorrupt)
		_, err = s.Get(contextOf(t), j.Name)
		mustFailWith(t, "get", err, keystore.ErrCorrupt)
	}},
	{"corrupt/another format of this very write", func(t *testing.T, b Backend) {
		s := b.Open(t)
		j := starting(s, "k")
		b.Garble(t, j.Name, garbled["a later format"](s, j))
		_, created, err := s.Create(contextOf(t), j)
		if created {
			t.Error("a record of a later format was taken for one of our own")
		}
		mustFailWith(t, "create", err, keystore.ErrCorrupt)
	}},
}

// garbled makes what is not a record of this job's name.
var garbled = map[string]func(s keystore.Store, j *keystore.Job) []byte{
	"nothing at all": func(keystore.Store, *keystore.Job) []byte { return []byte{} },
	"garbage":        func(keystore.Store, *keystore.Job) []byte { return []byte("garbage") },
	"binary garbage": func(keystore.Store, *keystore.Job) []byte { return randomBytes(300) },
	"a later format": func(_ keystore.Store, j *keystore.Job) []byte {
		raw := mustEncode(j)
		raw[0]++
		return raw
	},
	"half a record": func(_ keystore.Store, j *keystore.Job) []byte {
		raw := mustEncode(j)
		return raw[:len(raw)/2]
	},
	"half a header": func(_ keystore.Store, j *keystore.Job) []byte { return mustEncode(j)[:20] },
	"a write id in other digits": func(_ keystore.Store, j *keystore.Job) []byte {
		raw := mustEncode(j)
		raw[keystore.WriteIDOffset] = 'z'
		return raw
	},
	// A store that compares the digits as they stand would never see it as the one expected.
	"a write id in capitals": func(_ keystore.Store, j *keystore.Job) []byte {
		raw := mustEncode(j)
		raw[keystore.WriteIDOffset] = 'A'
		return raw
	},
	"more than a record": func(_ keystore.Store, j *keystore.Job) []byte { return append(mustEncode(j), 0) },
	"the record of another name": func(s keystore.Store, _ *keystore.Job) []byte {
		return mustEncode(starting(s, "another name"))
	},
}

func mustEncode(j *keystore.Job) []byte {
	record, err := keystore.EncodeRecord(j)
	if err != nil {
		panic(err)
	}
	return record
}
