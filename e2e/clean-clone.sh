#!/usr/bin/env bash
# Starts the stack of a clean clone with the existing build cache. Fails if that takes five minutes or more.
set -euo pipefail
limit=300
clone=$(mktemp -d)/yoke
finish() {
    status=$?
    make --no-print-directory -C "$clone" down || status=1
    rm -rf "$(dirname "$clone")"
    exit $status
}
git clone --quiet "$(cd "$(dirname "$0")/.." && pwd)" "$clone"
trap finish EXIT
SECONDS=0
make --no-print-directory -C "$clone" up
echo "a clean clone was up after $SECONDS s"
[ $SECONDS -lt $limit ]
