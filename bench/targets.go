package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The targets by their names, as the results show them.
const (
	plainCaddy   = "reverse_proxy"
	staticCaddy  = "respond"
	gatewayRedis = "gateway on Redis"
	gatewayBolt  = "gateway on bolt"
	minimalRedis = "minimal handler"
	plainFiber   = "Fiber proxy"
	fiberRedis   = "Fiber idempotency"
	plainNode    = "Node proxy"
	nodeRedis    = "node-idempotency"
)

// lab is everything that is started for a run.
type lab struct {
	options
	dir      string
	upstream *process
	redis    map[string]*process // by target
	targets  map[string]*process
	admins   map[string]string // addresses of the gateways' admin endpoints
	configs  int
}

func newLab(ctx context.Context, o options) (*lab, error) {
	caddy, err := filepath.Abs(o.caddy)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(caddy); err != nil {
		return nil, fmt.Errorf("%w (make build makes it)", err)
	}
	o.caddy = caddy
	dir, err := os.MkdirTemp("", "bench-*")
	if err != nil {
		return nil, err
	}
	l := &lab{
		options: o, dir: dir,
		redis: make(map[string]*process), targets: make(map[string]*process), admins: make(map[string]string),
	}
	self, err := os.Executable()
	if err == nil {
		l.upstream, err = startSaying("upstream", dir, self, roleUpstream)
	}
	for _, name := range []string{gatewayRedis, minimalRedis, fiberRedis, nodeRedis} {
		if err == nil {
			l.redis[name], err = startRedis(ctx, "redis-"+strings.ReplaceAll(name, " ", "-"), dir, o.appendOnly)
		}
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) close() {
	for _, p := range l.targets {
		p.stop()
	}
	for _, p := range l.redis {
		p.stop()
	}
	if l.upstream != nil {
		l.upstream.stop()
	}
	_ = os.RemoveAll(l.dir)
}

// target returns a target, which is started if it does not run.
func (l *lab) target(ctx context.Context, name string) (*process, error) {
	if p := l.targets[name]; p != nil {
		return p, nil
	}
	p, err := l.start(ctx, name)
	if err != nil {
		return nil, err
	}
	l.targets[name] = p
	return p, nil
}

func (l *lab) start(ctx context.Context, name string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log := strings.ReplaceAll(name, " ", "-")
	switch name {
	case plainFiber:
		return startSaying(log, l.dir, self, roleFiber, "-upstream", l.upstream.addr)
	case fiberRedis:
		return startSaying(log, l.dir, self, roleFiber, "-upstream", l.upstream.addr, "-redis", "redis://"+l.redis[name].addr)
	case plainNode, nodeRedis:
		dir, err := nodeModules(ctx)
		if err != nil {
			return nil, err
		}
		args := []string{filepath.Join(dir, "server.js"), l.upstream.addr}
		if name == nodeRedis {
			args = append(args, "redis://"+l.redis[name].addr)
		}
		return startSaying(log, l.dir, "node", args...)
	}
	caddy := l.caddy
	if name == minimalRedis {
		if caddy, err = l.buildMinimal(ctx); err != nil {
			return nil, err
		}
	}
	return l.startCaddy(ctx, name, log, caddy, l.caddyfileOf(name))
}

// stop ends a target, so that the next one of its name begins with nothing.
func (l *lab) stop(name string) {
	if p := l.targets[name]; p != nil {
		p.stop()
		delete(l.targets, name)
	}
	_ = os.Remove(l.boltFile())
}

func (l *lab) boltFile() string { return filepath.Join(l.dir, "jobs.db") }

// proxy has as many idle connections as there are clients: Caddy's default of 32
// would make it connect anew all the time, and everything look alike.
func (l *lab) proxy() string {
	return "\treverse_proxy " + l.upstream.addr + " {\n\t\ttransport http {\n\t\t\tkeepalive_idle_conns_per_host 1024\n\t\t}\n\t}\n"
}

// caddyfileOf is what a target's site does.
func (l *lab) caddyfileOf(name string) string {
	proxy := l.proxy()
	store := ""
	switch name {
	case staticCaddy:
		var b strings.Builder
		for _, size := range []int{small, medium, large} {
			fmt.Fprintf(&b, "\thandle /answer/%d {\n\t\theader Content-Type application/json\n\t\trespond `%s`\n\t}\n", size, tail[:size])
		}
		return b.String()
	case plainCaddy:
		return proxy
	case minimalRedis:
		return "\tminimal_idempotency redis://" + l.redis[name].addr + "\n" + proxy
	case gatewayRedis:
		store = "redis redis://" + l.redis[name].addr
	case gatewayBolt:
		store = "bolt " + l.boltFile()
	}
	return l.protected(store, proxy)
}

// gatewayOn is the site of a gateway on a store.
func (l *lab) gatewayOn(store string) string { return l.protected(store, l.proxy()) }

func (l *lab) protected(store, proxy string) string {
	more := strings.ReplaceAll(l.options.options, ";", "\n")
	return "\tidempotency {\n\t\tstore " + store + "\n\t\towner shared\n" + more + "\n\t}\n" + proxy
}

func (l *lab) startCaddy(ctx context.Context, name, log, caddy, site string) (*process, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	admin, err := freePort()
	if err != nil {
		return nil, err
	}
	l.admins[name] = admin
	l.configs++
	file := filepath.Join(l.dir, fmt.Sprintf("%d.Caddyfile", l.configs))
	config := "{\n\tadmin " + admin + "\n\tauto_https off\n\tpersist_config off\n}\nhttp://" + addr + " {\n" + site + "}\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return startListening(ctx, log, l.dir, addr, caddy, "run", "--config", file, "--adapter", "caddyfile")
}

// buildMinimal builds the Caddy that has the minimal handler, as xcaddy would, so that
// the build cache has most of it.
func (l *lab) buildMinimal(ctx context.Context) (program string, err error) {
	program = filepath.Join(l.dir, "minimal")
	build := exec.CommandContext(ctx, "go", "build", "-C", "minimal", "-trimpath", "-tags=nobadger,nomysql,nopgx", "-ldflags=-s -w", "-o", program, ".") //nolint:gosec // what to build is ours
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the minimal handler: %w: %s", err, out)
	}
	return program, nil
}

// nodeModules installs what the Node application needs, unless it is there.
func nodeModules(ctx context.Context) (dir string, err error) {
	if dir, err = filepath.Abs("node"); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "server.js")); err != nil {
		return "", fmt.Errorf("%w (bench has to be run in its own folder)", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err == nil {
		return dir, nil
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--prefer-offline")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %s", err, out)
	}
	return dir, nil
}

// ask asks the upstream for something.
func (l *lab) ask(ctx context.Context, what string) (c counted, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.upstream.addr+"/"+what, http.NoBody)
	if err != nil {
		return c, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, &c)
	}
	return c, err
}
