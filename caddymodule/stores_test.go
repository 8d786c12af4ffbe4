package caddymodule

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/internal/testport"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
)

// A secret stays where the configuration says that it is.
func TestMOD07PlaceholdersAreResolvedWhenTheConfigurationIsLoaded(t *testing.T) {
	u, redis := newUpstream(t), fakeRedis(t)
	redis.RequireAuth("s3cret")
	config := site(t, protect(u, "owner shared\nstore redis redis://:{env.REDIS_PASSWORD}@"+redis.Addr()))

	t.Setenv("REDIS_PASSWORD", "")
	adapted, err := adapt(config)
	if err != nil || !strings.Contains(string(adapted), "{env.REDIS_PASSWORD}") {
		t.Errorf("adapted without the variable: %v\n%s", err, adapted)
	}
	for _, run := range []func(string) error{validate, reload} {
		if err := run(config); err == nil || !strings.Contains(err.Error(), "{env.REDIS_PASSWORD}") || !strings.Contains(err.Error(), "store redis") {
			t.Errorf("without the variable: %v", err)
		}
	}
	unknown := strings.Replace(config, "env.REDIS_PASSWORD", "nosuch.thing", 1)
	if err := validate(unknown); err == nil || !strings.Contains(err.Error(), "unrecognized placeholder {nosuch.thing}") {
		t.Errorf("unknown placeholder: %v", err)
	}

	t.Setenv("REDIS_PASSWORD", "s3cret")
	if adapted, err = adapt(config); err != nil || strings.Contains(string(adapted), "s3cret") {
		t.Errorf("adapted with the variable: %v\n%s", err, adapted)
	}
	load(t, config)
	if a := post(t, "/pay", "k"); a.status != 200 || a.header.Get("Idempotency-Job") == "" {
		t.Errorf("got %+v", a)
	}
}

func TestMOD07ErrorsDoNotTellThePassword(t *testing.T) {
	u := newUpstream(t)
	t.Setenv("REDIS_URL", "redis://:s3cret%zz@host:port/db")
	for _, url := range []string{"{env.REDIS_URL}", "redis://:s3cret%zz@host/1", "redis://:s3cret@host/s3cret", "s3cret", "redis://:s3cret@host:1x/0"} {
		err := validate(site(t, protect(u, "owner shared\nstore redis "+url)))
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "store redis: the URL") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Validating must be possible beside the server that runs.
func TestValidateOpensNothing(t *testing.T) {
	u := newUpstream(t)
	file := filepath.Join(t.TempDir(), "held.db")
	other, err := boltstore.Open(file, boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	nobody := "127.0.0.1:" + testport.Take(t)

	onBolt := site(t, protect(u, "owner shared\nstore bolt "+file))
	for name, config := range map[string]string{
		"file held by another process": onBolt,
		"Redis down":                   site(t, protect(u, "owner shared\nstore redis redis://"+nobody)),
	} {
		if err := validate(config); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := openStores(); n != 0 {
			t.Errorf("%s: %d stores were opened", name, n)
		}
	}

	err = reload(onBolt)
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("running on a file held by another process: %v", err)
	}
	if n := openStores(); n != 0 {
		t.Errorf("%d stores are open", n)
	}
	other.Close()
	load(t, onBolt)
	if a := post(t, "/pay", "k"); a.status != 200 {
		t.Errorf("once the file is free: %+v", a)
	}
}

// Redis may come up later than Caddy.
func TestRedisDownIsToldToEachRequest(t *testing.T) {
	u, redis := newUpstream(t), fakeRedis(t)
	config := site(t, protect(u, "owner shared\nstore redis redis://"+redis.Addr()))
	redis.Close()
	load(t, config)
	if a := post(t, "/pay", "k"); a.status != 503 || a.code() != "store-unavailable" || a.header.Get("Retry-After") == "" {
		t.Errorf("got %+v", a)
	}
	if a := post(t, "/pay", ""); a.status != 200 {
		t.Errorf("without a key: %+v", a)
	}
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key executes", func() bool { return post(t, "/pay", "k").status == 200 })
	if n := u.executions("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// A server may get requests before the app has opened the store. Where it can't
// be opened, nothing that needs it is passed on.
func TestRequestsBeforeTheStoreIsOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "held.db")
	other, err := boltstore.Open(file, boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	u := newUpstream(t)
	adapted, err := adapt(site(t, protect(u, "owner shared\nstore bolt "+file)))
	if err != nil {
		t.Fatal(err)
	}
	h := serveProvisioned(t, adapted)
	if a := h("k"); a.status != 503 || a.code() != "store-unavailable" {
		t.Errorf("while another process has the file: %+v", a)
	}
	if a := h(""); a.status != 200 {
		t.Errorf("without a key: %+v", a)
	}
	other.Close()
	for n, replayed := range []string{"", "true"} {
		if a := h("k"); a.status != 200 || a.header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("request %d once the file is free: %+v", n+1, a)
		}
		eventually(t, "the store is closed with the request", func() bool { return openStores() == 0 })
	}
}

func TestDefaultStoreIsAFileInTheDataDirectory(t *testing.T) {
	u := newUpstream(t)
	load(t, site(t, protect(u, "owner shared")))
	file := filepath.Join(caddy.AppDataDir(), "idempotency.db")
	if _, err := boltstore.Open(file, boltstore.Options{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("the file is not in use: %v", err)
	}
}
