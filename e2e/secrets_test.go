package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// keeper is a store whose contents can be looked at behind the gateway's back.
type keeper struct {
	store    string
	contents func() string
}

func onEachKeeper(t *testing.T, test func(t *testing.T, k keeper)) {
	t.Run("bolt", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "jobs.db")
		test(t, keeper{"bolt " + path, func() string { return filesIn(t, filepath.Dir(path)) }})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		redis := startDurableRedis(t)
		test(t, keeper{redis.store(), func() string { return redis.contents() + filesIn(t, filepath.Dir(redis.Socket())) }})
	})
}

// filesIn returns what is in all files of a directory.
func filesIn(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	files := os.DirFS(dir)
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		all.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// contents returns all keys of the server with their values.
func (s *redisServer) contents() string {
	s.t.Helper()
	var all strings.Builder
	keys := s.c.Scan(context.Background(), 0, "*", 1000).Iterator()
	for keys.Next(context.Background()) {
		all.WriteString(keys.Val() + "\n")
		switch kind := s.do("TYPE", keys.Val()); kind {
		case "string":
			fmt.Fprint(&all, s.do("GET", keys.Val()))
		case "zset":
			fmt.Fprint(&all, s.do("ZRANGE", keys.Val(), 0, -1))
		default:
			s.t.Fatalf("redis: %s is a %v, of which this test knows nothing", keys.Val(), kind)
		}
	}
	if err := keys.Err(); err != nil {
		s.t.Fatalf("redis: scan: %v", err)
	}
	return all.String()
}

// secretFile makes a file with a new secret, and returns its placeholder and the
// secret.
func secretFile(t *testing.T) (placeholder, secret string) {
	t.Helper()
	drawn := keystore.NewSecret()
	secret = fmt.Sprintf("%x", drawn[:])
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "{file." + path + "}", secret
}

// responseFile makes a file with a response, as operators have one.
func responseFile(t *testing.T, response string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "response")
	if err := os.WriteFile(path, []byte(response), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// find looks for a job by its identity.
func (g *gateway) find(owner, key string) (status int, code string) {
	g.t.Helper()
	return g.callAdmin(http.MethodPost, "find", fmt.Sprintf(`{"owner":%q,"key":%q}`, owner, key), http.Header{"Content-Type": {"application/json"}})
}

// afterReload sends a request until the connection is not closed by the reload.
func (g *gateway) afterReload(r request) answer {
	a, _ := g.hurried().persist(r)
	return a
}

func wantNone(t *testing.T, where, text string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s has %q in it: %q", where, secret, text[max(0, at-100):min(len(text), at+len(secret)+100)])
		}
	}
}

