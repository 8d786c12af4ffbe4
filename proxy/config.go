// Package proxy makes one request's way through the gateway: its key, owner and
// fingerprint, the claim, the attempt, its outcome, the commit, the replay, and
// the wait of duplicates. It knows HTTP but not Caddy; [Route.Middleware] makes
// it plain net/http middleware.
//
// A [Gateway] is what the requests of one process share about one store. A
// [Route] is one place where requests are protected, with its own settings.
package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-idempotency/caddy-idempotency/keystore"
)

// Defaults of a route's settings.
const (
	DefaultSpace           = "main"
	DefaultKeyHeader       = "Idempotency-Key"
	DefaultWait            = 10 * time.Second
	DefaultTimeout         = 60 * time.Second
	DefaultLinger          = 10 * time.Minute
	DefaultLeaseMargin     = 30 * time.Second // added to the timeout
	DefaultRetention       = 24 * time.Hour
	DefaultStreamIdle      = 60 * time.Second
	DefaultMaxRequestBody  = 32 << 20
	DefaultMaxResponseBody = 1 << 20
	DefaultBuffer          = 256 << 10
	DefaultWaitersPerJob   = 1000
	DefaultWaiters         = 10000
)

// maxLimit bounds all limits: a petabyte is as good as none.
const maxLimit = 1 << 50

// Statuses says which HTTP statuses refusals have.
type Statuses string

// The sets of statuses.
const (
	// StatusesConflict answers a reused key with 409.
	StatusesConflict Statuses = "conflict"
	// StatusesIETF answers a reused key with 422, as
	// draft-ietf-httpapi-idempotency-key-header-07 has it.
	StatusesIETF Statuses = "ietf"
)

// Config holds the settings of a route. The zero value of a field means its default.
type Config struct {
	// Space separates the jobs of independent routes or applications in one store.
	Space string
	// KeyHeader is the name of the request header that carries the key.
	KeyHeader string
	// KeyRequired refuses protected requests without a key. Otherwise they pass
	// unprotected.
	KeyRequired bool
	// KeyFormat says which keys are taken. Default: KeyAny.
	KeyFormat KeyFormat
	// SendKey is the header in which upstreams get a key made of the job's id.
	// Default: none.
	SendKey string
	// Providers are those that can carry out a request, in their order of
	// preference. Default: a single one without a name.
	Providers []NamedProvider
	// NoFailover leaves it to the client to try again after an attempt that
	// certainly had no effect. Otherwise the next provider is tried at once.
	NoFailover bool
	// MaxAttempts bounds the attempts that one request makes by itself, and on a
	// racing route those of a job.
	MaxAttempts int
	// Race is after what time another attempt is started beside one that still
	// runs, on the next provider. Zero: never.
	Race time.Duration
	// Eligible says why a provider other than the first may not be used for
	// failover and races, with what to do about it; nil if it may. Default: all may.
	Eligible func(provider string) error
	// Admit says why no request with a key is served at present, nil if it is. Default:
	// all are.
	Admit func() error
	// Contract judges the answers that would be final. Nil: none is asked for.
	Contract *Contract
	// Fingerprint says what of a request a key stands for.
	Fingerprint FingerprintOptions
	// Methods are those that are protected. Default: all but GET, HEAD, OPTIONS,
	// TRACE and CONNECT.
	Methods []string

	// Wait bounds how long a duplicate waits for the first to finish.
	Wait time.Duration
	// Timeout bounds how long a client is kept waiting for its own attempt.
	Timeout time.Duration
	// Linger is how long an attempt goes on listening after Timeout, for a late result.
	Linger time.Duration
	// Lease is how long a claim is believed without a sign of life from its
	// gateway. Default: Timeout + 30 s.
	Lease time.Duration
	// Retention is how long completed and open jobs are kept. It must exceed
	// Timeout + Linger.
	Retention time.Duration
	// StreamIdle ends an answer that is passed on while it comes, once its
	// upstream has been silent for that long. It takes the place of Timeout and
	// Linger there.
	StreamIdle time.Duration

	// CacheSize is how many bytes of answers that were given are kept in memory, to
	// replay them without asking the store, and CacheTTL for how long. Another
	// gateway that forgets a job is not noticed before that. Zero: none are.
	CacheSize int64
	CacheTTL  time.Duration

	MaxRequestBody  int64 // bytes; a larger request is refused before any claim
	MaxResponseBody int64 // bytes; a larger answer is passed on and not kept
	Buffer          int64 // bytes of a request body held in memory before a temporary file; at most MaxRequestBody

	// Outcomes says for a status of a complete answer what it proves, where that
	// differs from the default.
	Outcomes map[int]keystore.Outcome
	// Statuses chooses the statuses of refusals.
	Statuses Statuses
	// KeepHeaders are those of an answer's header fields that are stored on this
	// route, although by default they are not.
	KeepHeaders []string

	// Label is shown to operators with the job. It must not say who the caller is.
	Label func(*http.Request) string

	// Digester makes the digests that stand for owner, key and what was asked. All
	// routes of one space on one store have to have the same.
	Digester keystore.Digester
	// Keyring encrypts the key as sent and the answer in the job's record. Nil:
	// they are not encrypted.
	Keyring *keystore.Keyring

	// Reconcile says how to ask the upstream about unknown attempts. Nil: it is
	// not asked. A route with this has its space for itself.
	Reconcile *Reconcile

	WaitersPerJob int // duplicates of one job that may wait on this gateway
	Waiters       int // duplicates that may wait on this gateway in all
}

