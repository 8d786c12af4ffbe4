package keystore

import (
	"math"
	"strings"
)

// codec writes CBOR, and reads it, for those who name each field of theirs once, in the
// order in which it is written: each method does both. What is written is what the
// library would write. Nothing else is read: what looks odd is left to the library.
//
// It is for jobs alone, and several times faster than the library with them. Somebody
// waits for it once or twice in each request.
type codec struct {
	writes  bool
	b       []byte // what has been written, or is read
	head    int    // writing: where the head of the present map stands
	at      int    // reading: so much of b has been read
	left    int    // reading: how many fields of the present map are to come
	odd     bool   // reading: this is not what a codec writes
	created Time   // writing: the job's creation, by which instants are told
	texts   strings.Builder
}

// The major types of CBOR, as they stand in the first byte of a head.
const (
	cborUint  = 0 << 5
	cborNeg   = 1 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborMap   = 5 << 5
	cborFalse = 0xf4
	cborTrue  = 0xf5
	cborNull  = 0xf6
)

// presence says whether a field is written that has its zero value.
type presence bool

const (
	always presence = true
	ifSet  presence = false
)

// open begins a map with numbered fields. It returns what close needs to go on with
// the map around it.
func (c *codec) open() (outer int) {
	if c.writes {
		outer, c.head = c.head, len(c.b)
		c.b = append(c.b, cborMap)
		return outer
	}
	outer, c.left = c.left, c.length(cborMap, 0, false)
	return outer
}

func (c *codec) close(outer int) {
	if c.writes {
		c.head = outer
		return
	}
	c.odd = c.odd || c.left != 0
	c.left = outer
}

// field writes the key of a field that is present, or reads it if it is the next one.
// It reports whether a value is to follow. No map has more than 23 fields.
func (c *codec) field(key byte, present bool) bool {
	switch {
	case c.writes:
		if !present {
			return false
		}
		c.b[c.head]++
		if key >= 24 {
			c.b = append(c.b, 24)
		}
		c.b = append(c.b, key)
		return true
	case c.left == 0 || c.odd:
		return false
	case key < 24 && len(c.b) > c.at && c.b[c.at] == key:
		c.at++
	case key >= 24 && len(c.b) > c.at+1 && c.b[c.at] == 24 && c.b[c.at+1] == key:
		c.at += 2
	default:
		return false
	}
	c.left--
	return true
}

// target returns what a pointer in a job points to; on reading, that is something new.
func target[T any](c *codec, v **T) *T {
	if !c.writes {
		*v = new(T)
	}
	return *v
}

func number[T ~uint8 | ~uint64 | ~int | ~int64](c *codec, key byte, v *T, p presence) {
	switch {
	case !c.field(key, bool(p) || *v != 0):
	case !c.writes:
		major, n := c.readHead()
		*v = T(n)
		if major == cborNeg {
			*v = T(^n)
		}
		inRange := major == cborUint && *v >= 0 && uint64(*v) == n || major == cborNeg && *v < 0
		c.odd = c.odd || !inRange
	case *v < 0:
		c.writeHead(cborNeg, ^uint64(*v))
	default:
		c.writeHead(cborUint, uint64(*v))
	}
}

func (c *codec) instant(key byte, t *Time, p presence) {
	if c.writes {
		packed := t.packed(c.created)
		t = &packed
	}
	number(c, key, t, p)
}

func (c *codec) flag(key byte, v *bool) {
	switch {
	case !c.field(key, *v):
	case c.writes:
		c.b = append(c.b, cborTrue)
	default:
		first := c.readBytes(1)
		*v = !c.odd && first[0] == cborTrue
		c.odd = c.odd || !*v && first[0] != cborFalse
	}
}

func (c *codec) text(key byte, v *string, p presence) {
	if c.field(key, bool(p) || *v != "") {
		c.string(v)
	}
}

func (c *codec) string(v *string) {
	if n := c.length(cborText, len(*v), false); c.writes {
		c.b = append(c.b, *v...)
	} else {
		*v = c.keep(c.readBytes(n))
	}
}

