package proxy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// spell writes a document in one of its many spellings: members in any order,
// white space anywhere, and any character of a string escaped or not.
func spell(r *rand.Rand, v any) string {
	var b strings.Builder
	space := func() {
		for r.IntN(4) == 0 {
			b.WriteByte(" \t\r\n"[r.IntN(4)])
		}
	}
	var write func(v any)
	write = func(v any) {
		space()
		switch v := v.(type) {
		case map[string]any:
			b.WriteByte('{')
			names := slices.Collect(maps.Keys(v))
			r.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
			for i, name := range names {
				if i > 0 {
					b.WriteByte(',')
				}
				write(name)
				b.WriteByte(':')
				write(v[name])
			}
			space()
			b.WriteByte('}')
		case []any:
			b.WriteByte('[')
			for i := range v {
				if i > 0 {
					b.WriteByte(',')
				}
				write(v[i])
			}
			space()
			b.WriteByte(']')
		case string:
			b.WriteByte('"')
			for _, c := range v {
				spellRune(r, &b, c)
			}
			b.WriteByte('"')
		case nil:
			b.WriteString("null")
		default:
			fmt.Fprint(&b, v)
		}
		space()
	}
	write(v)
	return b.String()
}

func spellRune(r *rand.Rand, b *strings.Builder, c rune) {
	short := strings.IndexRune("\"\\/\b\f\n\r\t", c)
	must := c == '"' || c == '\\' || c < ' '
	switch {
	case short >= 0 && r.IntN(2) == 0:
		b.WriteString(`\` + `"\/bfnrt`[short:short+1])
	case must || r.IntN(4) == 0:
		format := []string{`\u%04x`, `\u%04X`}[r.IntN(2)]
		for _, unit := range utf16.AppendRune(nil, c) {
			fmt.Fprintf(b, format, unit)
		}
	default:
		b.WriteRune(c)
	}
}

// document draws a document.
func document(r *rand.Rand, depth int) any {
	switch n := r.IntN(8); {
	case n == 0 && depth > 0, n == 1 && depth > 0, n == 2 && depth > 0:
		members := make(map[string]any)
		for range r.IntN(6) {
			members[drawText(r)] = document(r, depth-1)
		}
		return members
	case n == 3 && depth > 0:
		elements := make([]any, r.IntN(5))
		for i := range elements {
			elements[i] = document(r, depth-1)
		}
		return elements
	case n == 4:
		return []any{true, false, nil}[r.IntN(3)]
	case n == 5:
		return json.Number([]string{"0", "-0", "0.0", "1", "1.0", "10e-1", "1E0", "9007199254740992", "9007199254740993", "1e400"}[r.IntN(10)])
	}
	return drawText(r)
}

func drawText(r *rand.Rand) string {
	const characters = "ab01\"\\/~\x00\x1f\n\t\x7f\u0080é\u2028\ud7ff\ue000\ufffd\uffff😀\U0010ffff"
	all := []rune(characters)
	text := make([]rune, r.IntN(4))
	for i := range text {
		text[i] = all[r.IntN(len(all))]
	}
	return string(text)
}

// changed returns a copy of a document with one thing in it that is another.
func changed(r *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		v = maps.Clone(v)
		names := slices.Sorted(maps.Keys(v))
		if len(names) == 0 || r.IntN(4) == 0 {
			for name := drawText(r); ; name += "x" {
				if _, there := v[name]; !there {
					v[name] = nil
					return v
				}
			}
		}
		name := names[r.IntN(len(names))]
		if r.IntN(4) == 0 {
			delete(v, name)
		} else {
			v[name] = changed(r, v[name])
		}
		return v
	case []any:
		v = slices.Clone(v)
		if len(v) == 0 || r.IntN(4) == 0 {
			return append(v, nil)
		}
		i := r.IntN(len(v))
		v[i] = changed(r, v[i])
		return v
	case string:
		return v + "a"
	case json.Number:
		return v + "0" // other digits, perhaps of the same number
	case nil:
		return false
	}
	return nil
}

// However a document is spelled it has one fingerprint, and one in which
// anything is different has another.
func TestJSONFingerprintIsOfTheDocument(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	form := func(doc string) string {
		canonical, ok := canonicalJSON([]byte(doc), nil)
		if !ok {
			t.Fatalf("%q has no canonical form", doc)
		}
		return string(canonical)
	}
	for range 5000 {
		doc := document(r, 4)
		one, two := spell(r, doc), spell(r, doc)
		if form(one) != form(two) {
			t.Fatalf("%q and %q are two:\n%q\n%q", one, two, form(one), form(two))
		}
		other := spell(r, changed(r, doc))
		if strings.Contains(other, "00") && !json.Valid([]byte(other)) {
			continue // a number with a zero in front
		}
		if form(one) == form(other) {
			t.Fatalf("%q and %q are one: %q", one, other, form(one))
		}
	}
}