// WithDefaults returns the settings with the defaults filled in.
func (c Config) WithDefaults() Config {
	orDefault(&c.Space, DefaultSpace)
	orDefault(&c.KeyHeader, DefaultKeyHeader)
	orDefault(&c.KeyFormat, KeyAny)
	orDefault(&c.Wait, DefaultWait)
	orDefault(&c.Timeout, DefaultTimeout)
	orDefault(&c.Linger, DefaultLinger)
	orDefault(&c.Lease, c.Timeout+DefaultLeaseMargin)
	orDefault(&c.Retention, DefaultRetention)
	orDefault(&c.StreamIdle, DefaultStreamIdle)
	orDefault(&c.MaxRequestBody, DefaultMaxRequestBody)
	orDefault(&c.MaxResponseBody, DefaultMaxResponseBody)
	orDefault(&c.Buffer, min(DefaultBuffer, c.MaxRequestBody))
	orDefault(&c.MaxAttempts, DefaultMaxAttempts)
	orDefault(&c.Statuses, StatusesConflict)
	orDefault(&c.WaitersPerJob, DefaultWaitersPerJob)
	orDefault(&c.Waiters, DefaultWaiters)
	c.KeyHeader = http.CanonicalHeaderKey(c.KeyHeader)
	c.SendKey = http.CanonicalHeaderKey(c.SendKey)
	return c
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports what is wrong with settings that have their defaults.
func (c Config) Validate() error {
	durations := []struct {
		name  string
		value time.Duration
	}{
		{"wait", c.Wait},
		{"timeout", c.Timeout},
		{"linger", c.Linger},
		{"lease", c.Lease},
		{"retention", c.Retention},
		{"stream_idle", c.StreamIdle},
	}
	for _, d := range durations {
		// The store's clock counts in milliseconds.
		if d.value < time.Millisecond {
			return fmt.Errorf("%s %v: must be at least 1ms", d.name, d.value)
		}
	}
	if c.CacheSize < 0 || c.CacheSize > maxLimit || c.CacheTTL < 0 {
		return fmt.Errorf("cache %d %v: must be from 0 to %d bytes, for no negative time", c.CacheSize, c.CacheTTL, int64(maxLimit))
	}
	limits := []struct {
		name  string
		value int64
	}{
		{"max_request_body", c.MaxRequestBody},
		{"max_response_body", c.MaxResponseBody},
		{"buffer", c.Buffer},
		{"waiters of a job", int64(c.WaitersPerJob)},
		{"waiters", int64(c.Waiters)},
	}
	for _, l := range limits {
		if l.value <= 0 || l.value > maxLimit {
			return fmt.Errorf("%s %d: must be from 1 to %d", l.name, l.value, int64(maxLimit))
		}
	}
	if c.Reconcile != nil {
		if err := c.Reconcile.validate(); err != nil {
			return err
		}
		for _, rule := range c.Reconcile.Rules {
			needed := max(c.Linger, c.Lease-c.Timeout) + rule.After + confirmAfter
			if rule.As != keystore.AttemptSucceeded && c.Reconcile.For < needed {
				return fmt.Errorf("reconcile: for %v: %s could never be told, since that takes %v: until the attempt is surely over (linger), its after, and %v to confirm it; raise for",
					c.Reconcile.For, rule.As, needed, confirmAfter)
			}
		}
	}
	if err := c.validateProviders(); err != nil {
		return err
	}
	if err := c.Fingerprint.validate(c.KeyHeader); err != nil {
		return err
	}
	if err := checkKeyHeader(c.KeyHeader); err != nil {
		return fmt.Errorf("key %q: %w", c.KeyHeader, err)
	}
	if err := CheckSendKey(c.SendKey); c.SendKey != "" && err != nil {
		return fmt.Errorf("send_key %s: %w", c.SendKey, err)
	}
	for _, name := range c.KeepHeaders {
		if err := CheckKeptHeader(name); err != nil {
			return fmt.Errorf("keep_header %s: %w", name, err)
		}
	}
	switch {
	case strings.HasPrefix(c.Space, "_"):
		return fmt.Errorf("space %q: names that begin with _ are reserved; choose another", c.Space)
	case c.KeyFormat != KeyAny && c.KeyFormat != KeyUUID:
		return fmt.Errorf("key_format %s: must be %s or %s", c.KeyFormat, KeyAny, KeyUUID)
	case c.Statuses != StatusesConflict && c.Statuses != StatusesIETF:
		return fmt.Errorf("statuses %q: must be %s or %s", c.Statuses, StatusesConflict, StatusesIETF)
	case c.Buffer > c.MaxRequestBody:
		return fmt.Errorf("buffer %d: more than max_request_body (%d), which no request's body exceeds; lower buffer or raise max_request_body", c.Buffer, c.MaxRequestBody)
	case c.Retention <= c.Timeout+c.Linger:
		return fmt.Errorf("retention %v: must exceed timeout + linger (%v), so that no job is forgotten while an answer to it may still come; raise retention or lower linger",
			c.Retention, c.Timeout+c.Linger)
	}
	for status, outcome := range c.Outcomes {
		if status < 200 || status > 599 {
			return fmt.Errorf("outcome %d: not the status of a complete answer (200 to 599)", status)
		}
		if outcome != keystore.OutcomeFinal && outcome != keystore.OutcomeFailed && outcome != keystore.OutcomeUnknown {
			return fmt.Errorf("outcome %d: must be final, failed or unknown", status)
		}
	}
	for _, m := range c.Methods {
		if strings.EqualFold(m, http.MethodConnect) || !httpguts.ValidHeaderFieldName(m) {
			return fmt.Errorf("methods %s: requests with it can't be repeated; remove it", m)
		}
	}
	return nil
}

// protects reports whether requests with this method are protected. Those that are
// named are so in every spelling: a browser's fetch sends "patch" as it stands in the
// page, and many an API takes it for PATCH.
func (c *Config) protects(method string) bool {
	if len(c.Methods) > 0 {
		return slices.ContainsFunc(c.Methods, func(m string) bool { return strings.EqualFold(m, method) })
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return false
	}
	return true
}

// ParseOutcome returns the outcome that a word of the configuration names.
func ParseOutcome(word string) (keystore.Outcome, error) {
	switch word {
	case "final":
		return keystore.OutcomeFinal, nil
	case "failed":
		return keystore.OutcomeFailed, nil
	case "unknown":
		return keystore.OutcomeUnknown, nil
	}
	return 0, errors.New("must be final, failed or unknown")
}
