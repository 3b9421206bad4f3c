#!/bin/sh
# Builds and runs a foreign xDS client: `client.sh [arguments of the program: see main.go]`. Wants go; without arguments it
# only builds, in CONTRACT_CACHE (by default ~/.cache/yoke/contract).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${CONTRACT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/yoke/contract}
export GOTOOLCHAIN=local

mkdir -p "$cache"
go build -C "$here" -o "$cache/xds-client" .
[ $# -eq 0 ] || exec "$cache/xds-client" "$@"
