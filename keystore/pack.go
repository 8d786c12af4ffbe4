package keystore

import (
	"encoding/hex"
	"strings"
)

// In a record, the name is left out of the job's id, instants are told by how far they
// are from the job's creation, and what is said of most attempts is abbreviated. All
// that takes less room so; a store in memory holds many of them.

// shortID returns the job's id without its name.
func (j *Job) shortID() string {
	var room [2*len(j.Name) + 1]byte
	name := append(hex.AppendEncode(room[:0], j.Name[:]), '.')
	if len(j.ID) >= len(name) && j.ID[:len(name)] == string(name) {
		return j.ID[len(name):]
	}
	return j.ID
}

// farthest is how far from the job's creation instants are told so: about 35 years.
// What is larger is an instant itself.
const farthest Time = 1 << 40

// packed returns the instant as the record of a job has it that was created then.
func (t Time) packed(created Time) Time {
	switch {
	case t.IsZero(), t-created >= farthest:
		return t
	case t >= created:
		return t - created + 1
	}
	return t - created
}

// unpack makes t whole again.
func (t *Time) unpack(created Time) {
	switch {
	case *t > farthest: // as it is
	case *t > 0:
		*t = *t - 1 + created
	case *t < 0:
		*t += created
	}
}

// unpack makes the job whole that a record had. Nobody else has it yet.
func (j *Job) unpack() {
	if len(j.ID) == suffixDigits {
		j.ID = idUnder(j.Name, j.ID)
	}
	j.Expires.unpack(j.Created)
	j.Result.unpack(j.Created)
	for i := range j.Attempts {
		a := &j.Attempts[i]
		a.Reason = spelledOut(a.Reason)
		for _, t := range []*Time{&a.Started, &a.Lease, &a.ListensUntil, &a.Ended, &a.Lookups.Last} {
			t.unpack(j.Created)
		}
		if a.Resolution != nil {
			a.Resolution.At.unpack(j.Created)
		}
		a.Kept.unpack(j.Created)
	}
}

func (resp *Response) unpack(created Time) {
	if resp != nil {
		resp.Answered.unpack(created)
	}
}

// phrases stand in many reasons, and are abbreviated in records. There can come more,
// but none can be changed: records are read by them.
//
// An abbreviation is a zero byte and a letter, and a zero byte itself two of them.
var phrases = []string{
	"answered with status ",
	", which may be somebody else's guess; if it proves that nothing happened, set `outcome ",
	" failed` on the route",
}

// appendAbbreviated appends a reason as records have it.
func appendAbbreviated(b []byte, reason string) []byte {
next:
	for len(reason) > 0 {
		for i, phrase := range phrases {
			if reason[0] == phrase[0] && strings.HasPrefix(reason, phrase) {
				b = append(b, 0, 'a'+byte(i))
				reason = reason[len(phrase):]
				continue next
			}
		}
		b = append(b, reason[0])
		if reason[0] == 0 {
			b = append(b, 0)
		}
		reason = reason[1:]
	}
	return b
}

// spelledOut returns the reason that a record had.
func spelledOut(short string) string {
	before, code, found := strings.Cut(short, "\x00")
	if !found {
		return short
	}
	var room [256]byte
	b := room[:0]
	for found {
		b = append(b, before...)
		switch {
		case code != "" && code[0] == 0:
			b, code = append(b, 0), code[1:]
		case code != "" && int(code[0]) >= 'a' && int(code[0]) < 'a'+len(phrases):
			b, code = append(b, phrases[code[0]-'a']...), code[1:]
		default: // not written by this code
			b = append(b, 0)
		}
		before, code, found = strings.Cut(code, "\x00")
	}
	return string(append(b, before...))
}
