package keystore

import (
	"slices"
	"testing"
)

// After a proven failure the next provider that may be used is tried, wrapping
// round; after a resolution the same one again.
func TestNextProvider(t *testing.T) {
	t.Parallel()
	const (
		proof = iota + 1
		resolvedFailed
		resolvedCancelled
		undispatched
	)
	type tried struct {
		provider string
		how      int
	}
	const sibling = 1 << 8 // of the one before
	for name, c := range map[string]struct {
		tried    []tried
		eligible []string
		want     string
	}{
		"the primary comes first":                   {nil, []string{"b", "c"}, "a"},
		"the next one":                              {[]tried{{"a", proof}}, []string{"b", "c"}, "b"},
		"one that isn't eligible is left out":       {[]tried{{"a", proof}}, []string{"c"}, "c"},
		"none is eligible: the primary":             {[]tried{{"a", proof}}, nil, "a"},
		"round again":                               {[]tried{{"a", proof}, {"b", proof}, {"c", proof}}, []string{"b", "c"}, "a"},
		"the primary needs no proof":                {[]tried{{"b", proof}}, []string{"b"}, "a"},
		"the latest counts":                         {[]tried{{"a", proof}, {"b", proof}}, []string{"b", "c"}, "c"},
		"resolved as failed: the same":              {[]tried{{"a", proof}, {"b", resolvedFailed}}, []string{"b", "c"}, "b"},
		"cancelled: the same":                       {[]tried{{"b", resolvedCancelled}}, []string{"b", "c"}, "b"},
		"resolved: the same, though not eligible":   {[]tried{{"b", resolvedFailed}}, []string{"c"}, "b"},
		"resolved, and no longer configured":        {[]tried{{"x", resolvedFailed}}, []string{"b"}, "a"},
		"failed, and no longer configured":          {[]tried{{"x", proof}}, []string{"b"}, "a"},
		"never dispatched: its provider is not out": {[]tried{{"a", proof}, {"b", undispatched}}, []string{"b", "c"}, "b"},
		"never dispatched after a resolution":       {[]tried{{"b", resolvedFailed}, {"b", undispatched}}, []string{"b", "c"}, "b"},
		"resolved, and its sibling had failed":      {[]tried{{"a", resolvedFailed}, {"b", sibling | proof}}, []string{"b", "c"}, "a"},
		"resolved sibling, undispatched ones":       {[]tried{{"a", proof}, {"b", resolvedCancelled}, {"c", sibling | undispatched}, {"a", sibling | proof}}, []string{"c"}, "b"},
		"failed after a resolution":                 {[]tried{{"a", resolvedFailed}, {"a", proof}}, []string{"b", "c"}, "b"},
		"siblings, and none resolved":               {[]tried{{"a", proof}, {"b", sibling | proof}}, []string{"b", "c"}, "c"},
		"never dispatched at all":                   {[]tried{{"a", undispatched}}, []string{"b"}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := new(Job)
			for i, try := range c.tried {
				a := Attempt{Number: i + 1, Token: tok(byte(i + 1)), Provider: try.provider, State: AttemptFailed}
				if try.how&sibling == 0 {
					j.Version++
				}
				a.Version = j.Version
				switch try.how &^ sibling {
				case proof:
					a.Ended = epoch
				case resolvedFailed:
					a.Resolution = &Resolution{State: AttemptFailed}
				case resolvedCancelled:
					a.State, a.Resolution = AttemptCancelled, &Resolution{State: AttemptCancelled}
				case undispatched:
					a.Ended, a.Reason = epoch, ReasonNeverDispatched+": gateway stopped"
				}
				j.Attempts = append(j.Attempts, a)
			}
			got := j.NextProvider([]string{"a", "b", "c"}, func(p string) bool { return slices.Contains(c.eligible, p) })
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
