package keystore

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestParseSecret(t *testing.T) {
	t.Parallel()
	want := NewSecret()
	for _, text := range []string{
		hex.EncodeToString(want[:]), strings.ToUpper(hex.EncodeToString(want[:])), hex.EncodeToString(want[:]) + "\n",
		base64.StdEncoding.EncodeToString(want[:]), base64.RawStdEncoding.EncodeToString(want[:]),
		base64.URLEncoding.EncodeToString(want[:]), base64.RawURLEncoding.EncodeToString(want[:]),
	} {
		if got, err := ParseSecret(text); err != nil || got != want {
			t.Errorf("not read: %v", err)
		}
	}
	for _, text := range []string{
		"", "hunter2", strings.Repeat("a", 32), strings.Repeat("g", 64), strings.Repeat("a", 63), strings.Repeat("ab", 33),
		base64.StdEncoding.EncodeToString(want[:31]), base64.StdEncoding.EncodeToString(append(want[:], 1)),
	} {
		_, err := ParseSecret(text)
		if err == nil {
			t.Errorf("%d characters were taken for a secret", len(text))
		} else if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("the error shows what was given: %v", err)
		}
	}
}

// Whatever has a secret in it can be printed without showing it.
func TestSecretsDontShow(t *testing.T) {
	t.Parallel()
	s := Secret([]byte("an easily recognised secret, 32B"))
	ring, err := NewKeyring(SealKey{"k1", s})
	if err != nil {
		t.Fatal(err)
	}
	has := struct {
		Digester Digester
		Keyring  *Keyring
		Key      SealKey
		Secret   Secret
	}{NewDigester(s), ring, SealKey{"k1", s}, s}
	asJSON, err := json.Marshal(has) //nolint:gosec // that it shows nothing is the point
	if err != nil {
		t.Fatal(err)
	}
	shown := string(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		shown += fmt.Sprintf(verb, has) + fmt.Sprintf(verb, ring) + fmt.Sprintf(verb, s)
	}
	for _, spelling := range []string{"recognised", hex.EncodeToString(s[:8]), strings.Trim(fmt.Sprintf("%d", s[:4:4]), "[]"), "0x61, 0x6e, 0x20"} {
		if strings.Contains(shown, spelling) {
			t.Errorf("it shows as %s: %s", spelling, shown)
		}
	}
}
