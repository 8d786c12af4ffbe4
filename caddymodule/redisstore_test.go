package caddymodule

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
)

func provisionedRedis(t *testing.T, s RedisStore) (*RedisStore, error) {
	t.Helper()
	err := s.Provision(caddy.Context{Context: t.Context()})
	return &s, err
}

// Whatever is wrong with the store fails when it is validated, at its line, with the
// option and the remedy.
func TestRedisOptions(t *testing.T) {
	u := newUpstream(t)
	for name, c := range map[string]struct{ store, line, want string }{
		"nothing":                {"redis {\n\tpool_size 3\n}", "store redis", "`address host:6379`"},
		"both":                   {"redis redis://h {\n\taddress h:1\n}", "store redis", "the URL says already"},
		"cluster by URL too":     {"redis redis://h {\n\tcluster\n}", "store redis", "the URL says already"},
		"no address":             {"redis {\n\taddress\n}", "address", "write `address <host:port...>`"},
		"two servers":            {"redis {\n\taddress a:1 b:2\n}", "store redis", "several addresses"},
		"no port":                {"redis {\n\taddress localhost\n}", "store redis", "host:port"},
		"cluster with sentinels": {"redis {\n\taddress a:1\n\tcluster\n\tsentinel m\n}", "store redis", "not both"},
		"cluster with database":  {"redis {\n\taddress a:1\n\tcluster\n\tdatabase 1\n}", "store redis", "no database but 0"},
		"sentinels unnamed":      {"redis {\n\taddress a:1\n\tsentinel_username u\n}", "store redis", "`sentinel mymaster`"},
		"sentinel URL unnamed":   {"redis redis+sentinel://a", "store redis", "master_name"},
		"cluster URL with path":  {"redis redis+cluster://a/1", "store redis", "no database but 0"},
		"parameter in vain":      {"redis redis://a?read_timeout=3s", "store redis", "no effect"},
		"literal password":       {"redis {\n\taddress a:1\n\tpassword hunter2\n}", "password", "{env.NAME}"},
		"password in the URL":    {"redis redis://u:hunter2@a", "store redis", "{env.NAME}"},
		"half of it a secret":    {"redis redis://u:hunter{env.HOME}@a", "store redis", "{env.NAME}"},
		"password as parameter":  {"redis redis+sentinel://a?master_name=m&password=hunter2", "store redis", "{env.NAME}"},
		"sentinels' password":    {"redis {\n\taddress a:1\n\tsentinel m\n\tsentinel_password hunter2\n}", "sentinel_password", "{env.NAME}"},
		"empty password":         {"redis {\n\taddress a:1\n\tpassword\n}", "password", "{env.NAME}"},
		"database":               {"redis {\n\taddress a:1\n\tdatabase -1\n}", "database", "not a number from 0"},
		"pool_size":              {"redis {\n\taddress a:1\n\tpool_size 0\n}", "pool_size", "not a number from 1"},
		"pipelining":             {"redis {\n\taddress a:1\n\tpipelining maybe\n}", "pipelining maybe", "must be on or off"},
		"timeout":                {"redis {\n\taddress a:1\n\ttimeout soon\n}", "timeout", "not a duration"},
		"short timeout":          {"redis {\n\taddress a:1\n\ttimeout 1ms\n}", "store redis", "too short"},
		"prefix with braces":     {"redis {\n\taddress a:1\n\tkey_prefix a{bc\n}", "store redis", "must not contain"},
		"key without cert":       {"redis {\n\taddress a:1\n\ttls {\n\t\tkey /k\n\t}\n}", "store redis", "cert and key belong together"},
		"no such CA":             {"redis {\n\taddress a:1\n\ttls {\n\t\tca /no/such/file\n\t}\n}", "", "tls: ca: open /no/such/file"},
		"TLS besides plain URL":  {"redis redis://a {\n\ttls\n}", "store redis", "rediss://"},
		"tls on":                 {"redis {\n\taddress a:1\n\ttls on\n}", "tls on", "tls { … }"},
		"durability of nothing":  {"redis {\n\taddress a:1\n\tdurability {\n\t}\n}", "store redis", "`replicas 1`"},
		"durability too long":    {"redis {\n\taddress a:1\n\tdurability {\n\t\treplicas 1\n\t\ttimeout 600ms\n\t}\n}", "store redis", "more than half"},
		"no replicas":            {"redis {\n\taddress a:1\n\tdurability {\n\t\treplicas 0\n\t}\n}", "replicas 0", "not a number from 1"},
		"given twice":            {"redis {\n\tcluster\n\taddress a:1\n\tcluster\n}", "cluster", "given twice"},
		"username given twice":   {"redis redis://u@h {\n\tusername v\n}", "store redis", "given twice"},
	} {
		t.Run(name, func(t *testing.T) {
			config := site(t, protect(u, "owner shared\nstore "+c.store))
			err := validate(config)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter") {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
			if c.line == "" {
				return
			}
			before := ("store " + c.store)[:strings.LastIndex("store "+c.store, c.line)]
			line := lineOf(config, "store redis") + strings.Count(before, "\n")
			if at := fmt.Sprintf("Caddyfile:%d", line); !strings.HasSuffix(err.Error(), at) {
				t.Errorf("%v: not at %s", err, at)
			}
		})
	}
}

