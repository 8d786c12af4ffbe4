package caddymodule

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	secretOne = "c0ffee0000000000000000000000000000000000000000000000000000000001"
	secretTwo = "c0ffee0000000000000000000000000000000000000000000000000000000002"
)

func setSecrets(t *testing.T) {
	t.Helper()
	t.Setenv("ONE", secretOne)
	t.Setenv("TWO", secretTwo)
	t.Setenv("BAD", "hunter2hunter2")
	t.Setenv("EMPTY", "")
}

// MOD-07: secrets are placeholders that are replaced when the configuration is
// loaded, not when it is written. A secret in the configuration itself is refused,
// and not shown.
func TestMOD07SecretInTheConfigurationIsRefused(t *testing.T) {
	setSecrets(t)
	for _, c := range []struct{ name, option, want string }{
		{"a literal", "encrypt_with k1 " + secretOne, "{env.NAME}"},
		{"a variable of the Caddyfile", "encrypt_with k1 {$ONE}", "{env.NAME}"},
		{"a part of it", "encrypt_with k1 {env.ONE}" + secretOne, "{env.NAME}"},
		{"a placeholder of the request", "encrypt_with k1 {http.request.header." + secretOne + "}", "{env.NAME}"},
		{"the wrong way round", "encrypt_with " + secretOne + " k1", "id comes first"},
		{"no id", "encrypt_with " + secretOne, "the key's id"},
		{"nothing", "encrypt_with", "the key's id"},
		{"too much", "encrypt_with k1 {env.ONE} " + secretOne, "the key's id"},
		{"twice", "encrypt_with k1 {env.ONE}\nencrypt_with k1 {env.TWO}", "given twice"},
		{"digest: a literal", "digest_secret " + secretOne, "{env.NAME}"},
		{"digest: a variable of the Caddyfile", "digest_secret {$ONE}", "{env.NAME}"},
		{"digest: too much", "digest_secret {env.ONE} " + secretOne, "takes one secret"},
		{"digest: nothing", "digest_secret", "takes one secret"},
	} {
		config := ":80 {\nidempotency {\nowner shared\n" + c.option + "\n}\n}"
		_, err := adaptAsIs(config)
		if err == nil {
			t.Errorf("%s: taken", c.name)
			continue
		}
		said := err.Error()
		option, _, _ := strings.Cut(c.option, " ")
		if !strings.Contains(said, option) || !strings.Contains(said, c.want) || !strings.Contains(said, "Caddyfile:") {
			t.Errorf("%s: the error names neither option, line nor remedy: %v", c.name, err)
		}
		if strings.Contains(said, secretOne[:16]) {
			t.Errorf("%s: the error shows the secret: %v", c.name, err)
		}
	}
	if _, err := adapt(":80 {\nidempotency_status {\nowner shared\ndigest_secret {$ONE}\n}\n}"); err == nil || strings.Contains(err.Error(), secretOne) {
		t.Errorf("idempotency_status: %v", err)
	}
	for _, literal := range []string{`"encrypt_with":[{"id":"k1","secret":"` + secretOne + `"}]`, `"digest_secret":"` + secretOne + `"`} {
		err := validateJSON([]byte(`{"apps":{"http":{"servers":{"s":{"listen":["127.0.0.1:0"],"routes":[{"handle":[{"handler":"idempotency","owner":"shared",` + literal + `}]}]}}}}}`))
		if err == nil || !strings.Contains(err.Error(), "{env.NAME}") {
			t.Errorf("in JSON: %v", err)
		}
	}
}

// MOD-07: what a placeholder stands for is looked at when the configuration is
// loaded. Adapting needs none of it, and shows none of it.
func TestMOD07SecretsAreReadWhenTheConfigurationIsLoaded(t *testing.T) {
	setSecrets(t)
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return "{file." + path + "}"
	}
	missing := "{file." + filepath.Join(t.TempDir(), "none") + "}"
	for placeholder, want := range map[string]string{
		"{env.ONE}":                "",
		file(secretOne):            "",
		file(secretOne + "\n"):     "",
		file(secretOne + "\r\n"):   "",
		"{env.NO_SUCH_VARIABLE}":   "{env.NO_SUCH_VARIABLE}: the environment variable is not set, or empty",
		"{env.EMPTY}":              "not set, or empty",
		"{env.BAD}":                "openssl rand -hex 32",
		missing:                    "no such file",
		file("\n"):                 "is empty",
		file(secretOne + "\nmore"): "openssl rand -hex 32",
	} {
		for _, option := range []string{"encrypt_with k1 ", "digest_secret "} {
			config := site(t, "idempotency {\nowner shared\n"+option+placeholder+"\n}")
			adapted, err := adapt(config)
			if err != nil || strings.Contains(string(adapted), secretOne) || !strings.Contains(string(adapted), placeholder) {
				t.Errorf("%s%s: adapted to %s, %v", option, placeholder, adapted, err)
			}
			err = validateJSON(adapted)
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), strings.TrimSpace(option))) {
				t.Errorf("%s%s: %v, want %q", option, placeholder, err, want)
			}
			if err != nil && (strings.Contains(err.Error(), secretOne) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("%s%s: the error shows the secret: %v", option, placeholder, err)
			}
		}
	}
	err := validate(site(t, "idempotency {\nowner shared\nencrypt_with k1 {env.ONE}\nencrypt_with k2 {env.ONE}\n}"))
	if err == nil || !strings.Contains(err.Error(), "one secret") {
		t.Errorf("one secret, two ids: %v", err)
	}
}

