package proxy

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/internal/redistest"
	"github.com/caddy-idempotency/caddy-idempotency/keystore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/boltstore"
	"github.com/caddy-idempotency/caddy-idempotency/keystore/redisstore"
)

// identity is whose key it is, and where.
type identity struct{ space, owner, key string }

// confusable draws identities that are the same text when they are strung
// together, with nothing in between or with what somebody would put there: each
// text is cut in several places, also within its separators.
func confusable(r *rand.Rand, n int) []identity {
	const letters = `ab:/|.-_~{}"\%`
	separators := []string{"", ":", "/", "|", ".", "-", "::", ":/", `"`, `\`, "%3A"}
	seen := map[identity]bool{}
	var all []identity
	for len(all) < n {
		sep := separators[r.IntN(len(separators))]
		var text strings.Builder
		for range 4 + r.IntN(5) {
			if r.IntN(2) == 0 {
				text.WriteString(sep)
			} else {
				text.WriteByte(letters[r.IntN(len(letters))])
			}
		}
		whole := text.String()
		for i := 1; i <= len(whole); i++ {
			for k := i; k < len(whole); k++ {
				// As it is strung together without a separator, and with this one.
				for _, id := range []identity{
					{whole[:i], whole[i:k], whole[k:]},
					{whole[:i], strings.TrimPrefix(whole[i:k], sep), strings.TrimPrefix(whole[k:], sep)},
				} {
					if seen[id] || id.key == "" || id.owner == "" || strings.HasPrefix(id.space, "_") || r.IntN(3) > 0 || len(all) == n {
						continue
					}
					seen[id] = true
					all = append(all, id)
				}
			}
		}
	}
	return all
}

// Two callers never get each other's answers, and no space those of another,
// whatever bytes their names and keys are made of.
func TestSEC06NamesThatLookAlikeNeverShareAnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		identities int
		open       func(t *testing.T) keystore.Store
	}{
		"memory": {10_000, func(*testing.T) keystore.Store { return newMemStore() }},
		"bolt": {500, func(t *testing.T) keystore.Store {
			s, err := boltstore.Open(filepath.Join(t.TempDir(), "jobs.db"), boltstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}},
		"redis": {500, func(t *testing.T) keystore.Store {
			s, err := redisstore.Open(redisstore.Options{URL: redistest.Start(t).URL()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			ids := confusable(rand.New(rand.NewPCG(seed, 0)), c.identities)
			f := newFixtureOn(t, c.open(t), Config{})
			answers := make(map[string]identity)
			first := make(map[identity]string)
			ask := func(id identity) result {
				f.route.Space = id.space
				return f.do(request{owner: id.owner, key: `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id.key) + `"`})
			}
			for n, id := range ids {
				r := ask(id).wantBody(t, 200, fmt.Sprintf("execution %d", n+1), false)
				if other, twice := answers[r.Body.String()]; twice {
					t.Fatalf("%+v got the answer of %+v", id, other)
				}
				answers[r.Body.String()], first[id] = id, r.Body.String()
			}
			for _, id := range ids {
				ask(id).wantBody(t, 200, first[id], true)
			}
			f.wantExecutions(int32(len(ids)))
		})
	}
}
