#!/bin/sh
# Runs Kubernetes' own storage tests against kine-nats, unchanged but for the package that starts the server.
#
#   storage-suite.sh [etcd3] [cacher] [-- arguments for the test binaries]
#
# Needs nats-server in YOKE_BIN or PATH, kine-nats in KINE_NATS or target/debug, and go. Builds in CONTRACT_CACHE
# (by default ~/.cache/yoke/contract), so that a second run does not build.
set -eu

version=${APISERVER_VERSION:-v0.35.4}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${CONTRACT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/yoke/contract}/$version
PATH=${YOKE_BIN:+$YOKE_BIN:}$PATH
KINE_NATS=${KINE_NATS:-$root/target/debug/kine-nats}
export GOTOOLCHAIN=local KINE_NATS

suites=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    suites="$suites $1"
    shift
done
[ "${1:-}" != -- ] || shift
suites=${suites:-etcd3 cacher}

for program in nats-server go "$KINE_NATS"; do
    command -v "$program" >/dev/null || { echo "storage-suite: $program not found" >&2; exit 2; }
done

module=$cache/apiserver
if [ ! -e "$module/.whole" ]; then
    rm -rf "$module"
    mkdir -p "$cache/get"
    [ -e "$cache/get/go.mod" ] || (cd "$cache/get" && go mod init contract >/dev/null 2>&1)
    source=$(cd "$cache/get" && go mod download -json "k8s.io/apiserver@$version" | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p')
    cp -r "$source" "$module"
    chmod -R u+w "$module"
    touch "$module/.whole"
fi
if ! cmp -s "$here/testserver.go" "$module/pkg/storage/etcd3/testserver/test_server.go"; then
    cp "$here/testserver.go" "$module/pkg/storage/etcd3/testserver/test_server.go"
    rm -f "$cache"/*.test
fi
for suite in $suites; do
    [ -e "$cache/$suite.test" ] && continue
    (cd "$module" && go test -mod=mod -c -o "$cache/$suite.test" "./pkg/storage/$suite")
done

work=$(mktemp -d)
nats=
finish() {
    # It may write until it has ended.
    [ -z "$nats" ] || { kill "$nats" && wait "$nats"; } 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
cat >"$work/nats.conf" <<CONF
listen: 127.0.0.1:-1
ports_file_dir: "$work"
max_payload: 8MB
jetstream { store_dir: "$work/jetstream", max_file_store: 4TB, sync_interval: always }
CONF
nats-server -c "$work/nats.conf" >"$work/nats.log" 2>&1 &
nats=$!
tries=0
until ports=$(cat "$work"/*.ports 2>/dev/null) && [ -n "$ports" ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { cat "$work/nats.log" >&2; exit 2; }
    sleep 0.1
done
KINE_NATS_URL=nats://$(echo "$ports" | tr -d ' \n' | sed 's/.*"nats":\["nats:\/\/\([^"]*\)".*/\1/')
export KINE_NATS_URL

status=0
for suite in $suites; do
    # The tests of etcd3 count gauges of the whole process: one at a time. Those of cacher want to be parallel.
    parallel=
    [ "$suite" != etcd3 ] || parallel=-test.parallel=1
    log=$cache/$suite.log
    result=ok
    (cd "$module/pkg/storage/$suite" && "$cache/$suite.test" -test.v $parallel -test.timeout 2h "$@") >"$log" 2>&1 || result=FAILED
    passed=$(grep -a -c '^--- PASS' "$log" || true)
    failed=$(grep -a -c '^--- FAIL' "$log" || true)
    echo "storage-suite: $suite $version: $result, $passed passed, $failed failed ($log)"
    # As many as there are, unless some were chosen: a suite that runs nothing proves nothing.
    case "$* $suite" in
    *-test.run*) least=1 ;;
    *etcd3) least=74 ;;
    *) least=143 ;;
    esac
    if [ "$passed" -lt $least ]; then
        echo "storage-suite: $suite: fewer than $least passed" >&2
        status=1
    fi
    if [ "$result" != ok ]; then
        status=1
        grep -a -E '^ *--- FAIL|^panic' "$log" | head -20
    fi
done
exit $status
