package redisstore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/faultnet"
	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func inspect(t *testing.T, s *Store) survey {
	t.Helper()
	found, err := s.survey(contextOf(t))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func codes(i survey) (codes []string) {
	for _, f := range i.Findings {
		codes = append(codes, f.Severity.String()+" "+f.Code)
		if f.Found == "" || f.Risk == "" || f.Remedy == "" {
			codes = append(codes, "half said: "+f.String())
		}
	}
	slices.Sort(codes)
	return codes
}

// TestRED08Findings: what real servers say of themselves, and what that means.
func TestRED08Findings(t *testing.T) {
	t.Parallel()
	safe := []string{"--appendonly", "yes", "--appendfsync", "always"}
	for what, c := range map[string]struct {
		args    []string
		options Durability
		want    []string
		says    string
	}{
		"as it should be":        {safe, Durability{}, []string{"note single"}, ""},
		"by default":             {nil, Durability{}, []string{"danger persistence", "note single"}, "forgotten when the server restarts"},
		"snapshots":              {[]string{"--save", "60 1"}, Durability{}, []string{"note single", "warning persistence"}, "since the last one"},
		"once per second":        {[]string{"--appendonly", "yes"}, Durability{}, []string{"note single", "warning fsync"}, "loses power"},
		"whenever":               {[]string{"--appendonly", "yes", "--appendfsync", "no"}, Durability{}, []string{"note single", "warning fsync"}, "half minute"},
		"evicts anything":        {append([]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, safe...), Durability{}, []string{"danger eviction", "note single"}, "executed again"},
		"evicts, unlimited":      {append([]string{"--maxmemory-policy", "allkeys-lfu"}, safe...), Durability{}, []string{"note single", "warning eviction"}, "no limit at present"},
		"evicts what is done":    {append([]string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"}, safe...), Durability{}, []string{"danger eviction", "note single"}, "before their retention is over"},
		"nearly full":            {append([]string{"--maxmemory", "1"}, safe...), Durability{}, []string{"note single", "warning memory"}, "503"},
		"too few replicas":       {safe, Durability{Replicas: 1}, []string{"danger replicas"}, "every request with a key is refused"},
		"fsync, once per second": {[]string{"--appendonly", "yes"}, Durability{Fsync: true}, []string{"danger waitaof", "note single", "warning fsync"}, "WAITAOF"},
		"tells no settings":      {append([]string{"--rename-command", "config", ""}, safe...), Durability{}, []string{"note fsync", "note single"}, "does not tell"},
		"tells nothing":          {safe, Durability{}, []string{"warning untold"}, "+info"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			proxy := faultnet.New(t, server.Addr())
			if what == "tells nothing" {
				proxy.Inject(faultnet.Fault{Command: "info", Do: faultnet.Answer, Reply: "-NOPERM this user has no permissions to run the 'info' command\r\n"})
			}
			s := openAt(t, "redis://"+proxy.Addr(), waiting(c.options))
			found := inspect(t, s)
			want := c.want
			if c.options.Fsync && !older(found.Servers[0].Version, "7.2") {
				want, c.says = []string{"note single"}, "" // a server that can be asked to
			}
			if got := codes(found); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q\n%v", got, want, found.Findings)
			}
			text := ""
			for _, f := range found.Findings {
				text += f.String() + "\n"
			}
			if !strings.Contains(text, c.says) {
				t.Errorf("%q is not said in\n%s", c.says, text)
			}
			if !strings.Contains(text, proxy.Addr()) {
				t.Errorf("the server is not named in\n%s", text)
			}
		})
	}
}

func TestFindingsOnReplicas(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0")
	first := redistest.StartReplica(t, primary)
	for what, c := range map[string]struct {
		url      string
		replicas int
		want     []string
	}{
		"none waited for": {primary.URL(), 0, []string{"warning failover"}},
		"all waited for":  {primary.URL(), 1, []string{"note replicas"}},
		"more than there": {primary.URL(), 2, []string{"danger replicas"}},
		"of the replica":  {first.URL(), 0, []string{"danger persistence", "danger read-only", "note single"}},
	} {
		s := openAt(t, c.url, waiting(Durability{Replicas: c.replicas}))
		if got := codes(inspect(t, s)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
	for range 2 {
		redistest.StartReplica(t, primary)
	}
	s := openAt(t, primary.URL(), waiting(Durability{Replicas: 1}))
	if got, want := codes(inspect(t, s)), []string{"warning minority"}; !slices.Equal(got, want) {
		t.Errorf("one of three: got %q, want %q", got, want)
	}
}

// TestRED17MissingRights: a right that is missing is named, and everything else that
// can be told is told all the same.
func TestRED17MissingRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	admin := rawClient(t, server.URL())
	grant := func(user string, rules ...any) *Store {
		t.Helper()
		all := append([]any{"acl", "setuser", user, "on", ">p"}, rules...)
		if err := admin.Do(contextOf(t), all...).Err(); err != nil {
			t.Fatal(err)
		}
		return openAt(t, "redis://"+user+":p@"+server.Addr())
	}
	found := inspect(t, grant("least", leastACL...))
	if got, want := codes(found), []string{"note fsync", "note single"}; !slices.Equal(got, want) {
		t.Errorf("the least rights: got %q, want %q: %v", got, want, found.Findings)
	}
	for _, right := range []string{"get", "set", "getrange", "setrange", "del", "pexpire", "eval", "evalsha", "zadd", "zrangebyscore", "zscore", "zrem", "scan", "publish", "subscribe", "time"} {
		s := grant("without-"+right, append(slices.Clone(leastACL), "-"+right)...)
		found := inspect(t, s)
		if got := found.Servers[0].MissingRights; !slices.Equal(got, []string{right}) {
			t.Errorf("without %s: missing %q", right, got)
		}
		if found.Worst() != keystore.Danger || !strings.Contains(found.Findings[0].String(), "grant +"+right) {
			t.Errorf("without %s: %v", right, found.Findings)
		}
	}
	s := grant("elsewhere", append(slices.Clone(leastACL), "resetkeys", "~another:*")...)
	if got := inspect(t, s).Servers[0].MissingRights; len(got) < 10 {
		t.Errorf("on keys that it may not touch: missing %q", got)
	}
	for key := range strings.SplitSeq(admin.Keys(contextOf(t), "*probe*").String(), " ") {
		if ttl := admin.PTTL(contextOf(t), key).Val(); ttl > time.Minute {
			t.Errorf("%s stays for %s", key, ttl)
		}
	}
}

func TestInspectUnreachable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openAt(t, server.URL())
	server.Kill()
	found, err := s.Inspect(contextOf(t))
	if !errors.Is(err, keystore.ErrUnavailable) || found.Worst() > keystore.Danger {
		t.Errorf("got %v, %v", found, err)
	}
}

func TestOlder(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"7.0.15": true, "6.2.1": true, "7.2.0": false, "8.0": false, "": false, "unknown": false, "7": false} {
		if got := older(version, "7.2"); got != want {
			t.Errorf("%q is older than 7.2: %t", version, got)
		}
	}
}
