#!/bin/sh
# Runs etcd's robustness tests against kine-nats: their traffic, model and checks are unchanged; the faults are our own, and
# the stored data is read from our log.
#
#   robustness.sh [arguments of the program: -runs N -seed N -fault NAME -traffic NAME -shape SHAPE]
#
# Needs nats-server in YOKE_BIN or PATH, kine-nats in KINE_NATS or target/debug, and go.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${CONTRACT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/yoke/contract}
PATH=${YOKE_BIN:+$YOKE_BIN:}$PATH
KINE_NATS=${KINE_NATS:-$root/target/debug/kine-nats}
export GOTOOLCHAIN=local KINE_NATS

for program in nats-server go "$KINE_NATS"; do
    command -v "$program" >/dev/null || { echo "robustness: $program not found" >&2; exit 2; }
done
mkdir -p "$cache"
go test -C "$here/robustness" .
go build -C "$here/robustness" -o "$cache/robustness" .
# Only root may mount the small disks; they are removed with the mount namespace.
case $(id -u) in
0) exec unshare --mount "$cache/robustness" "$@" ;;
*) exec "$cache/robustness" "$@" ;;
esac
