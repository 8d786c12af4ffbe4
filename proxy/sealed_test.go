package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

func ring(t testing.TB, keys ...keystore.SealKey) *keystore.Keyring {
	t.Helper()
	k, err := keystore.NewKeyring(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var (
	key1 = keystore.SealKey{ID: "k1", Secret: keystore.NewSecret()}
	key2 = keystore.SealKey{ID: "k2", Secret: keystore.NewSecret()}
)

// wantNothingOf checks that no record has any of these in it.
func (s *memStore) wantNothingOf(t *testing.T, secrets ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, record := range s.records {
		for _, secret := range secrets {
			if bytes.Contains(record, []byte(secret)) {
				t.Errorf("record %s has %q in it", name, secret)
			}
		}
	}
}

// answers 401 the first time, and from then on with an answer that has secrets.
func secretive(f *fixture, seen *[]string) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		*seen = append(*seen, r.Header.Get(DefaultKeyHeader))
		if f.executions.Load() == 1 {
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		}
		w.Header().Set("X-Account", "acc-4711")
		w.Header().Set("Trailer", "X-Check")
		_, err := fmt.Fprint(w, "iban-0815")
		w.Header().Set("X-Check", "sum-1234")
		return err
	}
}

// What a job keeps of key and answer is encrypted in each of its states; each
// attempt and each replay gets it as it was.
func TestSealedJob(t *testing.T) {
	bubble(t, Config{Keyring: ring(t, key1), Digester: keystore.NewDigester(key2.Secret)}, func(t *testing.T, f *fixture) {
		var seen []string
		f.serve = secretive(f, &seen)
		secrets := []string{"secret-key", "alice@example.com", "acc-4711", "X-Account", "iban-0815", "sum-1234"}
		q := request{key: `"secret-key"`, owner: "alice@example.com"}
		f.do(q).want(t, 401, "")
		f.mem.wantNothingOf(t, secrets...)
		q.key = "secret-key" // the spelling that came first goes out again
		first := f.do(q).wantBody(t, 200, "iban-0815", false)
		f.mem.wantNothingOf(t, secrets...)
		replay := f.do(q).wantBody(t, 200, "iban-0815", true)
		if replay.Header().Get("X-Account") != "acc-4711" || replay.Result().Trailer.Get("X-Check") != "sum-1234" || first.Header().Get("X-Account") != "acc-4711" {
			t.Errorf("header %v, trailer %v", replay.Header(), replay.Result().Trailer)
		}
		if len(seen) != 2 || seen[0] != `"secret-key"` || seen[1] != `"secret-key"` {
			t.Errorf("the upstream saw the keys %q", seen)
		}
		f.wantExecutions(2)
		j := f.mem.job()
		if j.Result.Status != 200 || j.Result.Size != 9 {
			t.Errorf("result %+v", j.Result)
		}
	})
}

// A gateway that can't decrypt a record refuses its requests, and executes
// nothing on a guess: neither where the record has an answer, nor where the next
// attempt would be due.
func TestSealedJobThatCantBeOpened(t *testing.T) {
	for name, keyring := range map[string]*keystore.Keyring{
		"no key":         nil,
		"another key":    ring(t, key2),
		"another secret": ring(t, keystore.SealKey{ID: "k1", Secret: key2.Secret}),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Keyring: ring(t, key1)}, func(t *testing.T, f *fixture) {
				var seen []string
				f.serve = secretive(f, &seen)
				var log bytes.Buffer
				other := newFixtureOn(t, f.mem, Config{Keyring: keyring})
				defer other.gateway.Close()
				other.gateway.log = slog.New(slog.NewTextHandler(&log, nil))

				f.do(request{}).want(t, 401, "")
				before := f.mem.job()
				r := other.do(request{}).want(t, 503, CodeStoreUnavailable)
				if strings.Contains(r.Body.String(), "encrypt") {
					t.Errorf("the client is told what is for the operator: %s", r.Body)
				}
				if after := f.mem.job(); after.WriteID != before.WriteID {
					t.Error("an attempt was started that has no key to send")
				}
				f.do(request{}).wantBody(t, 200, "iban-0815", false)
				other.do(request{}).want(t, 503, CodeStoreUnavailable)
				other.do(request{body: "other"}).want(t, 409, CodeKeyReused)
				other.wantExecutions(0)
				f.wantExecutions(2)
				f.do(request{}).wantBody(t, 200, "iban-0815", true)
				if said := log.String(); strings.Count(said, "level=ERROR") != 2 || !strings.Contains(said, `k1`) || !strings.Contains(said, "encrypt_with") {
					t.Errorf("the log names neither key nor remedy: %s", said)
				}
			})
		})
	}
}