// With encryption and a secret for digests, the store has nothing of answers, keys
// and owners in it, in whatever state jobs are; without them it has.
func TestEncryptedStoreShowsNothing(t *testing.T) {
	t.Parallel()
	onEachKeeper(t, func(t *testing.T, k keeper) {
		const owner, account, large = "alice@example.com", "acc-4711", "zzzzzzzz"
		key, keySecret := secretFile(t)
		digest, digestSecret := secretFile(t)
		secrets := []string{owner, account, "X-Account", `"execution":`, large, "key-first", "key-large", "key-unknown", "key-held", "key-retried", keySecret, digestSecret, "charged-0815"}
		up := newUpstream(t)
		g := startGateway(t, to(up).on(k.store).with("encrypt_with", "k1 "+key).with("digest_secret", digest))
		c := g.client()
		say := func(key string) request {
			return post(key).as(func(r *request) { r.owner = owner }).tell("Up-Header", "X-Account: "+account)
		}
		first := c.do(say("key-first"))
		wantExecuted(t, first)
		big := c.do(say("key-large").tell("Up-Body", "200000"))
		wantExecuted(t, big)
		wantUnknown(t, c.do(say("key-unknown").tell("Up-Die", "noreply")))
		decided := c.do(say("key-unknown").as(func(r *request) { r.key = "key-unknown-2" }).tell("Up-Die", "noreply"))
		g.resolve(decided.job(), "succeeded", "--response", responseFile(t, "HTTP/1.1 201 Created\r\n\r\ncharged-0815"))
		if a := c.do(say("key-retried").tell("Up-Status", "429").tell("Up-Once", "key-retried")); a.status != http.StatusTooManyRequests {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		held := c.start(say("key-held").tell("Up-Hold", "gate"))
		up.reached("key-held", 1)
		wantNone(t, "the store", k.contents(), secrets...)
		up.release("gate")
		wantExecuted(t, held.answer())
		// Of the next attempt, the key comes out of the record.
		retried := c.do(say("key-retried").tell("Up-Once", "key-retried"))
		wantExecuted(t, retried)
		if sent := up.of("key-retried"); len(sent) != 2 || sent[1].header("Idempotency-Key")[0] != "key-retried" {
			t.Errorf("the upstream saw %+v", sent)
		}

		wantReplay(t, first, c.do(say("key-first")))
		wantReplay(t, big, c.do(say("key-large")))
		wantReplay(t, retried, c.do(say("key-retried")))
		if a := c.do(say("key-first")); a.header.Get("X-Account") != account {
			t.Errorf("a replay has lost a header: %v", a.header)
		}
		if a := c.do(say("key-unknown").as(func(r *request) { r.key = "key-unknown-2" })); a.status != 201 || a.body != "charged-0815" {
			t.Errorf("after the decision: %d %s", a.status, a.body)
		}
		wantNone(t, "the store", k.contents(), secrets...)
		wantNone(t, "the gateway's log", g.log(), keySecret, digestSecret)
		if status, code := g.find(owner, "key-first"); status != http.StatusOK {
			t.Errorf("an operator does not find the job: %d %s", status, code)
		}
		for name, n := range map[string]int{"key-first": 1, "key-large": 1, "key-unknown": 2, "key-held": 1, "key-retried": 2} {
			up.want(name, n)
		}

		// The test would find what it looks for.
		if err := g.load(to(up).on(k.store).with("space", "clear")); err != nil {
			t.Fatal(err)
		}
		open := g.afterReload(say("key-first"))
		wantExecuted(t, open)
		for _, secret := range []string{account, `"execution":`, "key-first"} {
			if !strings.Contains(k.contents(), secret) {
				t.Errorf("without encryption, %s is not found either", secret)
			}
		}
	})
}

// A record that was copied to another job's name is refused, whether or not it was
// made to look as if it belonged there, and nothing is executed on its account.
func TestEncryptedRecordOfAnotherJobIsRefused(t *testing.T) {
	t.Parallel()
	up, redis := newUpstream(t), startRedis(t)
	key, _ := secretFile(t)
	g := startGateway(t, to(up).on(redis.store()).with("encrypt_with", "k1 "+key).with("cache", "off"))
	c := g.client()
	victims := c.do(post("victims"))
	wantExecuted(t, victims)
	wantExecuted(t, c.do(post("mine")))
	copied := redis.do("GET", recordKey("victims")).(string)
	mine := keystore.NameOf("main", "alice", "mine")
	j, err := keystore.DecodeRecord(keystore.NameOf("main", "alice", "victims"), []byte(copied))
	if err != nil {
		t.Fatal(err)
	}
	renamed := *j
	renamed.Name, renamed.ID = mine, mine.String()+j.ID[len(mine.String()):]
	forged, err := keystore.EncodeRecord(&renamed)
	if err != nil {
		t.Fatal(err)
	}
	for name, record := range map[string]string{"as it is": copied, "renamed": string(forged)} {
		redis.do("SET", recordKey("mine"), record, "KEEPTTL")
		a := c.do(post("mine"))
		wantRefusal(t, a, http.StatusServiceUnavailable, "store-unavailable")
		wantNone(t, "the answer to a record copied "+name, a.body, victims.body)
	}
	if !strings.Contains(g.log(), `can't be decrypted`) {
		t.Error("the log does not say so")
	}
	up.want("mine", 1)
	wantReplay(t, victims, c.do(post("victims")))
	up.want("victims", 1)
}

// A key is rotated while there are records and attempts under the old one: they go
// on. Once the old key is gone, its records are refused and nothing is executed
// again; the log names the key and what to do.
func TestRotationOfTheEncryptionKey(t *testing.T) {
	t.Parallel()
	onEachKeeper(t, func(t *testing.T, k keeper) {
		k1, _ := secretFile(t)
		k2, _ := secretFile(t)
		up := newUpstream(t)
		with := func(lines string) site { return to(up).on(k.store).with("encrypt_with", lines) }
		g := startGateway(t, with("k1 "+k1))
		c := g.client()
		old := c.do(post("old"))
		wantExecuted(t, old)
		limited := post("open").tell("Up-Status", "429").tell("Up-Once", "open")
		if a := c.do(limited); a.status != http.StatusTooManyRequests {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		held := c.start(post("held").tell("Up-Hold", "gate"))
		up.reached("held", 1)

		if err := g.load(with("k2 " + k2 + "\nencrypt_with k1 " + k1)); err != nil {
			t.Fatal(err)
		}
		waits := g.hurried().startPersistently(post("held"))
		g.awaitWaiting(1)
		up.release("gate")
		wantReplay(t, held.answer(), waits.answer())
		wantReplay(t, old, g.afterReload(post("old")))
		young := g.afterReload(post("young"))
		wantExecuted(t, young)
		opened := g.afterReload(limited) // its next attempt sends the key that k1 has encrypted
		wantExecuted(t, opened)
		if sent := up.of("open"); len(sent) != 2 || sent[1].header("Idempotency-Key")[0] != "open" {
			t.Errorf("the upstream saw %+v", sent)
		}

		if err := g.load(with("k2 " + k2)); err != nil {
			t.Fatal(err)
		}
		wantReplay(t, young, g.afterReload(post("young")))
		wantReplay(t, opened, g.afterReload(limited)) // whose answer was encrypted with k2
		wantRefusal(t, g.afterReload(post("old")), http.StatusServiceUnavailable, "store-unavailable")
		said := g.log()
		if !strings.Contains(said, `can't be decrypted`) || !strings.Contains(said, `the key \"k1\", which is not known here; add encrypt_with`) {
			t.Error("the log names neither the key nor what to do")
		}
		if err := g.load(to(up).on(k.store)); err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, g.afterReload(post("young")), http.StatusServiceUnavailable, "store-unavailable")
		wantExecuted(t, g.afterReload(post("clear")))

		// Encryption is switched on again: what was written in clear is replayed.
		if err := g.load(with("k2 " + k2 + "\nencrypt_with k1 " + k1)); err != nil {
			t.Fatal(err)
		}
		wantReplay(t, old, g.afterReload(post("old")))
		if a := g.afterReload(post("clear")); !a.replayed() {
			t.Errorf("got %d %s", a.status, a.body)
		}
		for name, n := range map[string]int{"old": 1, "held": 1, "young": 1, "open": 2, "clear": 1} {
			up.want(name, n)
		}
	})
}

// Secrets stay where they are: neither the adapted configuration, nor the one that
// the admin API shows, nor a log has them.
func TestMOD07SecretsAreNotShown(t *testing.T) {
	t.Parallel()
	key, keySecret := secretFile(t)
	digest, digestSecret := secretFile(t)
	up := newUpstream(t)
	s := to(up).on("bolt").with("encrypt_with", "k1 "+key).with("digest_secret", digest)
	g := startGateway(t, s)
	wantExecuted(t, g.client().do(post("k")))
	status, config, err := get("http://" + g.admin + "/config/")
	if err != nil || status != http.StatusOK || !strings.Contains(config, key) {
		t.Fatalf("the admin API's configuration: %d, %v, %s", status, err, config)
	}
	adapted := runCommand(t, exec.Command(gatewayBinary(t), "adapt", "--config", filepath.Join(g.dir, "Caddyfile")), g.environment())
	if adapted.code != 0 || !strings.Contains(adapted.out, key) {
		t.Fatalf("caddy adapt: %+v", adapted)
	}
	valid, ok := validate(t, g, g.caddyfile())
	if !ok {
		t.Errorf("caddy validate: %s", valid)
	}
	metrics := g.metrics()
	for where, text := range map[string]string{
		"the admin API's configuration": config, "what caddy adapt prints": adapted.out + adapted.err,
		"what caddy validate prints": valid, "the log": g.log(), "the metrics": metrics,
	} {
		wantNone(t, where, text, keySecret, digestSecret)
	}

	// In the configuration itself they are refused, and not shown by that either.
	for _, line := range []string{"encrypt_with k1 " + keySecret, "encrypt_with " + keySecret + " k1", "digest_secret " + keySecret} {
		out, ok := validate(t, nil, caddyfile("x", "", "off", []string{"9080"}, []site{{raw: "idempotency {\nowner shared\n" + line + "\n}\n"}}))
		if ok || !strings.Contains(lastLine(out), "Caddyfile:") {
			t.Errorf("a secret in the configuration is taken: %s", out)
		}
		wantNone(t, "what caddy validate prints", out, keySecret)
	}
}

// Whatever happens to requests, the gateway's own log lines have neither their
// keys, owners, bodies nor answers in them, even at the level DEBUG.
func TestLogShowsNothingOfRequests(t *testing.T) {
	t.Parallel()
	const owner = "alice@example.com"
	up := newUpstream(t)
	other, _ := secretFile(t)
	redis := startRedis(t)
	s := to(up).on(redis.store()).with("timeout", "300ms").with("lease", "10m").with("wait", "200ms").with("statuses", "ietf")
	g := startGateway(t, s)
	c := g.client()
	say := func(key string) request {
		return post(key).as(func(r *request) { r.owner, r.body = owner, `{"iban":"DE-0815"}` })
	}
	wantExecuted(t, c.do(say("secret-key-1")))
	wantReplay(t, c.do(say("secret-key-1")), c.do(say("secret-key-1")))
	wantRefusal(t, c.do(say("secret-key-1").as(func(r *request) { r.body += " " })), http.StatusUnprocessableEntity, "key-reused")
	wantUnknown(t, c.do(say("secret-key-2").tell("Up-Die", "noreply")))
	late := c.do(say("secret-key-3").tell("Up-Hold", "late"))
	wantUnknown(t, late)
	up.release("late")
	untilStatus(t, c, say("secret-key-3"), http.StatusOK)
	decided := c.do(say("secret-key-4").tell("Up-Die", "noreply"))
	g.resolve(decided.job(), "succeeded", "--response", responseFile(t, "HTTP/1.1 200 OK\r\n\r\nDE-0815"))
	if status, code := g.find(owner, "secret-key-1"); status != http.StatusOK {
		t.Errorf("an operator does not find the job: %d %s", status, code)
	}
	if a := c.do(say("secret-key-5").tell("Up-Status", "401")); a.status != http.StatusUnauthorized {
		t.Errorf("got %d %s", a.status, a.body)
	}
	c.do(say("secret-key-6,secret-key-7"))
	c.do(say(`"secret-key-8`))
	if err := g.load(s.with("encrypt_with", "k1 "+other)); err != nil {
		t.Fatal(err)
	}
	wantExecuted(t, g.afterReload(say("secret-key-9")))
	if err := g.load(s); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, g.afterReload(say("secret-key-9")), http.StatusServiceUnavailable, "store-unavailable")
	redis.Stop()
	wantRefusal(t, g.client().do(say("secret-key-10")), http.StatusServiceUnavailable, "store-unavailable")

	ours := 0
	for line := range strings.Lines(g.log()) {
		var entry struct{ Logger string }
		if err := json.Unmarshal([]byte(line), &entry); err == nil &&
			!strings.HasPrefix(entry.Logger, "http.handlers.idempotency") && !strings.HasPrefix(entry.Logger, "idempotency") {
			continue // of Caddy, which logs the headers of requests at this level
		}
		ours++
		wantNone(t, "a line of the log", line, owner, "secret-key", "DE-0815", `"execution\":`, `{"case"`)
	}
	if ours < 10 {
		t.Errorf("the gateway has said only %d things:\n%s", ours, g.logTail())
	}
}
