package keystore

import (
	"slices"
	"unicode/utf8"
)

// Violation says how an answer breaks its route's contract. Expected comes from
// the contract. Found and Path show of the answer no more than kinds and sizes,
// and names that the contract knows: they stand in logs, and bodies hold what
// is nobody's business.
type Violation struct {
	Path     string `cbor:"1,keyasint,omitempty"` // JSON pointer into the body; or empty
	Expected string `cbor:"2,keyasint"`
	Found    string `cbor:"3,keyasint"`
}

// maxViolation bounds each of a violation's texts, in bytes.
const maxViolation = 256

// bounded returns the violation with texts that fit into a record.
func (v *Violation) bounded() *Violation {
	if v == nil {
		return nil
	}
	return &Violation{Path: cut(v.Path), Expected: cut(v.Expected), Found: cut(v.Found)}
}

// cut shortens a text to maxViolation bytes, between two characters.
func cut(s string) string {
	if len(s) <= maxViolation {
		return s
	}
	const dots = "…"
	end := maxViolation - len(dots)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + dots
}

// drop lets go of what attempt a of this job has kept.
func (j *Job) drop(a *Attempt) {
	if a.Kept != nil && a.Kept.Apart != nil {
		j.Unkept = append(slices.Clip(j.Unkept), *a.Kept.Apart)
	}
	a.Kept = nil
}

// kept returns the answer that the attempt kept, as a result. Its store sees a
// body anew where it becomes one: what it keeps apart of an unresolved job has
// another life span.
func (a *Attempt) kept() (*Response, bool) {
	if a.Kept == nil || !a.Kept.whole() {
		return nil, false
	}
	resp := *a.Kept
	resp.Apart = nil
	return &resp, true
}