// Handlers that share a space have to be able to find and to read each other's jobs.
func TestSecretsOfOneSpaceHaveToAgree(t *testing.T) {
	setSecrets(t)
	t.Setenv("AGAIN", secretOne)
	two := func(one, other string) string {
		return site(t, "handle /a {\nidempotency {\nowner shared\n"+one+"\n}\nrespond a\n}\nhandle /b {\n"+other+"\nrespond b\n}")
	}
	handler := func(options string) string { return "idempotency {\nowner shared\n" + options + "\n}" }
	const both = "encrypt_with k1 {env.ONE}\nencrypt_with k2 {env.TWO}\n"
	for name, c := range map[string]struct{ config, want string }{
		"the same":                  {two(both+"digest_secret {env.ONE}", handler(both+"digest_secret {env.ONE}")), ""},
		"the same by another name":  {two("digest_secret {env.ONE}", handler("digest_secret {env.AGAIN}")), ""},
		"another order":             {two(both, handler("encrypt_with k2 {env.TWO}\nencrypt_with k1 {env.ONE}")), "encrypt_with"},
		"one encrypts":              {two("", handler(both)), "encrypt_with"},
		"other digests":             {two("digest_secret {env.ONE}", handler("digest_secret {env.TWO}")), "digest_secret"},
		"one has plain digests":     {two("digest_secret {env.ONE}", handler("")), "digest_secret"},
		"another space":             {two("digest_secret {env.ONE}\n"+both, handler("space other")), ""},
		"status without the secret": {two("digest_secret {env.ONE}", "idempotency_status {\nowner shared\n}"), "digest_secret"},
		"status with another":       {two("", "idempotency_status {\nowner shared\ndigest_secret {env.TWO}\n}"), "digest_secret"},
		"status with the same":      {two("digest_secret {env.ONE}", "idempotency_status {\nowner shared\ndigest_secret {env.ONE}\n}"), ""},
	} {
		err := validate(c.config)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "space main")) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Operators and callers find a job whose digests have a secret, and what operators
// decide is encrypted like what upstreams answer.
func TestSecretsReachOperatorsAndCallers(t *testing.T) {
	setSecrets(t)
	u := newUpstream(t)
	const owner = "owner {http.request.header.X-User}\ndigest_secret {env.ONE}\n"
	block := "handle_path /jobs/* {\nidempotency_status {\n" + owner + "}\n}\nhandle {\n" + protect(u, owner+"encrypt_with k1 {env.TWO}") + "\n}"
	config, admin := adminSite(t, "", block)
	load(t, config)
	id := post(t, "/die", "k", "X-User", "alice").header.Get("Idempotency-Job")
	if s := stateOf(t, "/jobs/"+id, "alice"); s.State != "unknown" {
		t.Errorf("status %+v", s)
	}
	if a := get(t, "GET", "/jobs/"+id, "bob"); a.status != 404 {
		t.Errorf("somebody else's job: %+v", a)
	}
	found := ask(t, admin, "POST", "find", `{"owner":"alice","key":"k"}`)
	if found.status != 200 || found.job(t).ID != id {
		t.Fatalf("find: %d %s", found.status, found.body)
	}
	decision := `{"as":"succeeded","actor":"op","evidence":"bank statement","response":{"status":201,"body":"iban-4711"}}`
	if a := ask(t, admin, "POST", "jobs/"+id+"/resolve", decision); a.status != 200 {
		t.Fatalf("resolve: %d %s", a.status, a.body)
	}
	if a := post(t, "/die", "k", "X-User", "alice"); a.status != 201 || a.body != "iban-4711" {
		t.Errorf("a retry got %+v", a)
	}
	if n := u.executions("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
	data := readFile(t, os.Getenv("XDG_DATA_HOME"), "caddy", "idempotency.db")
	for _, secret := range []string{"iban-4711", "alice", secretOne, secretTwo} {
		if strings.Contains(data, secret) {
			t.Errorf("the store has %q in it", secret)
		}
	}

	// A configuration without the keys can't decide in their place.
	id = post(t, "/die", "k2", "X-User", "alice").header.Get("Idempotency-Job")
	if err := reload(strings.ReplaceAll(config, "encrypt_with k1 {env.TWO}", "")); err != nil {
		t.Fatal(err)
	}
	refused := ask(t, admin, "POST", "jobs/"+id+"/resolve", decision)
	if refused.status != 409 || !strings.Contains(refused.body, `"encrypted"`) || !strings.Contains(refused.body, "encrypt_with") {
		t.Errorf("resolve without the key: %d %s", refused.status, refused.body)
	}
	if a := insist(t, "/die", "k", "X-User", "alice"); a.status != 503 || a.code() != "store-unavailable" {
		t.Errorf("without the key a retry got %+v", a)
	}
	if n := u.executions("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
	if said := fmt.Sprintf("%+v", refused); strings.Contains(said, secretTwo) {
		t.Errorf("the secret shows: %s", said)
	}
}
