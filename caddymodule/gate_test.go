package caddymodule

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/proxy"
)

// keptProofs are proofs in a store that can be told what to say.
type keptProofs struct {
	*proofs
	reads atomic.Int32
	proof *proxy.Proof
	err   error
	hang  bool
}

func newKeptProofs() *keptProofs {
	k := &keptProofs{}
	k.proofs = &proofs{
		get: func(ctx context.Context, _ proxy.ProofSubject, _ time.Duration) (*proxy.Proof, error) {
			k.reads.Add(1)
			if k.hang {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return k.proof, k.err
		},
		now:  func() keystore.Time { return keystore.TimeOf(time.Now()) },
		read: make(map[proofKey]*readProof),
	}
	return k
}

func (k *keptProofs) lives(t *testing.T, want bool) {
	t.Helper()
	proof, err := k.living(proxy.ProofSubject{Provider: "b"}, time.Hour)
	if (proof != nil) != want || (proof == nil && k.err != nil && err == nil) {
		t.Errorf("proof %v, error %v, want one: %t", proof, err, want)
	}
}

// A proof that is believed without asking the store again still ends at its time.
func TestProofsEndAtTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeptProofs()
		k.lives(t, false)
		k.proof = &proxy.Proof{Expires: keystore.TimeOf(time.Now()).Add(proofFresh + proofFresh/2)}
		k.lives(t, false) // what was read is believed for a while
		time.Sleep(proofFresh)
		k.lives(t, true)
		time.Sleep(proofFresh/2 - time.Millisecond)
		k.lives(t, true)
		time.Sleep(time.Millisecond)
		k.lives(t, false)
		if n := k.reads.Load(); n != 2 {
			t.Errorf("read %d times, want twice", n)
		}
	})
}

// What this gateway has taken back does not count for a moment longer, and what
// others have, a second at most.
func TestProofsThatWereTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeptProofs()
		k.proof = &proxy.Proof{Expires: keystore.TimeOf(time.Now()).Add(time.Hour)}
		k.lives(t, true)
		k.proof = nil
		k.forget(proxy.ProofSubject{Provider: "c"})
		k.lives(t, true)
		k.forget(proxy.ProofSubject{Provider: "b"})
		k.lives(t, false)
		k.proof = &proxy.Proof{Expires: keystore.TimeOf(time.Now()).Add(time.Hour)}
		time.Sleep(proofFresh)
		k.lives(t, true)
		k.proof = nil
		time.Sleep(proofFresh)
		k.lives(t, false)
	})
}

// A store that is down proves nothing, and holds nobody up for longer than one call.
func TestProofsOfAStoreThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeptProofs()
		k.err = keystore.ErrUnavailable
		k.lives(t, false)
		k.hang = true
		time.Sleep(proofFresh)
		began := time.Now()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if _, err := k.living(proxy.ProofSubject{Provider: "b"}, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != proofTime || k.reads.Load() != 2 {
			t.Errorf("took %v, read %d times", took, k.reads.Load())
		}
	})
}

func TestShellWord(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"main": "main", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'"} {
		if got := shellWord(word); got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
	}
}

// contracted is a block of providers that have a contract and no leave to do
// without proof.
func contracted(primary, backup, contract string) string {
	block := providers(primary, backup, "contract c {\n"+contract+"\ncase testdata/contract/charge.http\n}")
	return strings.Replace(block, "unproven allow", "", 1)
}

// Without a proof the client gets the primary's own answer, and the fallback does
// nothing.
func TestNoFailoverWithoutProof(t *testing.T) {
	b := newUpstream(t)
	load(t, site(t, contracted(`respond "later" 429`, proxyTo(b), "")))
	for range 2 { // nor by the client's own repetition
		if got := post(t, "/pay", "k"); got.status != 429 || got.body != "later" {
			t.Errorf("got %+v", got)
		}
	}
	if n := b.executions("k"); n != 0 {
		t.Errorf("%d executions at the fallback", n)
	}
}

// A provider is proven by one call at a time.
func TestProvingTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, b, c := newKeptProofs(), proxy.ProofSubject{Provider: "b"}, proxy.ProofSubject{Provider: "c"}
		done, err := k.turn(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		other, err := k.turn(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		other()
		left, leave := context.WithCancel(t.Context())
		leave()
		if _, err := k.turn(left, b); err == nil {
			t.Error("two prove the same provider")
		}
		second := make(chan error)
		go func() {
			_, err := k.turn(t.Context(), b)
			second <- err
		}()
		synctest.Wait()
		select {
		case err := <-second:
			t.Errorf("two prove the same provider, %v", err)
		default:
		}
		done()
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
}
