package keystore

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Digest is a SHA-256 digest, or an HMAC with it.
type Digest [sha256.Size]byte

// String returns d in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Digester makes the digests that stand for what a client sent. Those of the zero
// value are plain: whoever can read the store can compare them with guesses. With
// a secret they are HMACs, which can't be compared with anything without it.
type Digester struct {
	secret *Secret
}

// Format implements fmt.Formatter: the secret never shows.
func (d Digester) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "(digester, keyed: %t)", d.Keyed())
}

// NewDigester returns a digester with a secret.
func NewDigester(s Secret) Digester { return Digester{&s} }

// Keyed reports whether the digester has a secret.
func (d Digester) Keyed() bool { return d.secret != nil }

// Equal reports whether both make the same digests.
func (d Digester) Equal(other Digester) bool {
	if d.secret == nil || other.secret == nil {
		return d.secret == other.secret
	}
	return *d.secret == *other.secret
}

// Sum returns the digest of some bytes.
func (d Digester) Sum(data []byte) Digest {
	if d.secret == nil {
		return sha256.Sum256(data)
	}
	// A copy, since what is handed to an interface has to be on the heap, also where
	// it comes to nothing.
	return d.keyed(bytes.Clone(data))
}

func (d Digester) keyed(data []byte) (sum Digest) {
	h := hmac.New(sha256.New, d.secret[:])
	h.Write(data)
	h.Sum(sum[:0])
	return sum
}

// NameOf returns the name of the job with this space, owner and key. The three
// are length-prefixed, so that no choice of bytes lets two different identities
// meet in one name.
func (d Digester) NameOf(space, owner, key string) Name {
	return Name(d.digest("job", space, owner, key))
}

// OwnerDigest returns what a job keeps of its owner.
func (d Digester) OwnerDigest(owner string) Digest { return d.digest("owner", owner) }

func (d Digester) digest(parts ...string) Digest {
	data := make([]byte, 0, 512) // on the stack, where they are as short as they usually are
	for _, part := range parts {
		data = binary.BigEndian.AppendUint64(data, uint64(len(part)))
		data = append(data, part...)
	}
	return d.Sum(data)
}

// NameOf returns the name of the job with this space, owner and key, where
// digests have no secret.
func NameOf(space, owner, key string) Name { return Digester{}.NameOf(space, owner, key) }

// OwnerDigest returns what a job keeps of its owner, where digests have no secret.
func OwnerDigest(owner string) Digest { return Digester{}.OwnerDigest(owner) }
