package caddymodule

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-idempotency/caddy-idempotency/internal/pages"
)

// surroundings are what the configurations of the documentation find on the machine
// that they are for: environment, files, and a working directory.
type surroundings struct {
	t   *testing.T
	dir string
	env map[string]bool
}

func newSurroundings(t *testing.T) *surroundings {
	t.Helper()
	s := &surroundings{t: t, dir: t.TempDir(), env: make(map[string]bool)}
	t.Setenv("XDG_DATA_HOME", s.dir)
	t.Chdir(s.dir)
	// What contracts in the documentation are made of.
	s.put("charge.schema.json", `{"type": "object"}`)
	s.put("cases/charge.http", "### a charge\n# @safe\nPOST /charges\n\nHTTP 200\n")
	return s
}

func (s *surroundings) put(path, content string) {
	s.t.Helper()
	path = filepath.Join(s.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

var (
	ofEnvironment = regexp.MustCompile(`\{\$?(?:env\.)?([A-Z][A-Z0-9_]+)(?::[^}]*)?\}`)
	ofFile        = regexp.MustCompile(`/(?:etc|run|var)/[A-Za-z0-9_./-]*[A-Za-z0-9_]`)
	anyPassword   = regexp.MustCompile(`\$2a\$14\$(?:…|\.\.\.)`)
)

// meet makes what a configuration speaks of, and returns it with the places where
// that is.
func (s *surroundings) meet(config string) string {
	s.t.Helper()
	const secret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	for _, found := range ofEnvironment.FindAllStringSubmatch(config, -1) {
		name, value := found[1], secret
		switch {
		case strings.HasPrefix(name, "REDIS") && strings.HasSuffix(name, "URL"):
			value = "redis://localhost:6379"
		case strings.HasSuffix(name, "ADDRESS"), strings.HasSuffix(name, "UPSTREAM"):
			value = "localhost:8081"
		}
		if !s.env[name] {
			s.t.Setenv(name, value)
			s.env[name] = true
		}
	}
	config = ofFile.ReplaceAllStringFunc(config, func(path string) string {
		switch {
		case strings.HasSuffix(path, ".pem"), strings.HasSuffix(path, ".crt"):
			s.put(path, s.certificate())
		default:
			s.put(path, secret)
		}
		return filepath.Join(s.dir, path)
	})
	return anyPassword.ReplaceAllString(config, "$$2a$$10$$eGe46cH1d2BzHjU7bphZq.FORkExW7csdVlpAXVceDyLgUKW1i67a")
}

var pairForPages []byte

// certificate returns a certificate and its key, in one file for both.
func (s *surroundings) certificate() string {
	s.t.Helper()
	if pairForPages != nil {
		return string(pairForPages)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		s.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	pairForPages = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	return string(pairForPages)
}

// whole makes a Caddyfile of a block that is a part of one: of an idempotency block,
// or of a site.
func whole(block string) string {
	name := func(block string) string {
		for line := range strings.Lines(block) {
			if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
				return words[0]
			}
		}
		return ""
	}(block)
	_, isOption := options[name]
	switch {
	case name == "{", strings.HasPrefix(name, "("), strings.ContainsAny(name, ":"), strings.Contains(name, ".") && !strings.HasPrefix(name, "@"):
		return block
	case isOption:
		if !regexp.MustCompile(`(?m)^owner `).MatchString(block) {
			block += "owner shared\n"
		}
		return ":80 {\nidempotency {\n" + block + "}\nreverse_proxy localhost:8081\n}\n"
	}
	return ":80 {\n" + block + "}\n"
}

// isGrammar tells what says how a configuration is written from one that is.
func isGrammar(block string) bool { return regexp.MustCompile(`<[a-z ]+>`).MatchString(block) }

// Every configuration in the documentation is one: it is written as caddy fmt writes
// it, and Caddy takes it.
func TestConfigurationsOfThePages(t *testing.T) {
	all := pages.All(t, "..")
	s := newSurroundings(t)
	seen := 0
	for _, p := range all {
		for _, b := range p.Blocks() {
			var config []byte
			switch {
			case b.Language == "caddyfile" && !isGrammar(b.Text):
				if formatted := string(caddyfile.Format([]byte(b.Text))); formatted != b.Text {
					t.Errorf("%s:%d: not as caddy fmt writes it, which is\n%s", p.Path, b.Line, formatted)
				}
				adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(whole(s.meet(b.Text))), nil)
				if err != nil {
					t.Errorf("%s:%d: %v", p.Path, b.Line, err)
					continue
				}
				for _, w := range warnings {
					if !strings.Contains(w.Message, "not formatted") {
						t.Errorf("%s:%d: %v", p.Path, b.Line, w)
					}
				}
				config = adapted
			case b.Language == "json":
				var document map[string]json.RawMessage
				if err := json.Unmarshal([]byte(b.Text), &document); err != nil {
					t.Errorf("%s:%d: %v", p.Path, b.Line, err)
					continue
				}
				if document["apps"] == nil {
					continue
				}
				config = []byte(s.meet(b.Text))
			default:
				continue
			}
			seen++
			if err := validateJSON(config); err != nil {
				t.Errorf("%s:%d: %v\n%s", p.Path, b.Line, err, b.Text)
			}
		}
	}
	if seen < 10 {
		t.Errorf("there are %d configurations: the pages were not understood", seen)
	}
}

// The case that the guide shows is one.
func TestCaseOfThePages(t *testing.T) {
	guide := pages.Of(t, "..", "docs/guide.md").Section(t, "## Several providers")
	s := newSurroundings(t)
	for _, b := range guide.Blocks() {
		if b.Language != "http" {
			continue
		}
		s.put("cases/guide.http", b.Text)
		s.put("cases/charge.schema.json", `{"type": "object"}`) // as seen from there
		contract, err := (&Contract{Name: "charge", Cases: []string{"cases/guide.http"}}).compile()
		if err != nil {
			t.Fatal(err)
		}
		if len(contract.Cases()) != 1 {
			t.Errorf("there are %d cases", len(contract.Cases()))
		}
		return
	}
	t.Error("the guide shows no case")
}
