// Command minimal is a Caddy with the least that can be called idempotency: a handler
// that asks Redis once before a request is passed on, and once after. The benchmarks
// have it to show what two round trips cost by themselves.
//
// It is not safe. It takes the same key for the same request, whatever is in it; an
// execution ends with its client, and leaves its key claimed; a claim has no lease, so
// that the record of a process that dies stays in the way; and a result can be written
// over another one.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/redis/go-redis/v9"
)

const (
	directive = "minimal_idempotency"
	retention = 24 * time.Hour // as the gateway's
	claimed   = "claimed"
)

// claim and commit are a script each. What is there is told by the claim.
var (
	claim = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return false end
return redis.call('GET', KEYS[1])`)
	commit = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1`)
)

func main() {
	caddy.RegisterModule(new(handler))
	httpcaddyfile.RegisterHandlerDirective(directive, func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		m := new(handler)
		err := m.UnmarshalCaddyfile(h.Dispenser)
		return m, err
	})
	httpcaddyfile.RegisterDirectiveOrder(directive, httpcaddyfile.Before, "reverse_proxy")
	caddycmd.Main()
}

// handler is the handler. Its setting is the URL of a Redis.
type handler struct {
	URL string `json:"url"`

	client *redis.Client
}

// stored is an answer in Redis.
type stored struct {
	Status int
	Header http.Header
	Body   []byte
}

// CaddyModule implements caddy.Module.
func (*handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers." + directive, New: func() caddy.Module { return new(handler) }}
}

// UnmarshalCaddyfile implements caddyfile.Unmarshaler.
func (h *handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if !d.Next() || !d.AllArgs(&h.URL) {
		return d.ArgErr()
	}
	return nil
}

// Provision implements caddy.Provisioner.
func (h *handler) Provision(caddy.Context) error {
	o, err := redis.ParseURL(h.URL)
	if err != nil {
		return fmt.Errorf("url of the redis: %w", err)
	}
	h.client = redis.NewClient(o)
	return nil
}

// Cleanup implements caddy.CleanerUpper.
func (h *handler) Cleanup() error { return h.client.Close() }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		return next.ServeHTTP(w, r)
	}
	keys := []string{"minimal:" + key}
	found, err := claim.Run(r.Context(), h.client, keys, claimed, retention.Milliseconds()).Text()
	switch {
	case err == nil:
		return replay(w, found)
	case !errors.Is(err, redis.Nil):
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	var body bytes.Buffer
	recorder := caddyhttp.NewResponseRecorder(w, &body, func(int, http.Header) bool { return true })
	if err := next.ServeHTTP(recorder, r); err != nil {
		return err
	}
	answer, err := json.Marshal(stored{recorder.Status(), recorder.Header(), body.Bytes()})
	if err != nil {
		return err
	}
	if err := commit.Run(r.Context(), h.client, keys, claimed, answer, retention.Milliseconds()).Err(); err != nil {
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	return recorder.WriteResponse()
}

// replay answers with what was found.
func replay(w http.ResponseWriter, found string) error {
	if found == claimed {
		w.WriteHeader(http.StatusConflict)
		return nil
	}
	var answer stored
	if err := json.Unmarshal([]byte(found), &answer); err != nil {
		return caddyhttp.Error(http.StatusInternalServerError, err)
	}
	maps.Copy(w.Header(), answer.Header)
	w.Header().Set("Idempotent-Replayed", "true")
	w.WriteHeader(answer.Status)
	_, err := w.Write(answer.Body)
	return err
}

// Interface guards
var (
	_ caddy.Provisioner           = (*handler)(nil)
	_ caddy.CleanerUpper          = (*handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*handler)(nil)
)
