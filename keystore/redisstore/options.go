package redisstore

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// DefaultPrefix begins the name of every key and channel, where
// [Options.Prefix] says nothing else.
const DefaultPrefix = "idempotency:"

// DefaultTimeout is how long one try may take, where [Options.Timeout] says
// nothing else.
const DefaultTimeout = time.Second

// Options says where the records are and how to reach them.
type Options struct {
	// URL is the server's: redis://[user:password@]host[:port][/db],
	// rediss:// for TLS, or unix://[user:password@]/path/to/socket[?db=n].
	// Special characters in user and password are percent-encoded.
	URL string

	// Prefix begins the name of every key and of the channel. Gateways that
	// share records have the same one. Default [DefaultPrefix].
	Prefix string

	// PoolSize is how many connections there are at most. Default ten per CPU
	// that Go uses, and at least 20.
	PoolSize int

	// Timeout is how long one try of a command may take, its connecting
	// included. A call whose context does not end it before can take as many
	// times that as there are tries. Default [DefaultTimeout].
	Timeout time.Duration

	// Resends is how often a command that got no definite answer is sent again
	// before the call fails. Default 2; negative: never.
	Resends int

	// ClientRetries lets the Redis client repeat commands below this package as
	// well. Nothing becomes wrong by it, but the store can no longer say that a
	// write was certainly not applied. Default 0: it does not.
	ClientRetries int
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	switch {
	case o.Resends == 0:
		o.Resends = 2
	case o.Resends < 0:
		o.Resends = 0
	}
	return o
}

// client returns the options of the Redis client.
func (o Options) client() (*redis.Options, error) {
	opt, err := parseURL(o.URL)
	if err != nil {
		return nil, fmt.Errorf("open redis store: %w", err)
	}
	if o.PoolSize > 0 {
		opt.PoolSize = o.PoolSize
	}
	if opt.PoolSize <= 0 {
		opt.PoolSize = max(20, 10*runtime.GOMAXPROCS(0))
	}
	// Version 2 of the protocol says all that is needed here, and spares looking
	// for pushed messages around every command.
	if opt.Protocol == 0 {
		opt.Protocol = 2
	}
	opt.MaxRetries = -1
	if o.ClientRetries > 0 {
		opt.MaxRetries = o.ClientRetries
	}
	opt.ContextTimeoutEnabled = true
	opt.ReadTimeout = o.Timeout
	opt.WriteTimeout = o.Timeout
	// Waiting for a connection and making one have to fail before the try does:
	// then it is known that nothing was sent.
	opt.PoolTimeout = o.Timeout / 2
	opt.DialTimeout = o.Timeout / 2
	opt.DialerRetries = 1
	opt.PipelinePoolSize = -1 // pipelines are rare here: they share the pool
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return opt, nil
}

// CheckURL reports what is wrong with a URL, without saying what is in it: a part
// that was parsed wrongly may be a part of the password.
func CheckURL(url string) error {
	_, err := parseURL(url)
	return err
}

func parseURL(url string) (*redis.Options, error) {
	scheme, _, ok := strings.Cut(url, "://")
	if !ok || (scheme != "redis" && scheme != "rediss" && scheme != "unix") {
		return nil, errors.New("the URL has to begin with redis://, rediss:// (TLS) or unix://; write one such as redis://host:6379")
	}
	opt, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("the URL can't be parsed; write one such as redis://user:password@host:6379/0, " +
			"with special characters in user and password percent-encoded, and no parameters but those of the Redis client")
	}
	return opt, nil
}
