package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

const provingCases = `### safe
# @safe
# @repeat 3
POST /charges

{"order": "{{key}}"}

HTTP 200
/order == "{{key}}"

### not safe
DELETE /charges/1

HTTP 200
/ok == true
`

func provingContract(t testing.TB) *Contract {
	t.Helper()
	dir := files(t, map[string]string{"c.http": provingCases, "s.json": `{"properties": {"amount": {"type": "integer"}, "order": {}, "ok": {}}, "additionalProperties": false}`})
	c, err := NewContract(ContractRules{Schema: filepath.Join(dir, "s.json"), Cases: []string{filepath.Join(dir, "c.http")}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// echo is a provider that passes, and counts what it executes.
func echo(executed map[string]int) SendCase {
	return func(r *http.Request, key string) (*keystore.Response, error) {
		executed[key]++
		if r.Method == http.MethodDelete {
			return jsonAnswer(200, `{"ok": true}`), nil
		}
		body, err := io.ReadAll(r.Body)
		return jsonAnswer(200, string(body)), err
	}
}

// Every case has to pass as often as it says, each time under a key of its own.
func TestProve(t *testing.T) {
	t.Parallel()
	c := provingContract(t)
	executed := map[string]int{}
	report := c.Prove(t.Context(), true, echo(executed))
	if !report.Passed() || len(report) != 2 || report[0].Passed != 3 || report[1].Passed != 1 {
		t.Errorf("got %+v", report)
	}
	if len(executed) != 4 {
		t.Errorf("executed %v", executed)
	}
	for key, n := range executed {
		if n != 1 || !strings.HasPrefix(key, "prove-") {
			t.Errorf("%s was executed %d times", key, n)
		}
	}
}

// What isn't safe is left out unless somebody says otherwise, and then nothing is
// proven.
func TestProveLeavesOutWhatIsNotSafe(t *testing.T) {
	t.Parallel()
	executed := map[string]int{}
	report := provingContract(t).Prove(t.Context(), false, echo(executed))
	if report.Passed() || report[0].Passed != 3 || !report[1].LeftOut || len(executed) != 3 {
		t.Errorf("got %+v after %v", report, executed)
	}
	if (ProofReport{}).Passed() {
		t.Error("no case proves something")
	}
}

func TestProveTellsWhatFailed(t *testing.T) {
	t.Parallel()
	c := provingContract(t)
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("the caller has left"))
	for name, test := range map[string]struct {
		ctx    context.Context
		second func(body string) (*keystore.Response, error)
		want   CaseFailure
	}{
		"the wrong meaning": {t.Context(), func(string) (*keystore.Response, error) { return jsonAnswer(200, `{"order": "x"}`), nil }, CaseFailure{9, "/order", "", `"x"`}},
		"a broken contract": {t.Context(), func(body string) (*keystore.Response, error) {
			return jsonAnswer(200, strings.Replace(body, "{", `{"amount":"1",`, 1)), nil
		}, CaseFailure{4, "contract /amount", "integer", `"1"`}},
		"a member too many": {t.Context(), func(body string) (*keystore.Response, error) {
			return jsonAnswer(200, strings.Replace(body, "{", `{"usage":1,`, 1)), nil
		}, CaseFailure{4, "contract", "no members but those of the schema", `"usage" as well`}},
		"text around it": {t.Context(), func(string) (*keystore.Response, error) { return jsonAnswer(200, "Sure! {}"), nil }, CaseFailure{9, "body", "a JSON document", "Sure! {}"}},
		"an error":       {t.Context(), func(string) (*keystore.Response, error) { return nil, errors.New("refused") }, CaseFailure{4, "answer", "a complete one", "refused"}},
		"no answer":      {t.Context(), func(string) (*keystore.Response, error) { return nil, nil }, CaseFailure{4, "answer", "a complete one", "none"}},
		"too late":       {ended, nil, CaseFailure{4, "answer", "a complete one", "the caller has left"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			report := c.Prove(test.ctx, false, func(r *http.Request, _ string) (*keystore.Response, error) {
				runs++
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				if runs == 2 {
					return test.second(string(body))
				}
				return jsonAnswer(200, string(body)), nil
			})
			got := report[0]
			if report.Passed() || len(got.Failures) != 1 || got.Passed != runs-1 {
				t.Fatalf("got %+v after %d runs", got, runs)
			}
			f := got.Failures[0]
			if test.want.Expected == "" {
				f.Expected = ""
			}
			if f != test.want {
				t.Errorf("got %+v, want %+v", f, test.want)
			}
		})
	}
}

func proofSubject() ProofSubject {
	return ProofSubject{Space: "main", Provider: "second", Config: keystore.DigestOf([]byte("a")), Contract: keystore.DigestOf([]byte("b"))}
}

func passed() ProofReport { return ProofReport{{Case: "a card is charged", Repeat: 5, Passed: 5}} }

func proofGateway(t *testing.T) (*Gateway, *memStore) {
	t.Helper()
	store := newMemStore()
	g := NewGateway(store, GatewayOptions{Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(g.Close)
	return g, store
}

// A proof is found by whoever asks about exactly what was proven, as long as it
// lives.
func TestProofIsOfOneConfigurationAndContract(t *testing.T) {
	t.Parallel()
	g, store := proofGateway(t)
	s, began := proofSubject(), store.Now()
	if p, err := g.Proof(t.Context(), s, time.Hour); p != nil || err != nil {
		t.Fatalf("before: got %v, %v", p, err)
	}
	if _, err := g.KeepProof(t.Context(), s, passed(), began, time.Hour); err != nil {
		t.Fatal(err)
	}
	p, err := g.Proof(t.Context(), s, time.Hour)
	if err != nil || p == nil || p.Proved != began || p.Expires != began.Add(time.Hour) || len(p.Cases) != 1 || p.Cases[0] != (ProvenCase{"a card is charged", 5}) {
		t.Fatalf("got %+v, %v", p, err)
	}
	for name, change := range map[string]func(*ProofSubject){
		"another space":         func(s *ProofSubject) { s.Space = "other" },
		"another provider":      func(s *ProofSubject) { s.Provider = "third" },
		"another configuration": func(s *ProofSubject) { s.Config = keystore.DigestOf([]byte("c")) },
		"another contract":      func(s *ProofSubject) { s.Contract = keystore.DigestOf([]byte("c")) },
		"the two exchanged":     func(s *ProofSubject) { s.Config, s.Contract = s.Contract, s.Config },
		"no contract":           func(s *ProofSubject) { s.Contract = keystore.Digest{} },
	} {
		other := s
		change(&other)
		if p, err := g.Proof(t.Context(), other, time.Hour); p != nil || err != nil {
			t.Errorf("%s: got %v, %v", name, p, err)
		}
	}
	j, err := store.Get(t.Context(), s.name())
	if err != nil || j.Space != "_proof" || j.State(store.Now()) != keystore.JobCompleted || j.Expires != began.Add(time.Hour) {
		t.Errorf("the record is %+v, %v", j, err)
	}
}

// A proof ages, by what was said when it was kept and by what is said now.
func TestProofAges(t *testing.T) {
	t.Parallel()
	g, store := proofGateway(t)
	s := proofSubject()
	began := store.Now().Add(-time.Hour)
	if _, err := g.KeepProof(t.Context(), s, passed(), began, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	for maxAge, lives := range map[time.Duration]bool{30 * time.Minute: false, time.Hour: false, 90 * time.Minute: true, 24 * time.Hour: true} {
		p, err := g.Proof(t.Context(), s, maxAge)
		if err != nil || (p != nil) != lives {
			t.Errorf("at most %s: got %+v, %v", maxAge, p, err)
		}
		if p != nil && p.Expires > began.Add(2*time.Hour) {
			t.Errorf("at most %s: expires at %d", maxAge, p.Expires)
		}
	}
	if _, err := g.KeepProof(t.Context(), s, passed(), store.Now().Add(-30*time.Minute), time.Minute); err != nil {
		t.Fatal(err)
	}
	if p, err := g.Proof(t.Context(), s, 24*time.Hour); p != nil || err != nil {
		t.Errorf("kept when it was past its time: got %+v, %v", p, err)
	}
}

// The later run decides, however the two are written.
func TestProofOfTheLaterRunStands(t *testing.T) {
	t.Parallel()
	g, store := proofGateway(t)
	s, now := proofSubject(), store.Now()
	keep := func(began keystore.Time, runs int) {
		t.Helper()
		if _, err := g.KeepProof(t.Context(), s, ProofReport{{Case: "a", Repeat: 1, Passed: runs}}, began, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, runs int) {
		t.Helper()
		p, err := g.Proof(t.Context(), s, time.Hour)
		if err != nil || (p == nil) != (runs == 0) || (p != nil && p.Cases[0].Runs != runs) {
			t.Errorf("%s: got %+v, %v", what, p, err)
		}
	}
	drop := func(began keystore.Time, want bool) {
		t.Helper()
		if dropped, err := g.DropProof(t.Context(), s, began, time.Hour); err != nil || dropped != want {
			t.Errorf("drop: got %v, %v", dropped, err)
		}
	}
	drop(now.Add(-4*time.Minute), false)
	keep(now.Add(-2*time.Minute), 1)
	check("kept", 1)
	keep(now.Add(-time.Minute), 2)
	check("kept again", 2)
	keep(now.Add(-3*time.Minute), 3)
	check("an earlier run, written later", 2)
	drop(now.Add(-3*time.Minute), false)
	check("an earlier run that failed", 2)
	drop(now, true)
	check("a later run that failed", 0)
	for _, provider := range []string{s.Provider, "never proven"} {
		s.Provider = provider
		drop(now, false)
		for _, began := range []time.Duration{-time.Minute, -time.Millisecond} {
			if _, err := g.KeepProof(t.Context(), s, passed(), now.Add(began), time.Hour); !errors.Is(err, ErrNotProven) {
				t.Errorf("an earlier run that passed after that: got %v", err)
			}
		}
		check("an earlier run that passed after that", 0)
		j, err := store.Get(t.Context(), s.name())
		if err != nil || j.State(store.Now()) != keystore.JobOpen || j.Expires != now.Add(time.Hour) {
			t.Errorf("the record is %+v, %v", j, err)
		}
	}
	keep(now.Add(time.Millisecond), 4)
	check("the next run", 4)
	drop(now.Add(time.Second), true)
	if _, err := g.KeepProof(t.Context(), s, ProofReport{{Case: "a", Repeat: 2, Passed: 1}}, now, time.Hour); !errors.Is(err, ErrNotProven) {
		t.Errorf("a run that failed: got %v", err)
	}
	check("a run that failed", 0)
}

// A store that does not answer, or has something else there, is an error and no
// proof; a reply that was lost does no harm.
func TestProofNeedsItsStore(t *testing.T) {
	t.Parallel()
	g, store := proofGateway(t)
	s := proofSubject()
	lost := 0
	store.fail(nil, func(op string) error {
		if lost++; op == "create" && lost == 2 {
			return errInjected
		}
		return nil
	})
	if _, err := g.KeepProof(t.Context(), s, passed(), store.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	store.fail(func(string) error { return errInjected }, nil)
	if p, err := g.Proof(t.Context(), s, time.Hour); p != nil || !errors.Is(err, keystore.ErrUnavailable) {
		t.Errorf("got %v, %v", p, err)
	}
	store.fail(nil, nil)
	if p, err := g.Proof(t.Context(), s, time.Hour); p == nil || err != nil {
		t.Errorf("got %v, %v", p, err)
	}
	j := s.proven(&Proof{Proved: store.Now()}, []byte("garbage"), time.Hour)
	j.WriteID = keystore.NewWriteID()
	if err := store.put(j); err != nil {
		t.Fatal(err)
	}
	if p, err := g.Proof(t.Context(), s, time.Hour); p != nil || !errors.Is(err, keystore.ErrCorrupt) {
		t.Errorf("garbage: got %v, %v", p, err)
	}
	j = keystore.NewJob(*j, keystore.NewAttempt{Token: keystore.NewToken(), At: store.Now(), Lease: time.Hour})
	j.WriteID = keystore.NewWriteID()
	if err := store.put(j); err != nil {
		t.Fatal(err)
	}
	if p, err := g.Proof(t.Context(), s, time.Hour); p != nil || err != nil {
		t.Errorf("one that is not completed: got %v, %v", p, err)
	}
}

// No choice of names reaches the proof of something else.
func TestProofNamesAreApart(t *testing.T) {
	t.Parallel()
	seen := map[keystore.Name]ProofSubject{}
	for _, space := range []string{"", "a", "ab", "a:b"} {
		for _, provider := range []string{"", "a", "b", "a:b", ":", fmt.Sprintf("1:%s:a", keystore.Digest{})} {
			for _, config := range []string{"a", "b"} {
				s := ProofSubject{Space: space, Provider: provider, Config: keystore.DigestOf([]byte(config))}
				if other, twice := seen[s.name()]; twice {
					t.Errorf("%+v and %+v have one name", s, other)
				}
				seen[s.name()] = s
			}
		}
	}
}

// A case that failed stays failed, although whoever had asked did not wait for the
// others. What was broken off says nothing.
func TestProveThatIsBrokenOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first   string
		refuted bool
	}{"after a case that passed": {`{"ok": true}`, false}, "after one that failed": {`{"ok": false}`, true}} {
		dir := files(t, map[string]string{"c.http": "### one\n# @safe\nPOST /a\n\nHTTP 200\n/ok == true\n\n### two\n# @safe\nPOST /b\n\nHTTP 200\n"})
		contract, err := NewContract(ContractRules{Cases: []string{filepath.Join(dir, "c.http")}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		report := contract.Prove(ctx, false, func(r *http.Request, _ string) (*keystore.Response, error) {
			if r.URL.Path == "/b" {
				leave()
				return nil, context.Cause(ctx)
			}
			return jsonAnswer(200, c.first), nil
		})
		if report.Passed() || report.Refuted() != c.refuted {
			t.Errorf("%s: refuted %t, %+v", name, report.Refuted(), report)
		}
	}
}

// A store's clock that was put back makes no proof live longer, nor outlive a
// later run that has failed.
func TestProofFromATimeToCome(t *testing.T) {
	t.Parallel()
	g, store := proofGateway(t)
	s, later := proofSubject(), store.Now().Add(time.Hour)
	for _, drops := range []bool{false, true} {
		if _, err := g.KeepProof(t.Context(), s, passed(), later, 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		if p, err := g.Proof(t.Context(), s, 24*time.Hour); p != nil || err != nil {
			t.Errorf("got %+v, %v", p, err)
		}
		if drops {
			if dropped, err := g.DropProof(t.Context(), s, store.Now(), time.Hour); !dropped || err != nil {
				t.Errorf("it stays: %v", err)
			}
		} else if _, err := g.KeepProof(t.Context(), s, passed(), store.Now(), time.Hour); err != nil {
			t.Fatal(err)
		} else if p, err := g.Proof(t.Context(), s, 24*time.Hour); p == nil || err != nil {
			t.Errorf("a new one does not take its place: %v", err)
		}
	}
}

// Whoever listens is told that a provider is proven, and that it is so no more; and
// that a job was forgotten.
func TestEventsOfProofsAndForgottenJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Config{})
	s := ProofSubject{Space: "main", Provider: "backup"}
	began := f.store.Now()
	if _, err := f.gateway.KeepProof(t.Context(), s, ProofReport{{Case: "a", Repeat: 1, Passed: 1}}, began, time.Hour); err != nil {
		t.Fatal(err)
	}
	if dropped, err := f.gateway.DropProof(t.Context(), s, began.Add(time.Second), time.Hour); err != nil || !dropped {
		t.Fatalf("dropped: %t, %v", dropped, err)
	}
	id := f.do(request{}).Header().Get(HeaderJob)
	if err := f.gateway.Forget(t.Context(), id, "anna"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []EventName{EventProven, EventUnproven, EventForgotten} {
		if n := f.incs.told(name); n != 1 {
			t.Errorf("%s was told %d times", name, n)
		}
	}
}
