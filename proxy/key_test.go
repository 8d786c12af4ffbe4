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

func TestKeyFormatUUID(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"7f52c1d0-40d5-43e8-bc93-6894a57f9324":          true,
		"7F52C1D0-40D5-43E8-BC93-6894A57F9324":          true,
		"00000000-0000-0000-0000-000000000000":          true, // of no version
		"ffffffff-ffff-ffff-ffff-ffffffffffff":          true,
		"7f52c1d040d543e8bc936894a57f9324":              false,
		"7f52c1d0-40d5-43e8-bc93-6894a57f932":           false,
		"7f52c1d0-40d5-43e8-bc93-6894a57f93245":         false,
		"7f52c1d0-40d5-43e8-bc936-894a57f9324":          false,
		"7f52c1d0-40d5-43e8-bc93-6894a57f932g":          false,
		"{7f52c1d0-40d5-43e8-bc93-6894a57f9324}":        false,
		"urn:uuid:7f52c1d0-40d5-43e8-bc93-6894a57f9324": false,
		"order-1": false,
	} {
		if err := KeyUUID.check(key, "K"); (err == nil) != want {
			t.Errorf("%s: %v", key, err)
		} else if err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("%s: the error repeats the key: %v", key, err)
		}
		if err := KeyAny.check(key, "K"); err != nil {
			t.Errorf("%s as any key: %v", key, err)
		}
	}
}

// A key that is no UUID claims nothing where keys have to be UUIDs. The quotes
// are no part of it; its letters are.
func TestKeyFormatUUIDOfRequests(t *testing.T) {
	bubble(t, Config{KeyFormat: KeyUUID}, func(t *testing.T, f *fixture) {
		f.do(request{key: "order-1"}).want(t, 400, CodeKeyInvalid)
		f.do(request{key: `"order-1"`}).want(t, 400, CodeKeyInvalid)
		f.wantExecutions(0)
		if len(f.mem.ops) != 0 {
			t.Errorf("the store was asked: %v", f.mem.ops)
		}
		f.do(request{key: "8e03978e-40d5-43e8-bc93-6894a57f9324"}).wantBody(t, 200, "execution 1", false)
		f.do(request{key: `"8e03978e-40d5-43e8-bc93-6894a57f9324"`}).wantBody(t, 200, "execution 1", true)
		f.do(request{key: "8E03978E-40D5-43E8-BC93-6894A57F9324"}).wantBody(t, 200, "execution 2", false)
		f.do(request{key: "none"}).wantBody(t, 200, "execution 3", false)
		f.wantExecutions(3)
	})
}

// FuzzKey: a key that is taken is 1 to 255 visible ASCII characters, is the same
// key in quotes and bare, and is sent on as it came, in a spelling that means the
// same to whoever reads it there.
func FuzzKey(f *testing.F) {
	for _, s := range []string{
		"abc", `"abc"`, `"a\"b"`, `"a\\"`, "a,b", "", `"`, `""`, "\x00", "8e03978e-40d5-43e8-bc93-6894a57f9324", `"a";b=1`, `"a", "b"`,
		` "a" `, "a\tb", "é", ":YWJj:", "?1", "1.5", "@1659578233", `%"a"`, strings.Repeat("a", 256),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, sent, err := keyOf(http.Header{"K": {line}}, "K")
		if err != nil {
			if errors.Is(err, errNoKey) || key != "" || sent != "" {
				t.Errorf("%q: got %q, %q, %v", line, key, sent, err)
			}
			return
		}
		if len(key) == 0 || len(key) > maxKeyLen {
			t.Errorf("%q: key of length %d", line, len(key))
		}
		for _, c := range []byte(key) {
			if c <= ' ' || c > '~' {
				t.Errorf("%q: key with the byte %#x", line, c)
			}
		}
		if sent != strings.Trim(line, " \t") {
			t.Errorf("%q: sent on as %q", line, sent)
		}
		spellings := []string{sent, `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`}
		if !strings.ContainsAny(key, `,;"\`) {
			spellings = append(spellings, key)
		}
		for _, spelling := range spellings {
			again, _, err := keyOf(http.Header{"K": {spelling}}, "K")
			if err != nil || again != key {
				t.Errorf("%q is the key %q, but %q is %q (%v)", line, key, spelling, again, err)
			}
		}
	})
}
