# The targets are explained by: make help

# The flags with which xcaddy builds, so that builds and tests share one cache.
FLAGS := -trimpath -tags=nobadger,nomysql,nopgx

SOURCES := go.mod go.sum xcaddy.sh $(shell find caddymodule keystore proxy ! -name '*_test.go' \( -name '*.go' -o -name '*.lua' \))

# The linters are a module of their own.
TOOL := go tool -modfile=tools/go.mod

.PHONY: help run build test lint bench bench-quick bench-growth clean needed

help: ## say what there is
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

run: caddy ## run Caddyfile.example in the foreground, on port 8080
	./caddy run --config Caddyfile.example

build: caddy ## build ./caddy with the module of this checkout

caddy: $(SOURCES)
	./xcaddy.sh

# In the environment, so that what tests build is built the same way.
test: export GOFLAGS := $(GOFLAGS) $(FLAGS)

# The race detector needs cgo, which needs a C compiler.
test: needed ## run all tests, with the race detector where there is a C compiler
	@if command -v "$$(go env CC)" >/dev/null; then \
		export CGO_ENABLED=1; race=-race; \
	else \
		export CGO_ENABLED=0; race=; \
		echo "make: there is no C compiler: the tests run without the race detector" >&2; \
	fi; \
	set -x; go vet ./... && go test $$race -timeout 30m ./... && \
	go -C e2e/browser vet ./... && go -C e2e/browser test -timeout 30m ./...

# How long each set-up is under fire, and which; what faults are drawn from (0: another
# seed each time), how often a primary is killed, and how many clients there are.
FOR ?= 10m
SETUPS ?= standalone sentinel cluster bolt
SEED ?= 0
KILLS ?= 30
CLIENTS ?= 64

chaos: export GOFLAGS := $(GOFLAGS) $(FLAGS)

chaos: needed ## storms of faults on every kind of store, one after the other: FOR=10m SETUPS="standalone sentinel cluster bolt" SEED=0 KILLS=30
	go test ./e2e -run '^TestChaos' -count 1 -parallel 1 -timeout 0 -v -args -chaos.for $(FOR) -chaos.setups "$(SETUPS)" -chaos.seed $(SEED) -chaos.kills $(KILLS) -chaos.clients $(CLIENTS)

# The servers are installed without being started: the tests run servers of their
# own. The name of php-fpm has PHP's version in it on many systems.
needed:
	@for program in redis-server curl node npm python3 php-fpm spin promtool gcc chromium; do \
		command -v $$program >/dev/null && continue; \
		case $$program in php-fpm) ls /usr/sbin/php-fpm* >/dev/null 2>&1 && continue ;; \
			chromium) command -v google-chrome >/dev/null && continue ;; esac; \
		package=$$program; \
		case $$program in node) package=nodejs ;; promtool) package=prometheus ;; gcc) package="gcc libc6-dev" ;; esac; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "make: installing $$package, which the tests need" >&2; \
			apt-get -qq update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $$package || exit 1; \
		else \
			echo "make: $$package is missing, which the tests need: install the package of that name (redis-server is named redis on some systems)" >&2; \
			exit 1; \
		fi; \
	done

lint: caddy ## check formatting and run the linters
	@unformatted="$$($(TOOL) gofumpt -l .)"; \
	if [ -n "$$unformatted" ]; then \
		echo "make: not formatted as gofumpt does it:" >&2; echo "$$unformatted" >&2; exit 1; \
	fi
	$(TOOL) golangci-lint run
	./caddy fmt --diff Caddyfile.example >/dev/null || { ./caddy fmt --diff Caddyfile.example; exit 1; }

# In its own folder, with its own module: what it needs, the product does not.
bench: caddy needed ## measure side by side with peers, for docs/benchmarks.md (15 minutes)
	cd bench && go run . -page ../docs/benchmarks.md

bench-quick: caddy needed ## the same in three minutes, for a look only
	cd bench && go run . -quick

bench-growth: caddy needed ## measure how costs grow with what is stored and what waits (15 minutes, 8 GB of memory)
	cd bench && go run . -growth

clean: ## remove what was built
	rm -f caddy
