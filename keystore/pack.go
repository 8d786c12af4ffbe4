package keystore

import (
	"slices"
	"strings"
)

// In a record, the name is left out of the job's id, instants are told by how far they
// are from the job's creation, and what is said of most attempts is abbreviated. All
// that takes less room so; a store in memory holds many of them.

// farthest is how far from the job's creation instants are told so: about 35 years.
// What is larger is an instant itself.
const farthest Time = 1 << 40

// packed returns the job as its record has it.
func (j *Job) packed() *Job {
	p := *j
	if suffix, ok := strings.CutPrefix(j.ID, j.Name.String()+"."); ok {
		p.ID = suffix
	}
	p.each(func(reason *string) { *reason = abbreviate.Replace(*reason) }, func(t *Time) {
		switch {
		case t.IsZero(), *t-j.Created >= farthest:
		case *t >= j.Created:
			*t = *t - j.Created + 1
		default:
			*t -= j.Created
		}
	})
	return &p
}

// unpack makes the job whole that a record had.
func (j *Job) unpack() {
	if len(j.ID) == suffixDigits {
		j.ID = j.Name.String() + "." + j.ID
	}
	j.each(func(reason *string) { *reason = spellOut.Replace(*reason) }, func(t *Time) {
		switch {
		case *t > farthest: // as it is
		case *t > 0:
			*t = *t - 1 + j.Created
		case *t < 0:
			*t += j.Created
		}
	})
}

// phrases stand in many reasons, and are abbreviated in records. There can come more,
// but none can be changed: records are read by them.
var phrases = []string{
	"answered with status ",
	", which may be somebody else's guess; if it proves that nothing happened, set `outcome ",
	" failed` on the route",
}

// An abbreviation is a zero byte and a letter, and a zero byte itself two of them.
var abbreviate, spellOut = func() (to, from *strings.Replacer) {
	short, long := []string{"\x00", "\x00\x00"}, []string{"\x00\x00", "\x00"}
	for i, phrase := range phrases {
		code := "\x00" + string(rune('a'+i))
		short, long = append(short, phrase, code), append(long, code, phrase)
	}
	return strings.NewReplacer(short...), strings.NewReplacer(long...)
}()

// each changes all reasons of a job's attempts, and all its instants but that of its
// creation. What others may share is copied before.
func (j *Job) each(reason func(*string), change func(*Time)) {
	change(&j.Expires)
	j.Result = changed(j.Result, func(r *Response) { change(&r.Answered) })
	j.Attempts = slices.Clone(j.Attempts)
	for i := range j.Attempts {
		a := &j.Attempts[i]
		reason(&a.Reason)
		for _, t := range []*Time{&a.Started, &a.Lease, &a.ListensUntil, &a.Ended, &a.Lookups.Last} {
			change(t)
		}
		a.Resolution = changed(a.Resolution, func(r *Resolution) { change(&r.At) })
		a.Kept = changed(a.Kept, func(r *Response) { change(&r.Answered) })
	}
}

// changed returns a changed copy; nil of nil.
func changed[T any](v *T, change func(*T)) *T {
	if v == nil {
		return nil
	}
	c := *v
	change(&c)
	return &c
}
