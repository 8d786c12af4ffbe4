package caddymodule

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// EncryptionKey is a key that encrypts what is kept of answers and keys.
type EncryptionKey struct {
	// What records call the key: up to 32 letters, digits, dots, dashes and
	// underscores. It is no secret, and has to stay the same as long as there are
	// records that were encrypted with the key.
	ID string `json:"id"`

	// The key: `{env.NAME}` or `{file./path}`, which is replaced when the
	// configuration is loaded, and stands for 32 random bytes as 64 hexadecimal
	// digits or in base64.
	Secret string `json:"secret"`
}

var (
	keyID             = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`)
	secretPlaceholder = regexp.MustCompile(`^\{(?:env|file)\.[^{}]+\}$`)
)

const howToGiveSecrets = "write {env.NAME} or {file./path/of/a/file} ({$NAME} won't do: it puts the secret itself into the configuration, where it can be read)" //nolint:gosec // none of it is a secret

// None of the errors below shows what was given: with its parts in the wrong order,
// any of them can be the secret.

func (p *parser) encryptWith() error {
	args := p.d.RemainingArgs()
	place := p.given["encrypt_with"]
	if len(args) != 2 {
		return place.WrapErr(errors.New("encrypt_with: takes the key's id and its secret; write `encrypt_with k1 {env.NAME}` or `encrypt_with k1 {file./path/of/a/file}`"))
	}
	key := EncryptionKey{ID: args[0], Secret: args[1]}
	if err := key.check(); err != nil {
		return place.WrapErr(err)
	}
	p.h.EncryptWith = append(p.h.EncryptWith, key)
	return nil
}

func (p *parser) digestSecret() error {
	args := p.d.RemainingArgs()
	place := p.given["digest_secret"]
	if len(args) != 1 {
		return place.WrapErr(errors.New("digest_secret: takes one secret; write `digest_secret {env.NAME}` or `digest_secret {file./path/of/a/file}`"))
	}
	if err := checkDigestSecret(args[0]); err != nil {
		return place.WrapErr(err)
	}
	p.h.DigestSecret = args[0]
	return nil
}

func (k EncryptionKey) check() error {
	if !keyID.MatchString(k.ID) {
		return errors.New("encrypt_with: the key's id comes first, and has up to 32 letters, digits, dots, dashes and underscores; write `encrypt_with k1 {env.NAME}`")
	}
	if !secretPlaceholder.MatchString(k.Secret) {
		return errors.New("encrypt_with: the secret itself is in the configuration; " + howToGiveSecrets)
	}
	return nil
}

func checkDigestSecret(setting string) error {
	if setting != "" && !secretPlaceholder.MatchString(setting) {
		return errors.New("digest_secret: the secret itself is in the configuration; " + howToGiveSecrets)
	}
	return nil
}

// checkSecrets reports what is wrong with how secrets are given, without asking for
// them.
func (h *Handler) checkSecrets() error {
	if err := checkDigestSecret(h.DigestSecret); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for _, key := range h.EncryptWith {
		if err := key.check(); err != nil {
			return err
		}
		if seen[key.ID] {
			return fmt.Errorf("encrypt_with %s: given twice; give each key an id of its own", key.ID)
		}
		seen[key.ID] = true
	}
	return nil
}

// provisionSecrets asks for the secrets.
func (h *Handler) provisionSecrets() (err error) {
	if err := h.checkSecrets(); err != nil {
		return err
	}
	if h.config.Digester, err = digesterOf(h.DigestSecret); err != nil {
		return err
	}
	keys := make([]keystore.SealKey, len(h.EncryptWith))
	for i, key := range h.EncryptWith {
		secret, err := resolveSecret("encrypt_with "+key.ID, key.Secret)
		if err != nil {
			return err
		}
		keys[i] = keystore.SealKey{ID: key.ID, Secret: secret}
	}
	if h.config.Keyring, err = keystore.NewKeyring(keys...); err != nil {
		return fmt.Errorf("encrypt_with: %w", err)
	}
	if h.config.Keyring != nil && !h.config.Digester.Keyed() {
		h.log.Warn("answers and keys are encrypted, but what is kept of owners, keys and requests are plain digests, with which guesses can be compared; "+
			"add digest_secret, best before there are any jobs: with it every key is new", slog.String("space", h.config.Space))
	}
	return nil
}

// digesterOf returns what makes digests with this setting.
func digesterOf(setting string) (keystore.Digester, error) {
	if setting == "" {
		return keystore.Digester{}, nil
	}
	if err := checkDigestSecret(setting); err != nil {
		return keystore.Digester{}, err
	}
	secret, err := resolveSecret("digest_secret", setting)
	if err != nil {
		return keystore.Digester{}, err
	}
	return keystore.NewDigester(secret), nil
}

// resolveSecret returns the secret that a placeholder stands for.
func resolveSecret(option, placeholder string) (keystore.Secret, error) {
	name := strings.Trim(placeholder, "{}")
	value, _ := caddy.NewReplacer().Get(name)
	text, _ := value.(string)
	if strings.TrimSpace(text) == "" {
		why := "the environment variable is not set, or empty"
		if path, isFile := strings.CutPrefix(name, "file."); isFile {
			why = "the file is empty"
			if _, err := os.ReadFile(path); err != nil {
				why = err.Error()
			}
		}
		return keystore.Secret{}, fmt.Errorf("%s: there is no secret in %s: %s; make one with: openssl rand -hex 32", option, placeholder, why)
	}
	secret, err := keystore.ParseSecret(text)
	if err != nil {
		return keystore.Secret{}, fmt.Errorf("%s: what is in %s is %w", option, placeholder, err)
	}
	return secret, nil
}

// secrets are those of all handlers that have to do with the jobs of one place.
type secrets struct {
	digester keystore.Digester
	keyring  *keystore.Keyring
}

// secretsOf returns the secrets with which the jobs of a place are kept.
func (a *App) secretsOf(at place) secrets {
	if handlers := a.handlers[at]; len(handlers) > 0 {
		return secrets{handlers[0].config.Digester, handlers[0].config.Keyring}
	}
	if statuses := a.statuses[at]; len(statuses) > 0 {
		return secrets{digester: statuses[0].digester}
	}
	return secrets{}
}

// agreeOnSecrets refuses handlers that would not find, or could not read, each
// other's jobs in the place that they share: a request would be executed once at
// each of them, or its repetition be refused by one.
func (a *App) agreeOnSecrets(at place) error {
	first := a.secretsOf(at)
	differs := func(d keystore.Digester) error {
		if d.Equal(first.digester) {
			return nil
		}
		return fmt.Errorf("digest_secret: handlers for the space %s of one store have different ones, and would not find each other's jobs; "+
			"give all of them the same, idempotency_status included, or each a space of its own", at.space)
	}
	for _, h := range a.handlers[at] {
		if err := differs(h.config.Digester); err != nil {
			return err
		}
		if !h.config.Keyring.Equal(first.keyring) {
			return fmt.Errorf("encrypt_with: idempotency handlers for the space %s of one store have different keys, or the same in another order, and could not read each other's jobs; "+
				"give all of them the same lines, or each a space of its own", at.space)
		}
	}
	for _, s := range a.statuses[at] {
		if err := differs(s.digester); err != nil {
			return err
		}
	}
	return nil
}
