package keystore

import (
	"slices"
	"strings"
)

// NextProvider returns the provider of an open job's next attempt, out of those
// that are configured, in their order. The first one, the primary, may always be
// used, any other if it is eligible.
//
// After a proven failure it is the next one that may be used, wrapping round.
// After a resolution it is the same one again, eligible or not: should somebody
// have decided wrongly, its own deduplication is the last safety net. So it is
// where a sibling that was started later has failed, since whoever resolved an
// attempt of a race did so after that one had started. An attempt that was never
// dispatched says nothing of its provider.
func (j *Job) NextProvider(configured []string, eligible func(provider string) bool) string {
	var latest *Attempt
	last := -1
	for i := range slices.Backward(j.Attempts) {
		a := &j.Attempts[i]
		switch {
		case a.neverDispatched():
			continue
		case latest == nil:
			latest, last = a, slices.Index(configured, a.Provider)
		}
		if a.Version != latest.Version { // no sibling
			break
		}
		if a.Resolution != nil && slices.Contains(configured, a.Provider) {
			return a.Provider
		}
	}
	for i := last + 1; i < len(configured); i++ {
		if i == 0 || eligible(configured[i]) {
			return configured[i]
		}
	}
	return configured[0]
}

// neverDispatched reports whether the attempt ended before anything was sent, by
// no fault of its provider.
func (a *Attempt) neverDispatched() bool {
	return a.proved() && strings.HasPrefix(a.Reason, ReasonNeverDispatched)
}

// Busy returns the named providers of the attempts that are unresolved. None of
// them is asked again before that is settled, not even by a race: it may have
// carried the job out.
func (j *Job) Busy() (providers []string) {
	for i := range j.Attempts {
		if a := &j.Attempts[i]; a.Unresolved() && a.Provider != "" {
			providers = append(providers, a.Provider)
		}
	}
	return providers
}
