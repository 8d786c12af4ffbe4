package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// DefaultMaxAttempts is how many attempts a request may make of itself.
const DefaultMaxAttempts = 3

// unprovenEvery is how often it is logged at most that no provider is proven. The
// event and the count come each time.
const unprovenEvery = 10 * time.Second

// maxMaxAttempts bounds that: more would only hide that something is wrong.
const maxMaxAttempts = 16

// NamedProvider is one of several providers of a route.
type NamedProvider struct {
	// Name stands in records and metrics.
	Name string
	// SendKey takes the place of the route's, if it is not empty.
	SendKey string
}

// validateProviders reports what is wrong with the settings about providers.
func (c *Config) validateProviders() error {
	var names []string
	for _, p := range c.Providers {
		if p.Name == "" || slices.Contains(names, p.Name) {
			return fmt.Errorf("provider %q: every provider needs a name of its own", p.Name)
		}
		names = append(names, p.Name)
		if err := CheckSendKey(p.SendKey); p.SendKey != "" && err != nil {
			return fmt.Errorf("provider %s: send_key %s: %w", p.Name, p.SendKey, err)
		}
	}
	switch {
	case c.MaxAttempts < 1 || c.MaxAttempts > maxMaxAttempts:
		return fmt.Errorf("max_attempts %d: must be from 1 to %d", c.MaxAttempts, maxMaxAttempts)
	case c.Race < 0:
		return fmt.Errorf("race after %v: must be positive", c.Race)
	case c.Race > 0 && len(names) < 2:
		return errors.New("race: needs two providers or more")
	case c.Race > 0 && c.MaxAttempts < 2:
		return fmt.Errorf("race: with max_attempts %d there is never a second attempt; raise it, or remove race", c.MaxAttempts)
	case c.Race > 0 && c.Race >= c.Timeout:
		return fmt.Errorf("race after %v: would never begin before timeout (%v); lower it, or raise timeout", c.Race, c.Timeout)
	}
	return nil
}

// sendKey is the header in which an attempt on this provider carries a key made
// of the job's id; empty for none.
func (c *Config) sendKey(provider string) string {
	for _, p := range c.Providers {
		if p.Name == provider && p.SendKey != "" {
			return http.CanonicalHeaderKey(p.SendKey)
		}
	}
	return c.SendKey
}

// providerNames are the providers in their order of preference.
func (c *Config) providerNames() []string {
	names := make([]string, len(c.Providers))
	for i, p := range c.Providers {
		names[i] = p.Name
	}
	return names
}

// eligible reports why a provider may not be used but as the primary; nil if it may.
func (rt *Route) eligible(provider string) error {
	if rt.Eligible == nil {
		return nil
	}
	return rt.Eligible(provider)
}

// providerFor is the provider of the first attempt that a request makes of a
// job; nil for a new one.
func (rt *Route) providerFor(j *keystore.Job) string {
	names := rt.providerNames()
	switch {
	case len(names) == 0:
		return ""
	case j == nil:
		return names[0]
	}
	var unproven error
	next := j.NextProvider(names, func(provider string) bool {
		err := rt.eligible(provider)
		unproven = errors.Join(unproven, err)
		return err == nil
	})
	// Where failover is left to the client's repetition, this is it.
	if rt.NoFailover && unproven != nil && next == names[0] {
		rt.tellUnproven(j, unproven)
	}
	return next
}

// otherProvider is the next provider after the given one that may be used, of
// those not tried yet; empty if there is none. Why one that is there may not be
// used is told, since somebody counts on it.
func (rt *Route) otherProvider(j *keystore.Job, after string, tried []string) string {
	names := rt.providerNames()
	at := slices.Index(names, after)
	var unproven error
	for i := range names {
		k := (at + 1 + i) % len(names)
		if slices.Contains(tried, names[k]) {
			continue
		}
		if k == 0 {
			return names[0]
		}
		err := rt.eligible(names[k])
		if err == nil {
			return names[k]
		}
		unproven = errors.Join(unproven, err)
	}
	if unproven != nil {
		rt.tellUnproven(j, unproven)
	}
	return ""
}

// tellUnproven tells that no other provider is used for a job, and why.
func (rt *Route) tellUnproven(j *keystore.Job, unproven error) {
	rt.gateway.observer.Incident(IncidentFallbackUnproven)
	rt.gateway.observer.Event(Event{Name: EventFallbackUnproven, Job: j, Attempt: j.LastAttempt().Number, Reason: unproven.Error()})
	// In an outage of the primary every request comes here.
	now := time.Now().UnixNano()
	if last := rt.unprovenTold.Load(); now-last >= int64(unprovenEvery) && rt.unprovenTold.CompareAndSwap(last, now) {
		rt.gateway.log.Warn("no other provider may be used, since none is proven",
			slog.String("job", j.ID), slog.Any("error", unproven))
	}
}

// newAttempt is what the write that starts an attempt says of it.
func (rt *Route) newAttempt(token keystore.Token, provider string) keystore.NewAttempt {
	return keystore.NewAttempt{
		Token: token, Provider: provider, At: rt.gateway.store.Now(),
		Lease: rt.Lease, Listen: rt.Timeout + rt.Linger,
	}
}

// siblings is how many attempts a job may have for another one to be started
// beside one that is unresolved; zero if the route does not race.
func (rt *Route) siblings() int {
	if rt.Race == 0 {
		return 0
	}
	return rt.MaxAttempts
}

// claimed is an attempt whose claim was written.
type claimed struct {
	job   *keystore.Job
	token keystore.Token
	sent  time.Time // when the claim was first sent
}
