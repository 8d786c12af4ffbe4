package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/storetest"
)

var backends atomic.Int64

// sharing makes backends on the same servers, each under a prefix of its own.
func sharing(raw redis.UniversalClient, options func(*Options)) func(testing.TB) storetest.Backend {
	return func(testing.TB) storetest.Backend {
		prefix := fmt.Sprintf("b%d:", backends.Add(1))
		return storetest.Backend{
			Open: func(t testing.TB) keystore.Store {
				return openWith(t, func(o *Options) {
					options(o)
					o.Prefix = prefix
					o.PoolSize = 10
				})
			},
			Advance: time.Sleep,
			Garble: func(t testing.TB, name keystore.Name, record []byte) {
				t.Helper()
				if err := raw.Set(context.Background(), RecordKey(prefix, name), record, 0).Err(); err != nil {
					t.Fatal(err)
				}
			},
		}
	}
}

func openWith(t testing.TB, options ...func(*Options)) *Store {
	t.Helper()
	o := Options{Timeout: 5 * time.Second}
	for _, f := range options {
		f(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func byURL(url string) func(*Options) { return func(o *Options) { o.URL = url } }

// conformAndStayLinearizable runs all that every store has to pass.
func conformAndStayLinearizable(t *testing.T, backend func(testing.TB) storetest.Backend) {
	t.Run("conformance", func(t *testing.T) { storetest.Run(t, backend) })
	t.Run("linearizable", func(t *testing.T) { storetest.Linearizable(t, backend, storetest.Load{}) })
	t.Run("linearizable through many", func(t *testing.T) {
		storetest.Linearizable(t, func(t testing.TB) storetest.Backend {
			b := backend(t)
			open := b.Open
			b.Open = func(t testing.TB) keystore.Store { return storetest.ThroughMany{Store: open(t)} }
			return b
		}, storetest.Load{})
	})
}

// TestTLS: the server wants a certificate, and has one that the store trusts.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	ca, err := os.ReadFile(server.CA)
	if err != nil {
		t.Fatal(err)
	}
	config.RootCAs.AppendCertsFromPEM(ca)
	anonymous := config.Clone()
	pair, err := tls.LoadX509KeyPair(server.Cert, server.Key)
	if err != nil {
		t.Fatal(err)
	}
	config.Certificates = []tls.Certificate{pair}

	by := func(url string, config *tls.Config) func(*Options) {
		return func(o *Options) { o.URL, o.Servers.TLS = url, config }
	}
	url := "rediss://" + server.SecureAddr
	storetest.Run(t, sharing(rawClient(t, server.URL()), by(url, config)))

	named := config.Clone()
	named.ServerName = redistest.ServerName
	s := openWith(t, by(url, named))
	mustCreate(t, s, job(s, "k"))
	other := config.Clone()
	other.ServerName = "another.example"
	for what, options := range map[string]func(*Options){
		"without a certificate":      by(url, anonymous),
		"without knowing the CA":     by(url, nil),
		"another name":               by(url, other),
		"TLS to a server without it": by("rediss://"+server.Addr(), config),
		"no TLS to a server with it": byURL("redis://" + server.SecureAddr),
	} {
		s := openWith(t, options)
		if _, created, err := s.Create(contextOf(t), job(s, what)); err == nil || created {
			t.Errorf("%s: got %t, %v", what, created, err)
		}
	}
}

// leastACL is what a user needs, as the documentation says it.
var leastACL = []any{
	"resetkeys", "resetchannels", "-@all",
	"~" + DefaultPrefix + "*", "&" + DefaultPrefix + "*",
	"+get", "+set", "+getrange", "+setrange", "+del", "+pexpire", "+eval", "+evalsha",
	"+zadd", "+zrangebyscore", "+zscore", "+zrem", "+scan",
	"+publish", "+subscribe", "+unsubscribe", "+ping", "+time", "+info", "+select", "+client|setname",
}

// TestRED17LeastACL: everything works for a user who may do just what is
// documented, and each of these rights is needed.
func TestRED17LeastACL(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := rawClient(t, server.URL())
	rules := make([]any, 0, 2*len(leastACL))
	rules = append(rules, "acl", "setuser", "gateway", "on", ">hunter2")
	for _, rule := range leastACL {
		// Each backend has a prefix of its own, which all begin alike.
		rules = append(rules, strings.Replace(rule.(string), DefaultPrefix, "b", 1))
	}
	if err := admin.Do(contextOf(t), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	conformAndStayLinearizable(t, sharing(rawClient(t, server.URL()+"/1"), func(o *Options) {
		o.URL, o.ClientName = "redis://gateway:hunter2@"+server.Addr()+"/1", "gw"
	}))
	for _, denied := range deniedCommands(t, admin) {
		t.Errorf("something was refused: %s", denied)
	}
	refused := openWith(t, byURL("redis://gateway:hunter2@"+server.Addr()), func(o *Options) { o.Prefix = "elsewhere:" })
	_, _, err := refused.Create(contextOf(t), job(refused, "k"))
	mustBeUnavailable(t, "create outside the granted keys", err, true)
}

// TestRED17LeastACLWithDurability: and where writes wait for replicas and for the disk,
// with the rights that this takes besides.
func TestRED17LeastACLWithDurability(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t, "--repl-diskless-sync-delay", "0", "--appendonly", "yes", "--appendfsync", "always")
	redistest.StartReplica(t, primary)
	admin := rawClient(t, primary.URL())
	grant := func(user, prefix string, more ...any) func(*Options) {
		t.Helper()
		rules := []any{"acl", "setuser", user, "on", ">hunter2"}
		for _, rule := range leastACL {
			rules = append(rules, strings.Replace(rule.(string), DefaultPrefix, prefix, 1))
		}
		if err := admin.Do(contextOf(t), append(rules, more...)...).Err(); err != nil {
			t.Fatal(err)
		}
		return func(o *Options) {
			o.URL = "redis://" + user + ":hunter2@" + primary.Addr()
			o.Durability = Durability{Replicas: 1, Fsync: true, Timeout: 2 * time.Second}
		}
	}
	fsync := "+waitaof"
	if version := parseInfo(must(admin.Info(contextOf(t), "server").Result()))["redis_version"]; older(version, "7.2") {
		fsync = "+config|get"
	}
	conformAndStayLinearizable(t, sharing(admin, grant("gateway", "b", "+wait", fsync)))
	for _, denied := range deniedCommands(t, admin) {
		t.Errorf("something was refused: %s", denied)
	}

	s := openWith(t, grant("hasty", DefaultPrefix, fsync))
	if got := inspect(t, s).Servers[0].MissingRights; !slices.Equal(got, []string{"wait"}) {
		t.Errorf("without wait: missing %q", got)
	}
	if _, _, err := s.Create(contextOf(t), job(s, "k")); !errors.Is(err, keystore.ErrNotDurable) {
		t.Errorf("without wait: got %v, want that it is not durable", err)
	}
}

// deniedCommands returns what the server has refused for want of a right.
func deniedCommands(t *testing.T, admin *redis.Client) (denied []string) {
	t.Helper()
	logged, err := admin.ACLLog(contextOf(t), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range logged {
		denied = append(denied, fmt.Sprintf("%s %s (%s)", l.Reason, l.Object, l.Context))
	}
	return denied
}

// TestSentinels: all of it on servers that sentinels watch, and on through the loss
// of a primary and of sentinels.
func TestSentinels(t *testing.T) {
	t.Parallel()
	group := redistest.StartSentinels(t)
	raw := rawClient(t, group.Primary().URL())
	conformAndStayLinearizable(t, sharing(raw, byURL(group.URL())))

	// With the least rights on the sentinels too.
	for _, sentinel := range group.Sentinels {
		err := rawClient(t, sentinel.URL()).Do(contextOf(t), "acl", "setuser", "watcher", "on", ">hunter2", "-@all", "resetchannels", "&*",
			"+sentinel|get-master-addr-by-name", "+sentinel|sentinels", "+subscribe", "+ping").Err()
		if err != nil {
			t.Fatal(err)
		}
	}
	watched := func(o *Options) {
		o.URL, o.Timeout = group.URL(), time.Second
		o.Servers.SentinelUsername, o.Servers.SentinelPassword = "watcher", "hunter2"
	}
	s := openWith(t, watched)
	before := mustCreate(t, s, job(s, "before"))
	group.Sentinels[0].Kill()
	group.Sentinels[1].Freeze() // it accepts connections, and says nothing
	s2 := openWith(t, watched)
	eventually(t, "one sentinel of three is enough to find the primary", func() bool {
		got, err := s2.Get(contextOf(t), before.Name)
		return err == nil && got != nil
	})
	group.Sentinels[1].Thaw()

	old := group.Primary()
	old.Kill()
	died := time.Now()
	eventually(t, "the sentinels have another primary", func() bool { p := group.Primary(); return p != nil && p != old })
	promoted := time.Now()
	for i, s := range []*Store{s, s2} {
		eventually(t, "the store has found it", func() bool {
			_, created, err := s.Create(contextOf(t), job(s, fmt.Sprint("after", i)))
			return err == nil && created
		})
	}
	t.Logf("failover took %s, and the stores found the new primary after %s", promoted.Sub(died).Round(time.Millisecond), time.Since(promoted).Round(time.Millisecond))
	mustSwap(t, s, before.WriteID, completed(s, before, []byte("paid")))

	// Who looks at the servers now looks at the new primary.
	if err := rawClient(t, group.Primary().URL()).ConfigSet(contextOf(t), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	found := inspect(t, s)
	if len(found.Servers) != 1 || found.Servers[0].Role != "master" || !slices.Contains(codes(found), "warning eviction") {
		t.Errorf("after the failover %v is found of %v", codes(found), found.Servers)
	}
	for _, denied := range deniedCommands(t, rawClient(t, group.Sentinels[2].URL())) {
		t.Errorf("a sentinel has refused something: %s", denied)
	}
}
