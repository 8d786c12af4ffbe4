package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// buildNewer builds the gateway as it is, but for one thing: it writes the record
// format that comes after ours.
var buildNewer = sync.OnceValues(func() (string, error) {
	const version, next = "FormatVersion = 1\n", "FormatVersion = 2\n"
	path, err := filepath.Abs(filepath.Join("..", "keystore", "record.go"))
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	newer, list := filepath.Join(buildDir, "record.go"), filepath.Join(buildDir, "overlay.json")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: newer}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(newer, []byte(strings.Replace(string(source), version, next, 1)), 0o600); err != nil {
		return "", err
	}
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	return buildAs("newer", "-overlay="+list)
})

func newerBinary(t *testing.T) string {
	t.Helper()
	binary, err := buildNewer()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// A gateway beside another one that writes a newer record format. The newer one reads
// what the older one has written, and takes its jobs on. The older one refuses what
// it can't read, never rewrites it, and executes nothing.
func TestOlderGatewayBesideANewerOne(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startDurableRedis(t)
	s := to(up).on(redis.store())
	older := startGateway(t, s).client()
	newerGateway := startBinary(t, newerBinary(t), "", s)
	newer := newerGateway.client()
	record := func(key string) string { return redis.do("GET", recordKey(key)).(string) }
	wantFormat := func(key string, version byte) {
		t.Helper()
		if got := record(key)[0]; got != version {
			t.Fatalf("%s: the record has format %d, want %d: this shows nothing", key, got, version)
		}
	}
	// refused checks that the older one leaves a job of the newer one alone.
	refused := func(key string) {
		t.Helper()
		wantFormat(key, keystore.FormatVersion+1)
		before, executed := record(key), len(up.of(key))
		for _, a := range volley(3, post(key), older) {
			wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
		}
		if record(key) != before {
			t.Errorf("%s: the older gateway has written to a record that it can't read", key)
		}
		up.want(key, executed)
	}

	a := older.do(post("of-the-older"))
	wantExecuted(t, a)
	wantFormat("of-the-older", keystore.FormatVersion)
	wantReplay(t, a, newer.do(post("of-the-older")))
	wantReplay(t, a, older.do(post("of-the-older")))

	a = newer.do(post("of-the-newer"))
	wantExecuted(t, a)
	refused("of-the-newer")
	wantReplay(t, a, newer.do(post("of-the-newer")))

	// In the midst of an attempt of either.
	first := older.start(post("runs-at-the-older").tell("Up-Hold", "older"))
	up.reached("runs-at-the-older", 1)
	waiter := newer.start(post("runs-at-the-older"))
	newerGateway.awaitWaiting(1)
	up.release("older")
	wantExecuted(t, first.answer())
	wantReplay(t, first.answer(), waiter.answer())
	first = newer.start(post("runs-at-the-newer").tell("Up-Hold", "newer"))
	up.reached("runs-at-the-newer", 1)
	refused("runs-at-the-newer")
	up.release("newer")
	wantExecuted(t, first.answer())
	refused("runs-at-the-newer")
	wantReplay(t, first.answer(), newer.do(post("runs-at-the-newer")))

	// What the older one has begun, and the newer one goes on with.
	r := post("open").tell("Up-Status", "429").tell("Up-Once", "yes")
	if a := older.do(r); a.status != http.StatusTooManyRequests {
		t.Fatalf("want the upstream's refusal, got %d %s", a.status, a.body)
	}
	wantFormat("open", keystore.FormatVersion)
	a = newer.do(r)
	wantExecuted(t, a)
	refused("open")
	wantReplay(t, a, newer.do(r))

	for key, n := range map[string]int{"of-the-older": 1, "of-the-newer": 1, "runs-at-the-older": 1, "runs-at-the-newer": 1, "open": 2} {
		up.want(key, n)
	}
	wantExecuted(t, older.do(post("healthy")))
}

// The embedded store's file belongs to one process: a gateway is replaced by a newer
// one, and back.
func TestNewerGatewayAndBackOnBolt(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	g := startGateway(t, to(up).on("bolt"))
	older, newer := g.binary, newerBinary(t)
	become := func(binary string) {
		t.Helper()
		if err := g.terminate(); err != nil {
			t.Fatalf("the gateway ended with %v", err)
		}
		g.binary = binary
		g.restart()
	}
	c := g.client()
	first := c.do(post("of-the-older"))
	wantExecuted(t, first)
	become(newer)
	wantReplay(t, first, c.do(post("of-the-older")))
	second := c.do(post("of-the-newer"))
	wantExecuted(t, second)
	become(older)
	wantReplay(t, first, c.do(post("of-the-older")))
	for _, a := range volley(3, post("of-the-newer"), c) {
		wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
	}
	wantExecuted(t, c.do(post("healthy")))
	become(newer)
	wantReplay(t, second, c.do(post("of-the-newer")))
	for _, key := range []string{"of-the-older", "of-the-newer", "healthy"} {
		up.want(key, 1)
	}
}
