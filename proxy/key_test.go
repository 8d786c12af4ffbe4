package proxy

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

func TestKeyOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines []string
		key   string // empty: refused
	}{
		{[]string{"abc"}, "abc"},
		{[]string{`"abc"`}, "abc"},
		{[]string{` "abc" `}, "abc"},
		{[]string{`"a\"b\\c"`}, `a"b\c`},
		{[]string{`"a,b;c"`}, "a,b;c"},
		{[]string{"8e03978e-40d5-43e8-bc93-6894a57f9324"}, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{[]string{"dGVzdA=="}, "dGVzdA=="},
		{[]string{"a:b/c+d"}, "a:b/c+d"},
		{[]string{strings.Repeat("a", 255)}, strings.Repeat("a", 255)},
		{[]string{`"` + strings.Repeat("a", 255) + `"`}, strings.Repeat("a", 255)},

		{[]string{strings.Repeat("a", 256)}, ""},
		{[]string{""}, ""},
		{[]string{"  "}, ""},
		{[]string{`""`}, ""},
		{[]string{`"abc`}, ""},
		{[]string{`"abc"x`}, ""},
		{[]string{`"abc";a=1`}, ""},
		{[]string{`"abc", "def"`}, ""},
		{[]string{"abc,def"}, ""},
		{[]string{"abc;a=1"}, ""},
		{[]string{`ab"c`}, ""},
		{[]string{"a b"}, ""},
		{[]string{`"a b"`}, ""},
		{[]string{"a\tb"}, ""},
		{[]string{"a\x00b"}, ""},
		{[]string{"\x7f"}, ""},
		{[]string{"é"}, ""},
		{[]string{"abc", "abc"}, ""},
		{[]string{"abc", ""}, ""},
	} {
		key, sent, err := keyOf(http.Header{"Idempotency-Key": c.lines}, "Idempotency-Key")
		if key != c.key || (err == nil) != (c.key != "") {
			t.Errorf("%q: key %q, error %v; want %q", c.lines, key, err, c.key)
		}
		if err == nil && sent != strings.Trim(c.lines[0], " ") {
			t.Errorf("%q: sent on as %q", c.lines, sent)
		}
		if errors.Is(err, errNoKey) {
			t.Errorf("%q: taken for no key at all", c.lines)
		}
		if err != nil && len(c.lines[0]) > 2 && strings.Contains(err.Error(), c.lines[0]) {
			t.Errorf("%q: the error repeats the key: %v", c.lines, err)
		}
	}
	if _, _, err := keyOf(http.Header{}, "Idempotency-Key"); !errors.Is(err, errNoKey) {
		t.Errorf("without the header: %v", err)
	}
}

func FuzzKeyOf(f *testing.F) {
	for _, s := range []string{"abc", `"abc"`, `"a\"b"`, "a,b", "", `"`, "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, sent, err := keyOf(http.Header{"K": {line}}, "K")
		if err != nil {
			return
		}
		if len(key) == 0 || len(key) > maxKeyLen {
			t.Errorf("%q: key of length %d", line, len(key))
		}
		// What goes upstream means the same key to whoever reads it there.
		again, _, err := keyOf(http.Header{"K": {sent}}, "K")
		if err != nil || again != key {
			t.Errorf("%q: sent on as %q, which reads as %q (%v)", line, sent, again, err)
		}
	})
}
