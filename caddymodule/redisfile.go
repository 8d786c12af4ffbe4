package caddymodule

import (
	"math"
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile sets up the store from Caddyfile tokens:
//
//	redis [<url>] [{
//		address           <host:port...>
//		sentinel          <master>
//		sentinel_username <name>
//		sentinel_password {env.<name>}|{file.<path>}
//		cluster
//		username          <name>
//		password          {env.<name>}|{file.<path>}
//		database          <number>
//		pool_size         <number>
//		pipelining        on|off
//		timeout           <duration>
//		key_prefix        <prefix>
//		client_name       <name>
//		tls [{
//			ca            <file>
//			cert          <file>
//			key           <file>
//			server_name   <name>
//		}]
//		durability {
//			replicas      <number>
//			timeout       <duration>
//			fsync
//		}
//	}]
func (s *RedisStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	start := *d
	args := d.RemainingArgs()
	if len(args) > 1 {
		return d.Errf("store redis: takes one URL and nothing else on its line; write `store redis redis://host:6379` or `store redis {env.REDIS_URL}`, and the rest into its block")
	}
	if len(args) == 1 {
		s.URL = args[0]
		if err := s.check(); err != nil {
			return d.WrapErr(err)
		}
	}
	p := newParser("store redis", nil, d)
	p.options = s.fileOptions()
	if err := p.block(); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return start.WrapErr(err)
	}
	return nil
}

// fileOptions are those of the store's block.
func (s *RedisStore) fileOptions() map[string]option {
	return map[string]option{
		"address": func(p *parser) (err error) {
			s.Addresses, err = p.args(1, math.MaxInt, "<host:port...>")
			return err
		},
		"sentinel":          func(p *parser) error { return p.text("<master>", &s.sentinel().Master) },
		"sentinel_username": func(p *parser) error { return p.text("<name>", &s.sentinel().Username) },
		"sentinel_password": func(p *parser) error { return p.password(&s.sentinel().Password) },
		"cluster":           func(p *parser) error { return p.flag(&s.Cluster) },
		"username":          func(p *parser) error { return p.text("<name>", &s.Username) },
		"password":          func(p *parser) error { return p.password(&s.Password) },
		"database":          func(p *parser) error { return p.number(0, &s.Database) },
		"pool_size":         func(p *parser) error { return p.number(1, &s.PoolSize) },
		"pipelining":        func(p *parser) error { return p.pipelining(&s.Pipelining) },
		"timeout":           func(p *parser) error { return p.duration(&s.Timeout) },
		"key_prefix":        func(p *parser) error { return p.text("<prefix>", &s.KeyPrefix) },
		"client_name":       func(p *parser) error { return p.text("<name>", &s.ClientName) },
		"tls": func(p *parser) error {
			s.TLS = new(RedisTLS)
			return p.within("store redis: tls", map[string]option{
				"ca":          func(p *parser) error { return p.text("<file>", &s.TLS.CA) },
				"cert":        func(p *parser) error { return p.text("<file>", &s.TLS.Cert) },
				"key":         func(p *parser) error { return p.text("<file>", &s.TLS.Key) },
				"server_name": func(p *parser) error { return p.text("<name>", &s.TLS.ServerName) },
			})
		},
		"durability": func(p *parser) error {
			s.Durability = new(RedisDurability)
			return p.within("store redis: durability", map[string]option{
				"replicas": func(p *parser) error { return p.number(1, &s.Durability.Replicas) },
				"timeout":  func(p *parser) error { return p.duration(&s.Durability.Timeout) },
				"fsync":    func(p *parser) error { return p.flag(&s.Durability.Fsync) },
			})
		},
	}
}

func (s *RedisStore) sentinel() *RedisSentinel {
	if s.Sentinel == nil {
		s.Sentinel = new(RedisSentinel)
	}
	return s.Sentinel
}

// within reads the block of an option that takes nothing else.
func (p *parser) within(name string, options map[string]option) error {
	if _, err := p.args(0, 0, "{ … }"); err != nil {
		return err
	}
	block := newParser(name, p.h, p.d)
	block.options = options
	return block.block()
}

func (p *parser) text(usage string, setting *string) error {
	args, err := p.args(1, 1, usage)
	if err == nil {
		*setting = args[0]
	}
	return err
}

// password does not show what was given where it should not have been.
func (p *parser) password(setting *string) error {
	name := p.d.Val()
	args := p.d.RemainingArgs()
	if len(args) != 1 || !secretPlaceholder.MatchString(args[0]) {
		return p.wrong(name, nil, "takes one placeholder, and not the secret itself, which would be shown with the configuration; %s", howToGiveSecrets)
	}
	*setting = args[0]
	return nil
}

func (p *parser) number(least int, setting *int) error {
	name := p.d.Val()
	args, err := p.args(1, 1, "<number>")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < least {
		return p.wrong(name, args, "not a number from %d on; write one such as %d", least, max(least, 1))
	}
	*setting = n
	return nil
}

var _ caddyfile.Unmarshaler = (*RedisStore)(nil)

const (
	pipeliningOn  = "on"
	pipeliningOff = "off"
)

// pipelining reads whether commands share round trips.
func (p *parser) pipelining(setting *string) error {
	args, err := p.args(1, 1, "on|off")
	if err != nil {
		return err
	}
	if args[0] != pipeliningOn && args[0] != pipeliningOff {
		return p.wrong("pipelining", args, "must be on or off")
	}
	*setting = args[0]
	return nil
}