// Another job's answer in a job's record is not given out.
func TestSealedRecordCantBeMoved(t *testing.T) {
	bubble(t, Config{Keyring: ring(t, key1)}, func(t *testing.T, f *fixture) {
		f.do(request{owner: "victim"}).wantBody(t, 200, "execution 1", false)
		victims := f.mem.job()
		f.do(request{owner: "mallory"}).wantBody(t, 200, "execution 2", false)
		at := keystore.NameOf("main", "mallory", "k1")
		f.mem.mu.Lock()
		mine, err := f.mem.get(at)
		f.mem.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		for name, forged := range map[string]func(*keystore.Job){
			"as it is":         func(j *keystore.Job) { *j = *victims },
			"renamed":          func(j *keystore.Job) { *j = *victims; j.Name, j.ID = mine.Name, mine.ID },
			"the answer alone": func(j *keystore.Job) { j.Result = victims.Result },
		} {
			j := *mine
			forged(&j)
			j.WriteID = keystore.NewWriteID()
			record, err := keystore.EncodeRecord(&j)
			if err != nil {
				t.Fatal(err)
			}
			f.mem.mu.Lock()
			f.mem.records[at] = record
			f.mem.mu.Unlock()
			if r := f.do(request{owner: "mallory"}).want(t, 503, CodeStoreUnavailable); strings.Contains(r.Body.String(), "execution 1") {
				t.Errorf("%s: somebody else's answer was given out", name)
			}
		}
		f.wantExecutions(2)
	})
}

// Keys are rotated while jobs are under way: claimed before, answered after.
func TestSealedJobAcrossRotation(t *testing.T) {
	bubble(t, Config{Keyring: ring(t, key1)}, func(t *testing.T, old *fixture) {
		rotated := newFixtureOn(t, old.mem, Config{Keyring: ring(t, key2, key1)})
		defer rotated.gateway.Close()
		var seen []string
		old.serve = secretive(old, &seen)
		rotated.serve = func(w http.ResponseWriter, r *http.Request) error {
			seen = append(seen, r.Header.Get(DefaultKeyHeader))
			_, err := fmt.Fprint(w, "rotated")
			return err
		}
		old.do(request{key: `"k1"`}).want(t, 401, "")
		rotated.do(request{}).wantBody(t, 200, "rotated", false)
		if j := old.mem.job(); j.KeySealed.By != "k1" || j.Result.SealedBy != "k2" {
			t.Errorf("sealed by %s and %s", j.KeySealed.By, j.Result.SealedBy)
		}
		if len(seen) != 2 || seen[1] != `"k1"` {
			t.Errorf("the upstream saw the keys %q", seen)
		}
		rotated.do(request{}).wantBody(t, 200, "rotated", true)
		old.do(request{}).want(t, 503, CodeStoreUnavailable) // it was not told of the new key first

		old.do(request{key: "k9"}).wantBody(t, 200, "iban-0815", false)
		rotated.do(request{key: "k9"}).wantBody(t, 200, "iban-0815", true)
		old.wantExecutions(2)
		rotated.wantExecutions(1)
	})
}

// Encryption is switched on while there are jobs in clear: they are replayed, and
// go on.
func TestEncryptionSwitchedOn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, clear *fixture) {
		sealing := newFixtureOn(t, clear.mem, Config{Keyring: ring(t, key1)})
		defer sealing.gateway.Close()
		clear.do(request{}).wantBody(t, 200, "execution 1", false)
		sealing.do(request{}).wantBody(t, 200, "execution 1", true)
		sealing.wantExecutions(0)
	})
}