// keep returns a text that was read. Short ones share memory: a job has many of them.
func (c *codec) keep(text []byte) string {
	const room = 256
	if len(text) > room/2 {
		return string(text)
	}
	if c.texts.Cap()-c.texts.Len() < len(text) {
		c.texts.Reset()
		c.texts.Grow(room)
	}
	from := c.texts.Len()
	c.texts.Write(text)
	return c.texts.String()[from:]
}

func (c *codec) reason(key byte, v *string) {
	if !c.writes {
		c.text(key, v, ifSet)
		return
	}
	if c.field(key, *v != "") {
		var room [256]byte
		short := appendAbbreviated(room[:0], *v)
		c.length(cborText, len(short), false)
		c.b = append(c.b, short...)
	}
}

// array is a field of fixed length.
func (c *codec) array(key byte, v []byte, present bool) {
	if !c.field(key, present) {
		return
	}
	if n := c.length(cborBytes, len(v), false); c.writes {
		c.b = append(c.b, v...)
	} else if c.odd = c.odd || n != len(v); !c.odd {
		copy(v, c.readBytes(n))
	}
}

func (c *codec) blob(key byte, v *[]byte, p presence) {
	if !c.field(key, bool(p) || len(*v) > 0) {
		return
	}
	if n := c.length(cborBytes, len(*v), *v == nil); c.writes {
		c.b = append(c.b, *v...)
	} else {
		*v = append([]byte{}, c.readBytes(n)...)
	}
}

func (c *codec) header(key byte, h *map[string][]string) {
	if !c.field(key, len(*h) > 0) {
		return
	}
	n := c.length(cborMap, len(*h), false)
	if c.writes {
		for name, values := range *h {
			c.string(&name)
			c.length(cborArray, len(values), values == nil)
			for i := range values {
				c.string(&values[i])
			}
		}
		return
	}
	*h = make(map[string][]string, n)
	all := make([]string, 0, n) // most have one value
	for range n {
		var name string
		c.string(&name)
		from := len(all)
		for range c.length(cborArray, 0, false) {
			all = append(all, "")
			c.string(&all[len(all)-1])
		}
		(*h)[name] = all[from:len(all):len(all)]
	}
	c.odd = c.odd || len(*h) != n // a name twice
}

// length writes the head of what has this length, or null, or reads one. More cannot
// be to come than there are bytes.
func (c *codec) length(major byte, n int, null bool) int {
	switch {
	case !c.writes:
		found, n := c.readHead()
		if c.odd = c.odd || found != major || n > uint64(len(c.b)-c.at) || major >= cborArray && n > 1<<16; c.odd {
			return 0
		}
		return int(n)
	case null:
		c.b = append(c.b, cborNull)
	default:
		c.writeHead(major, uint64(n))
	}
	return n
}

func (c *codec) writeHead(major byte, n uint64) {
	switch {
	case n < 24:
		c.b = append(c.b, major|byte(n))
	case n <= math.MaxUint8:
		c.b = append(c.b, major|24, byte(n))
	case n <= math.MaxUint16:
		c.b = append(c.b, major|25, byte(n>>8), byte(n))
	case n <= math.MaxUint32:
		c.b = append(c.b, major|26, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	default:
		c.b = append(c.b, major|27, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
}

func (c *codec) readHead() (major byte, n uint64) {
	first := c.readBytes(1)
	if c.odd {
		return 0, 0
	}
	major, n = first[0]&^31, uint64(first[0]&31)
	if n < 24 {
		return major, n
	}
	if c.odd = n > 27; c.odd {
		return 0, 0
	}
	size := 1 << (n - 24)
	n = 0
	for _, b := range c.readBytes(size) {
		n = n<<8 | uint64(b)
	}
	return major, n
}

// readBytes returns the next bytes. They are not to be kept.
func (c *codec) readBytes(n int) []byte {
	if c.odd = c.odd || n > len(c.b)-c.at; c.odd {
		return nil
	}
	c.at += n
	return c.b[c.at-n : c.at]
}
