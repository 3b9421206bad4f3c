#!/bin/sh
# Builds and runs the xDS client: `client.sh [arguments of the program: see main.go]`. Needs go. Without arguments it only
# builds, into CONTRACT_CACHE (by default ~/.cache/yoke/contract).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${CONTRACT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/yoke/contract}
export GOTOOLCHAIN=local

mkdir -p "$cache"
go build -C "$here" -o "$cache/xds-client" .
[ $# -eq 0 ] || exec "$cache/xds-client" "$@"
