package keystore

import (
	"crypto/sha256"
	"slices"
)

// Caller names the attempt of another gateway, or of this one, that has sent a
// request here. It goes from gateway to gateway in a header that upstreams see,
// so it does not hold the attempt's token, with which its claim could be taken
// over.
type Caller struct {
	Number int
	Mark   Mark
}

// Mark is the beginning of a token's digest.
type Mark [8]byte

// Mark returns the token's mark.
func (t Token) Mark() (m Mark) {
	sum := sha256.Sum256(t[:])
	copy(m[:], sum[:])
	return m
}

// waitsFor reports whether the caller is an attempt of this job that may still
// be waiting for its answer.
func (j *Job) waitsFor(c Caller) bool {
	return slices.ContainsFunc(j.Attempts, func(a Attempt) bool {
		return a.Unresolved() && a.Number == c.Number && a.Token.Mark() == c.Mark
	})
}
