package proxy

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of the recipe: a body beyond them is compared byte by byte. They are part
// of what the recipe's version stands for, and no settings.
const (
	maxJSONBody  = 1 << 20 // bytes
	maxJSONDepth = 128     // arrays and objects within each other
)

// pointerTree holds JSON pointers: what is to be left out of a document.
type pointerTree struct {
	out      bool // this very value is left out
	children map[string]*pointerTree
}

// with returns the tree with one more pointer in it.
func (p *pointerTree) with(tokens []string) *pointerTree {
	if p == nil {
		p = &pointerTree{children: make(map[string]*pointerTree)}
	}
	if len(tokens) == 0 {
		p.out = true
		return p
	}
	p.children[tokens[0]] = p.children[tokens[0]].with(tokens[1:])
	return p
}

// at returns the tree below a member's name.
func (p *pointerTree) at(name string) *pointerTree {
	if p == nil {
		return nil
	}
	return p.children[name]
}

// atIndex returns the tree below an element of an array.
func (p *pointerTree) atIndex(i int) *pointerTree {
	if p == nil {
		return nil
	}
	return p.children[strconv.Itoa(i)]
}

// isOut reports whether the value is to be left out.
func (p *pointerTree) isOut() bool { return p != nil && p.out }

// canonicalJSON returns the one spelling of a JSON document: without white space,
// members sorted by the bytes of their names, strings with the fewest escapes,
// and numbers as they were written, since a parser may lose digits. What the tree
// points to is left out, as if it had not been there.
//
// It is not ok where the document is no JSON, or where readers could understand
// it differently: with a member twice, half a surrogate pair, or bytes that are no
// UTF-8. Nor is one that goes past the recipe's bounds.
func canonicalJSON(doc []byte, out *pointerTree) (canonical []byte, ok bool) {
	if len(doc) > maxJSONBody || !utf8.Valid(doc) {
		return nil, false
	}
	c := canonicaliser{in: doc, out: make([]byte, 0, len(doc))}
	c.space()
	if !c.value(out, 0) {
		return nil, false
	}
	c.space()
	return c.out, c.at == len(c.in)
}

type canonicaliser struct {
	in    []byte
	at    int
	out   []byte
	spare []byte // to sort members in
}

// space passes over white space.
func (c *canonicaliser) space() {
	for c.at < len(c.in) && (c.in[c.at] == ' ' || c.in[c.at] == '\t' || c.in[c.at] == '\n' || c.in[c.at] == '\r') {
		c.at++
	}
}

// next reports whether the next byte is this one, and passes over it then.
func (c *canonicaliser) next(b byte) bool {
	if c.at < len(c.in) && c.in[c.at] == b {
		c.at++
		return true
	}
	return false
}

// value copies the value that begins here. Each of these methods reports whether
// all is well.
func (c *canonicaliser) value(out *pointerTree, depth int) bool {
	if c.at == len(c.in) {
		return false
	}
	switch c.in[c.at] {
	case '{':
		return depth < maxJSONDepth && c.object(out, depth+1)
	case '[':
		return depth < maxJSONDepth && c.array(out, depth+1)
	case '"':
		s, ok := c.text()
		c.out = appendText(c.out, s)
		return ok
	case 't':
		return c.word("true")
	case 'f':
		return c.word("false")
	case 'n':
		return c.word("null")
	}
	return c.number()
}

func (c *canonicaliser) word(w string) bool {
	if !bytes.HasPrefix(c.in[c.at:], []byte(w)) {
		return false
	}
	c.at += len(w)
	c.out = append(c.out, w...)
	return true
}

// number copies a number's text.
func (c *canonicaliser) number() bool {
	start := c.at
	c.next('-')
	if !c.next('0') && !c.digits() {
		return false
	}
	if c.next('.') && !c.digits() {
		return false
	}
	if c.next('e') || c.next('E') {
		_ = c.next('+') || c.next('-')
		if !c.digits() {
			return false
		}
	}
	c.out = append(c.out, c.in[start:c.at]...)
	return true
}

func (c *canonicaliser) digits() bool {
	start := c.at
	for c.at < len(c.in) && c.in[c.at] >= '0' && c.in[c.at] <= '9' {
		c.at++
	}
	return c.at > start
}

func (c *canonicaliser) array(out *pointerTree, depth int) bool {
	c.at++
	c.space()
	c.out = append(c.out, '[')
	start := len(c.out)
	for i := 0; !c.next(']'); i++ {
		if i > 0 && !c.next(',') {
			return false
		}
		c.space()
		before := c.comma(start)
		below := out.atIndex(i)
		if !c.value(below, depth) {
			return false
		}
		if below.isOut() {
			c.out = c.out[:before]
		}
		c.space()
	}
	c.out = append(c.out, ']')
	return true
}