// Whatever makes a result of an encrypted job encrypts it, or does not write it.
func TestResolvedAnswersAreSealed(t *testing.T) {
	bubble(t, Config{Keyring: ring(t, key1), Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
		j := f.unknownFor(time.Hour)
		d := decide(j, keystore.AttemptSucceeded)
		if _, err := f.gateway.Resolve(t.Context(), d); !errors.Is(err, keystore.ErrSealed) {
			t.Errorf("without a key it was written in clear: %v", err)
		}
		if s := f.mem.job().LastAttempt().State; s != keystore.AttemptUnknown {
			t.Errorf("the attempt is %s", s)
		}
		d.Keyring = f.route.Keyring
		if _, err := f.gateway.Resolve(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		f.mem.wantNothingOf(t, "charged", "text/plain")
		f.do(request{}).wantBody(t, 201, "charged", true)
		f.wantExecutions(1)
		time.Sleep(2 * time.Minute)
	})
}

// A reconciler asks by the key as it was sent, and what it is told is encrypted.
// One that can't read the key asks nothing: an empty question would have an answer.
func TestReconcilerOfSealedJobs(t *testing.T) {
	for name, c := range map[string]struct {
		keyring *keystore.Keyring
		asks    bool
	}{"with the key": {ring(t, key1), true}, "without": {ring(t, key2), false}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{Keyring: ring(t, key1)}, func(t *testing.T, f *fixture) {
				f.serve = func(http.ResponseWriter, *http.Request) error { return errors.New("EOF") }
				f.fail = Failure{Status: 502}
				f.do(request{key: `"secret-key"`}).want(t, 504, CodeOutcomeUnknown)
				var keys []string
				rc := &Reconcile{
					Every: 5 * time.Second, For: 15 * time.Minute,
					Rules: []ReconcileRule{{Statuses: []int{200}, As: keystore.AttemptSucceeded}},
					Lookup: func(_ context.Context, j *keystore.Job, _ *keystore.Attempt) (*keystore.Response, error) {
						keys = append(keys, j.KeySent, KeyOf(j))
						return status(200)(1)
					},
				}
				other := newFixtureOn(t, f.mem, Config{Keyring: c.keyring, Reconcile: rc})
				defer other.gateway.Close()
				ctx, cancel := context.WithCancel(t.Context())
				go other.route.Reconcile(ctx)
				time.Sleep(time.Minute)
				cancel()
				synctest.Wait()
				f.mem.wantNothingOf(t, "secret-key", "ch_1")
				if !c.asks {
					if len(keys) > 0 {
						t.Errorf("it asked about %q", keys)
					}
					if l := f.mem.job().Attempts[0].Lookups; !strings.Contains(l.Note, "encrypted") {
						t.Errorf("lookups %+v", l)
					}
					return
				}
				if len(keys) != 2 || keys[0] != `"secret-key"` || keys[1] != "secret-key" {
					t.Errorf("it asked about %q", keys)
				}
				other.do(request{key: "secret-key"}).wantBody(t, 200, `{"data":[{"id":"ch_1"}]}`, true)
				other.wantExecutions(0)
			})
		})
	}
}

// An attempt that was resolved, and whose late answer says the same, contradicts
// nobody, although both answers are encrypted.
func TestSealedLateAnswerIsCompared(t *testing.T) {
	for late, contradicts := range map[string]int{"charged": 0, "refused": 1} {
		t.Run(late, func(t *testing.T) {
			bubble(t, Config{Keyring: ring(t, key1), Timeout: time.Second, Linger: time.Minute}, func(t *testing.T, f *fixture) {
				f.serve = func(w http.ResponseWriter, _ *http.Request) error {
					time.Sleep(10 * time.Second)
					w.WriteHeader(201)
					_, err := fmt.Fprint(w, late)
					return err
				}
				f.do(request{}).want(t, 504, CodeOutcomeUnknown)
				d := decide(f.mem.job(), keystore.AttemptSucceeded)
				d.Keyring = f.route.Keyring
				if _, err := f.gateway.Resolve(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if n := f.incs.of(IncidentContradicted); n != contradicts {
					t.Errorf("contradicted %d times, want %d", n, contradicts)
				}
			})
		})
	}
}

// A secret of digests separates: with another one, a key is another job's. An
// operator finds a job with the secret of its route only.
func TestDigestSecret(t *testing.T) {
	keyed := keystore.NewDigester(key1.Secret)
	bubble(t, Config{Digester: keyed}, func(t *testing.T, f *fixture) {
		f.do(request{}).wantBody(t, 200, "execution 1", false)
		f.do(request{}).wantBody(t, 200, "execution 1", true)
		j := f.mem.job()
		if j.Name == keystore.NameOf("main", "alice", "k1") || j.Owner == keystore.OwnerDigest("alice") {
			t.Error("plain digests, although there is a secret")
		}
		if found, err := f.gateway.JobOf(t.Context(), keyed, "main", "alice", "k1"); err != nil || found.ID != j.ID {
			t.Errorf("not found with the secret: %v", err)
		}
		if _, err := f.gateway.JobOf(t.Context(), keystore.Digester{}, "main", "alice", "k1"); !errors.Is(err, ErrNoJob) {
			t.Errorf("found without the secret: %v", err)
		}
		plain := newFixture(t, Config{})
		defer plain.gateway.Close()
		plain.do(request{}).wantBody(t, 200, "execution 1", false)
		if plain.mem.job().Fingerprint == j.Fingerprint {
			t.Error("the secret makes no difference to fingerprints")
		}
		f.do(request{body: "other"}).want(t, 409, CodeKeyReused)
		f.wantExecutions(1)
	})
}
