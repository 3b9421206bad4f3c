#!/usr/bin/env bash
# Runs a command with a Cluster of its own, and an ephemeral worker for its Pods on this machine.
# Needs kubectl-yoke and yoke-worker on PATH, a kubeconfig of the host for a subject of the Tenant, and root for the worker.
#
# usage: run.sh TENANT COMMAND [ARGUMENT…]
set -euo pipefail
tenant=$1
shift
export tenant
# In `run`, KUBECONFIG is the new Cluster's, and YOKE_CLUSTER its name. The host's kubeconfig makes the join token.
export HOST_KUBECONFIG=${KUBECONFIG:?a kubeconfig of the host}
exec kubectl yoke run -n "$tenant" --ttl 1h -- bash -euo pipefail -c '
    token=$(kubectl --kubeconfig "$HOST_KUBECONFIG" yoke join "$YOKE_CLUSTER" -n "$tenant" --reap-after 5m | grep -o "yoke1\.[A-Za-z0-9_-]*" | head -1)
    printf "%s" "$token" | sudo yoke-worker run --rm - &
    worker=$!
    trap "sudo kill $worker; wait $worker || true" EXIT
    until kubectl wait node --all --for=condition=Ready --timeout=60s; do sleep 2; done
    "$@"
' run "$@"
