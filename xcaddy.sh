#!/bin/sh
# Builds ./caddy, beside this script, with the module of this checkout: by xcaddy
# where it is installed, otherwise by a temporary main and go build. What is in
# the module cache is not downloaded again, so that it works offline too.
#
#	CADDY_VERSION=v2.x.y   the version of Caddy; default: the one in go.mod
#	OUTPUT=path            where the binary goes; default: ./caddy
set -eu

fail() {
	echo "xcaddy.sh: $*" >&2
	exit 1
}

root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
output=${OUTPUT:-$root/caddy}
case $output in
/*) ;;
*) output=$PWD/$output ;;
esac
cd "$root"

module=$(sed -n 's/^module //p' go.mod)
caddy=github.com/caddyserver/caddy/v2
pinned=$(sed -n "s|^\(require\)\{0,1\}[[:space:]]*$caddy \(v[^ ]*\).*|\2|p" go.mod)
version=${CADDY_VERSION:-$pinned}
needed=$(sed -n 's/^go //p' go.mod)

command -v go >/dev/null || fail "go is missing: install Go $needed or newer, see https://go.dev/dl/"
have=$(go env GOVERSION 2>/dev/null) || have=$(GOTOOLCHAIN=local go env GOVERSION)
have=${have#go}
oldest=$(printf '%s\n%s\n' "$needed" "${have%% *}" | sort -V | head -n 1)
[ "$oldest" = "$needed" ] || fail "go is too old: this is $have, needed is $needed or newer, see https://go.dev/dl/"

# As xcaddy has it, also below: the same flags share the build cache.
export CGO_ENABLED="${CGO_ENABLED:-0}"
tags=nobadger,nomysql,nopgx

download() {
	go mod download || {
		command -v git >/dev/null ||
			echo "xcaddy.sh: git is missing; go needs it for modules that the module proxy does not have" >&2
		fail "the modules in go.mod could not be downloaded"
	}
}

xcaddy=$(command -v xcaddy || true)
[ -n "$xcaddy" ] || xcaddy=$(go env GOPATH)/bin/xcaddy

if [ -x "$xcaddy" ]; then
	if [ "$version" = "$pinned" ]; then
		# xcaddy asks the module proxy for versions of this module too, although
		# it is replaced, and not every proxy's answer lets it go on. All that it
		# needs is in the module cache, checked against go.sum.
		download
		GOPROXY="file://$(go env GOMODCACHE)/cache/download,off"
		GOSUMDB=off
		export GOPROXY GOSUMDB
	fi
	echo "xcaddy.sh: building Caddy $version with $xcaddy" >&2
	exec "$xcaddy" build "$version" --with "$module/caddymodule" --replace "$module=$root" --output "$output"
fi

echo "xcaddy.sh: building Caddy $version with go build (there is no xcaddy)" >&2
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT INT TERM
# The checkout's own list of modules and their sums, so that the binary has what
# the tests have run with.
cp go.mod go.sum "$temporary"
cat >"$temporary/main.go" <<EOF
package main

import (
	caddycmd "$caddy/cmd"
	_ "$caddy/modules/standard"

	_ "$module/caddymodule"
)

func main() { caddycmd.Main() }
EOF
cd "$temporary"
# With a version that is required, go does not look for one.
go mod edit -module=caddy -require="$module@v0.0.0" -replace="$module=$root" -require="$caddy@$version"
if ! go build -mod=mod -trimpath -tags="$tags" -ldflags='-s -w' -o "$output" .; then
	command -v git >/dev/null ||
		echo "xcaddy.sh: git is missing; go needs it for modules that the module proxy does not have" >&2
	fail "the build failed"
fi
