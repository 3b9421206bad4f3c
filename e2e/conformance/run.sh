#!/bin/sh
# Runs Kubernetes' end-to-end tests that need no node, against a cluster and through the ingress:
#
#   run.sh KUBECONFIG [arguments of the tests: -ginkgo.focus=TEXT, …]
#
# skipped.txt lists the tests to skip, with reasons. This needs kubectl in YOKE_BIN or PATH, and go. It builds in
# CONTRACT_CACHE (by default ~/.cache/yoke/contract), where it also leaves the complete output.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${CONTRACT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/yoke/contract}
PATH=${YOKE_BIN:+$YOKE_BIN:}$PATH
export GOTOOLCHAIN=local

[ $# -gt 0 ] || { echo "usage: run.sh KUBECONFIG [arguments of the tests]" >&2; exit 2; }
kubeconfig=$(realpath "$1")
shift
for program in kubectl go; do
    command -v "$program" >/dev/null || { echo "conformance: $program not found" >&2; exit 2; }
done
mkdir -p "$cache"
(cd "$here" && go test -c -o "$cache/conformance.test" .)

label='(sig-api-machinery || sig-auth) && Feature: isEmpty && !Flaky && !Disruptive'
skip=$(grep -v -e '^#' -e '^$' "$here/skipped.txt" | paste -sd '|')
log=$cache/conformance.log
result=0
"$cache/conformance.test" -test.timeout 2h -kubeconfig "$kubeconfig" -kubectl-path "$(command -v kubectl)" -provider skeleton \
    -ginkgo.no-color -ginkgo.label-filter "$label" -ginkgo.skip "$skip" "$@" >"$log" 2>&1 || result=$?
tail -n 30 "$log" | grep -a -E '^(Ran |(SUCCESS|FAIL)! )' || true
if [ $result != 0 ]; then
    grep -a -E '^ *\[FAIL\]|^panic' "$log" | sort -u
    echo "conformance: failed, see $log" >&2
    exit 1
fi
# All tests must have run, or at least one if the caller chose some: an empty run would pass.
passed=$(sed -n 's/^SUCCESS! -- \([0-9]*\) Passed.*/\1/p' "$log")
case "$*" in
*-ginkgo.focus*) least=1 ;;
*) least=135 ;;
esac
[ "${passed:-0}" -ge $least ] || { echo "conformance: only ${passed:-0} tests passed, expected at least $least" >&2; exit 1; }
echo "conformance: $passed passed ($log)"