// All sites and reloads share a client as long as nothing that it depends on differs;
// what tells them apart shows no secret.
func TestMOD11RedisClientsAreSharedBySettings(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	write := func(text string) {
		if err := os.WriteFile(secret, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("hunter2\n")
	base := RedisStore{Addresses: []string{"h:1"}, Password: "{file." + secret + "}"}
	settings := func(change func(*RedisStore)) string {
		s := base
		change(&s)
		got, err := provisionedRedis(t, s)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got.Settings(), "hunter") || strings.Contains(got.location(), "hunter") {
			t.Errorf("the password shows: %s", got.Settings())
		}
		return got.Settings()
	}
	same := func(*RedisStore) {}
	seen := map[string]string{settings(same): "the base"}
	if again := settings(same); seen[again] == "" {
		t.Error("equal settings are told apart")
	}
	for what, change := range map[string]func(*RedisStore){
		"user":       func(s *RedisStore) { s.Username = "u" },
		"database":   func(s *RedisStore) { s.Database = 1 },
		"pool":       func(s *RedisStore) { s.PoolSize = 7 },
		"pipelining": func(s *RedisStore) { s.Pipelining = pipeliningOff },
		"timeout":    func(s *RedisStore) { s.Timeout = caddy.Duration(2e9) },
		"prefix":     func(s *RedisStore) { s.KeyPrefix = "p:" },
		"name":       func(s *RedisStore) { s.ClientName = "n" },
		"TLS":        func(s *RedisStore) { s.TLS = &RedisTLS{ServerName: "a"} },
		"TLS name":   func(s *RedisStore) { s.TLS = &RedisTLS{ServerName: "b"} },
		"durability": func(s *RedisStore) { s.Durability = &RedisDurability{Replicas: 1} },
		"cluster":    func(s *RedisStore) { s.Cluster = true },
		"sentinel":   func(s *RedisStore) { s.Sentinel = &RedisSentinel{Master: "m"} },
		"secret":     func(*RedisStore) { write("hunter3\n") },
	} {
		got := settings(change)
		if other, twice := seen[got]; twice {
			t.Errorf("%s: not told apart from %s", what, other)
		}
		seen[got] = what
		write("hunter2\n")
	}
}

// Certificate, name and password come from files; none of it shows.
func TestRedisByBlock(t *testing.T) {
	u := newUpstream(t)
	server := redistest.StartTLS(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.Do(context.Background(), "acl", "setuser", "gateway", "on", ">hunter2", "~jobs:*", "&jobs:*", "+@all", "-@dangerous", "+info").Err(); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := site(t, protect(u, `owner shared
		store redis {
			address `+server.SecureAddr+`
			username gateway
			password {file.`+secret+`}
			database 2
			key_prefix jobs:
			client_name edge
			timeout 5s
			tls {
				ca `+server.CA+`
				cert `+server.Cert+`
				key `+server.Key+`
				server_name `+redistest.ServerName+`
			}
		}`))
	adapted, err := adapt(config)
	if err != nil || strings.Contains(string(adapted), "hunter2") {
		t.Errorf("adapted: %v\n%s", err, adapted)
	}
	load(t, config)
	if a := post(t, "/pay", "k"); a.status != 200 || a.header.Get("Idempotency-Job") == "" {
		t.Errorf("got %+v", a)
	}
	clients, err := admin.Do(context.Background(), "client", "list").Text()
	if err != nil || !strings.Contains(clients, "name=edge") || !strings.Contains(clients, "db=2") {
		t.Errorf("clients: %v\n%s", err, clients)
	}
	keys, err := admin.Do(context.Background(), "info", "keyspace").Text()
	if err != nil || !strings.Contains(keys, "db2:keys=") {
		t.Errorf("keys: %v\n%s", err, keys)
	}
}
