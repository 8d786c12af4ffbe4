package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// offering returns a site with two providers, each made of directives, of which
// the second may take the first one's place.
func offering(one, two string) site {
	return site{providers: true}.with("provider one", "{\n"+one+"\n}").with("provider two", "{\n"+two+"\n}").with("unproven", "allow")
}

// wantTried checks the attempts of alice's job, each written as its provider and
// its state.
func wantTried(t *testing.T, store keystore.Store, key string, want ...string) {
	t.Helper()
	j := getJob(t, store, key)
	if j == nil {
		t.Errorf("%s has no job", key)
		return
	}
	var got []string
	for i := range j.Attempts {
		got = append(got, fmt.Sprintf("%s %s", j.Attempts[i].Provider, j.Attempts[i].State))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the attempts of %s are %q, want %q", key, got, want)
	}
}
