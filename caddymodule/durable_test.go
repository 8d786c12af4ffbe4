package caddymodule

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// mute is a store that says nothing about itself.
type mute struct{}

func (mute) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: storesNamespace + ".mute", New: func() caddy.Module { return mute{} }}
}
func (mute) Settings() string                          { return "" }
func (mute) Open(*slog.Logger) (keystore.Store, error) { return unopened{}, nil }

func init() { caddy.RegisterModule(mute{}) }

func TestRequireDurableOfAStoreThatCannotTell(t *testing.T) {
	u := newUpstream(t)
	adapted, err := adapt(site(t, protect(u, "owner shared\nrequire_durable")))
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(string(adapted), `"handler":"idempotency"`, `"handler":"idempotency","store":{"module":"mute"}`, 1)
	err = caddy.Load([]byte(config), true)
	if err == nil || !strings.Contains(err.Error(), "mute") || !strings.Contains(err.Error(), "remove the option") {
		t.Errorf("got %v", err)
	}
	stop(t)
}

// Whether the store has to be durable is each handler's own matter. Requests without
// a key pass anyway.
func TestRequireDurable(t *testing.T) {
	u, redis := newUpstream(t), redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	options := func(more string) string {
		return "owner shared\nstore redis " + redis.URL() + "\n" + more
	}
	config, admin := adminSite(t, "", "handle /a {\n"+protect(u, options("space a"))+"\n}\nhandle /b {\n"+protect(u, options("space b\nrequire_durable"))+
		"\n}\nhandle {\n"+protect(u, options("space c\nrequire_durable warning"))+"\n}")
	load(t, config)
	// Nobody knows anything at the very start.
	eventually(t, "the danger is known to be none", func() bool { return post(t, "/b", "kb").status == 200 })
	if a := post(t, "/a", "ka"); a.status != 200 {
		t.Errorf("where nothing is required: %+v", a)
	}
	if a := post(t, "/c", "kc"); a.status != 503 || a.code() != "store-unavailable" || a.header.Get("Retry-After") == "" {
		t.Errorf("where warnings count: %+v", a)
	}
	if a := post(t, "/c", ""); a.status != 200 {
		t.Errorf("without a key: %+v", a)
	}
	if n := u.executions("kc"); n != 0 {
		t.Errorf("%d executions", n)
	}
	a := ask(t, admin, "GET", "doctor", "")
	if a.status != 200 || !strings.Contains(a.body, `"refused":"the store is not durable (fsync)`) {
		t.Errorf("doctor: %+v", a)
	}
	if a := ask(t, admin, "GET", "ready", ""); a.status != 503 || !strings.Contains(a.body, "store redis is not durable") {
		t.Errorf("ready: %+v", a)
	}
}

func TestReady(t *testing.T) {
	u, redis := newUpstream(t), fakeRedis(t)
	config, admin := adminSite(t, "idempotency {\nadmin_token secret\n}", protect(u, "owner shared\nstore redis redis://"+redis.Addr()))
	load(t, config)
	if a := ask(t, admin, "GET", "ready", ""); a.status != 200 || strings.TrimSpace(a.body) != `{"ready":true}` || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %+v", a)
	}
	if a := ask(t, admin, "POST", "ready", ""); a.status != 405 || a.header.Get("Allow") != "GET" {
		t.Errorf("POST: %+v", a)
	}
	if a := ask(t, admin, "GET", "doctor", ""); a.status != 401 {
		t.Errorf("doctor without the token: %+v", a)
	}
	redis.Close()
	eventually(t, "it is not ready", func() bool {
		a := ask(t, admin, "GET", "ready", "")
		return a.status == 503 && strings.TrimSpace(a.body) == `{"ready":false,"reasons":["store redis does not answer"]}`
	})
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready again", func() bool { return ask(t, admin, "GET", "ready", "").status == 200 })
}
