// Package keystore holds what is remembered of an intent: the job, its
// attempts, the state machine that says what may happen to them, and the
// contract of the stores that keep them.
//
// The state machine is pure: it does no I/O, reads no clock and draws no
// random numbers. Its functions take records and give back new records, and
// the caller puts those into a [Store] with a compare-and-swap. Stores in turn
// know none of the rules.
package keystore

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Time is an instant on the store's clock, in milliseconds since the Unix
// epoch. Zero means that there is none. It is a type of its own so that a
// local clock is never compared with the store's by mistake.
type Time int64

// TimeOf converts t, rounding down to the millisecond.
func TimeOf(t time.Time) Time { return Time(t.UnixMilli()) }

// Add returns t+d.
func (t Time) Add(d time.Duration) Time { return t + Time(d.Milliseconds()) }

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t-u) * time.Millisecond }

// Std converts t to a time.Time in UTC.
func (t Time) Std() time.Time { return time.UnixMilli(int64(t)).UTC() }

// IsZero reports whether t is no instant at all.
func (t Time) IsZero() bool { return t == 0 }

// Token identifies one attempt. It is drawn once per attempt, before its claim
// is first sent, so that a claim whose reply was lost recognises its own record.
type Token [16]byte

// NewToken draws a token.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // never fails: crypto/rand ends the process instead
	return t
}

// IsZero reports whether t is no token at all.
func (t Token) IsZero() bool { return t == Token{} }

// String returns t in hexadecimal.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// WriteID identifies one logical write of a record. It is drawn once, kept over
// all re-sends of that write, and is what a store's compare-and-swap compares:
// two writers can produce the same state, version and token, but not the same
// write id.
type WriteID [16]byte

// NewWriteID draws a write id.
func NewWriteID() (id WriteID) {
	_, _ = rand.Read(id[:])
	return id
}

// IsZero reports whether id is no write id at all.
func (id WriteID) IsZero() bool { return id == WriteID{} }

// String returns id in hexadecimal.
func (id WriteID) String() string { return hex.EncodeToString(id[:]) }

// Name is the name of a job's record in a store: the digest of its space, owner
// and key. It has a fixed length and shows nothing of what a client sent.
type Name Digest

// String returns n in hexadecimal.
func (n Name) String() string { return hex.EncodeToString(n[:]) }

// suffixDigits is how many hexadecimal digits of a job's id are not its name's.
const suffixDigits = 8

// NewJobID draws the id of a new job under n. It begins with the record's name,
// so that a job is found by its id in one read; the random rest tells a job
// from one created again after the first had expired.
func NewJobID(n Name) string {
	var suffix [4]byte
	_, _ = rand.Read(suffix[:])
	return idUnder(n, hex.EncodeToString(suffix[:]))
}

// idUnder returns the id of a job under n that ends so.
func idUnder(n Name, suffix string) string {
	id := hex.AppendEncode(make([]byte, 0, 2*len(n)+1+suffixDigits), n[:])
	return string(append(append(id, '.'), suffix...))
}

// NameOfJobID returns the name of the record that holds the job with this id.
func NameOfJobID(id string) (Name, error) {
	var n Name
	digits, suffix, ok := strings.Cut(id, ".")
	if !ok || len(digits) != 2*len(n) || len(suffix) != suffixDigits {
		return n, fmt.Errorf("job id %q: want 64 hexadecimal digits, a dot and 8 more", id)
	}
	var room [2 * len(n)]byte // nothing of it is kept
	var rest [suffixDigits / 2]byte
	if _, err := hex.Decode(rest[:], append(room[:0], suffix...)); err != nil {
		return n, fmt.Errorf("job id %q: %w", id, err)
	}
	if _, err := hex.Decode(n[:], append(room[:0], digits...)); err != nil {
		return n, fmt.Errorf("job id %q: %w", id, err)
	}
	return n, nil
}