// comma puts a comma after what there is since start, and returns where the
// output ended before that.
func (c *canonicaliser) comma(start int) (before int) {
	before = len(c.out)
	if before > start {
		c.out = append(c.out, ',')
	}
	return before
}

// member is one of an object, with the place of its text in the output. One that
// is left out has none, but must not be there twice either.
type member struct {
	name       string
	start, end int
}

func (c *canonicaliser) object(out *pointerTree, depth int) bool {
	c.at++
	c.space()
	c.out = append(c.out, '{')
	start := len(c.out)
	var members []member
	for i := 0; !c.next('}'); i++ {
		if i > 0 && !c.next(',') {
			return false
		}
		c.space()
		name, ok := c.text()
		if !ok {
			return false
		}
		c.space()
		if !c.next(':') {
			return false
		}
		c.space()
		before := c.comma(start)
		m := member{name: name, start: len(c.out)}
		c.out = append(appendText(c.out, name), ':')
		below := out.at(name)
		if !c.value(below, depth) {
			return false
		}
		if below.isOut() {
			c.out = c.out[:before]
			m.start = before
		}
		m.end = len(c.out)
		members = append(members, m)
		c.space()
	}
	ok := c.sort(start, members)
	c.out = append(c.out, '}')
	return ok
}

// sort puts the members whose text the output has since start into order.
func (c *canonicaliser) sort(start int, members []member) bool {
	byName := func(a, b member) int { return strings.Compare(a.name, b.name) }
	sorted := slices.IsSortedFunc(members, byName)
	if !sorted {
		slices.SortFunc(members, byName)
	}
	for i := range members {
		if i > 0 && members[i-1].name == members[i].name {
			return false
		}
	}
	if sorted {
		return true
	}
	c.spare = c.spare[:0]
	for _, m := range members {
		if m.start == m.end {
			continue
		}
		if len(c.spare) > 0 {
			c.spare = append(c.spare, ',')
		}
		c.spare = append(c.spare, c.out[m.start:m.end]...)
	}
	c.out = append(c.out[:start], c.spare...)
	return true
}

// text reads a string and returns what it says. That the document is UTF-8 is
// known.
func (c *canonicaliser) text() (string, bool) {
	if !c.next('"') {
		return "", false
	}
	var said []byte
	start := c.at
	for c.at < len(c.in) {
		switch b := c.in[c.at]; {
		case b == '"':
			said = append(said, c.in[start:c.at]...)
			c.at++
			return string(said), true
		case b < ' ':
			return "", false
		case b != '\\':
			c.at++
		default:
			said = append(said, c.in[start:c.at]...)
			c.at++
			r, ok := c.escape()
			if !ok {
				return "", false
			}
			said = utf8.AppendRune(said, r)
			start = c.at
		}
	}
	return "", false
}

// escape reads what follows a backslash.
func (c *canonicaliser) escape() (rune, bool) {
	if c.at == len(c.in) {
		return 0, false
	}
	b := c.in[c.at]
	c.at++
	if b != 'u' {
		i := strings.IndexByte(`"\/bfnrt`, b)
		if i < 0 {
			return 0, false
		}
		return rune("\"\\/\b\f\n\r\t"[i]), true
	}
	r, ok := c.unit()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	if !c.next('\\') || !c.next('u') {
		return 0, false
	}
	low, ok := c.unit()
	r = utf16.DecodeRune(r, low)
	return r, ok && r != utf8.RuneError
}

// unit reads the four digits of a \u escape.
func (c *canonicaliser) unit() (rune, bool) {
	if len(c.in)-c.at < 4 {
		return 0, false
	}
	digits := c.in[c.at : c.at+4]
	c.at += 4
	n, err := strconv.ParseUint(string(digits), 16, 16)
	return rune(n), err == nil
}

// appendText appends a string with the escapes that it must have.
func appendText(to []byte, s string) []byte {
	to = append(to, '"')
	for i := range len(s) {
		switch b := s[i]; {
		case b == '"' || b == '\\':
			to = append(to, '\\', b)
		case b < ' ':
			const digits = "0123456789abcdef"
			to = append(to, '\\', 'u', '0', '0', digits[b>>4], digits[b&15])
		default:
			to = append(to, b)
		}
	}
	return append(to, '"')
}
