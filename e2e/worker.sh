#!/usr/bin/env bash
# A worker behind NAT, for tests: containerd and kubelet in a network that only leads out. All else are Pods.
#
#   host node (its network namespace) 192.0.2.1 ══ 192.0.2.2 NAT 10.200.0.1 ══ 10.200.0.2 worker ── Pods, 10.200.1.0/24
#
# usage: worker.sh FOLDER IMAGE..., with the environment of .dev/env
#
# FOLDER holds `kubeconfig`, `client-ca.crt`, `kubelet.crt` and `kubelet.key` (for 10.200.0.2), and gets all else; the images
# are copied from the host node. It runs until SIGTERM, and takes along what it made; what a killed one left, but for two
# network namespaces, goes with it, and those go with the next.
set -euo pipefail
folder=$1
shift
nat=$YOKE_NETNS-nat
worker=$YOKE_NETNS-worker
link=yoke-e2e-nat

# The stack's control group in each hierarchy. What is below it goes with `make down`, too.
groups() {
    find /sys/fs/cgroup -maxdepth 2 -type d -name "$YOKE_NETNS"
}

clean() {
    ip -n "$YOKE_NETNS" link delete "$link" 2>/dev/null || true
    ip netns delete "$nat" 2>/dev/null || true
    ip netns delete "$worker" 2>/dev/null || true
    for group in $(groups); do
        find "$group/worker" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
}

finish() {
    [ -z "${node:-}" ] || { kill -9 "$node" && wait "$node"; } 2>/dev/null || true
    # What was killed takes a moment to be gone.
    sleep 1
    clean
}

clean
trap finish EXIT
trap 'exit 0' TERM INT

for group in $(groups); do
    for part in "$group/worker" "$group/worker/node" "$group/worker/pods"; do
        mkdir -p "$part"
        # Version 1 takes no process before these are told.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$part/$file" ] || cat "$part/../$file" > "$part/$file"
        done
    done
done

ip netns add "$nat"
ip netns add "$worker"
ip link add "$link" netns "$YOKE_NETNS" type veth peer name wan0 netns "$nat"
ip link add eth0 netns "$worker" type veth peer name lan0 netns "$nat"
ip -n "$YOKE_NETNS" address add 192.0.2.1/30 dev "$link"
ip -n "$nat" address add 192.0.2.2/30 dev wan0
ip -n "$nat" address add 10.200.0.1/24 dev lan0
ip -n "$worker" address add 10.200.0.2/24 dev eth0
ip -n "$YOKE_NETNS" link set "$link" up
for device in lo wan0 lan0; do ip -n "$nat" link set "$device" up; done
for device in lo eth0; do ip -n "$worker" link set "$device" up; done
ip -n "$nat" route add default via 192.0.2.1
ip -n "$worker" route add default via 10.200.0.1
nsenter --net="/run/netns/$nat" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
nsenter --net="/run/netns/$nat" nft -f - <<'RULES'
table ip nat {
    chain out { type nat hook postrouting priority 100; oifname wan0 masquerade; }
    chain forward { type filter hook forward priority 0; iifname wan0 ct state established,related accept; iifname wan0 drop; }
}
RULES

mkdir -p "$folder/cni"
# Cluster DNS asks there what it does not know itself; nobody answers.
echo "nameserver 10.200.0.1" > "$folder/resolv.conf"
cat > "$folder/containerd.toml" <<CONFIG
version = 2
root = "$folder/root"
state = "$folder/state"
temp = "$folder/tmp"

[plugins."io.containerd.internal.v1.opt"]
  path = "$folder/opt"

[grpc]
  address = "$folder/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "registry.k8s.io/pause:3.10"
  stream_server_address = "127.0.0.1"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$YOKE_BIN"
    conf_dir = "$folder/cni"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "$folder/runc"
CONFIG
cat > "$folder/cni/10-worker.conflist" <<CONFIG
{"cniVersion": "1.0.0", "name": "worker", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "ipam": {
    "type": "host-local", "dataDir": "$folder/ipam", "ranges": [[{"subnet": "10.200.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
cat > "$folder/kubelet.json" <<CONFIG
{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
 "address": "10.200.0.2",
 "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": "$folder/client-ca.crt"}},
 "authorization": {"mode": "Webhook"},
 "tlsCertFile": "$folder/kubelet.crt", "tlsPrivateKeyFile": "$folder/kubelet.key",
 "containerRuntimeEndpoint": "unix://$folder/containerd.sock",
 "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local", "podLogsDir": "$folder/pods", "volumePluginDir": "$folder/volume-plugins", "resolvConf": "$folder/resolv.conf",
 "failCgroupV1": false, "failSwapOn": false, "cgroupDriver": "cgroupfs", "cgroupRoot": "/$YOKE_NETNS/worker/pods",
 "enforceNodeAllocatable": [], "imageGCHighThresholdPercent": 100,
 "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "0%"}}
CONFIG

# In process and mount namespaces of its own, so that one kill ends all, mounts included.
start_node() {
    for usual in /run/containerd /var/lib/kubelet /var/lib/cni /var/log/containers; do
        mkdir -p "$usual"
        mount -t tmpfs tmpfs "$usual"
    done
    containerd --config "$folder/containerd.toml" > "$folder/containerd.log" 2>&1 &
    local own=(ctr --address "$folder/containerd.sock" --namespace k8s.io)
    until "${own[@]}" version > /dev/null 2>&1; do sleep 0.2; done
    ctr --address "$CONTAINERD_ADDRESS" --namespace k8s.io images export "$folder/images.tar" "$@"
    "${own[@]}" images import "$folder/images.tar"
    exec "$YOKE_BIN/kubelet" --config="$folder/kubelet.json" --kubeconfig="$folder/kubeconfig" --root-dir="$folder/kubelet" \
        --hostname-override=worker --node-ip=10.200.0.2
}
export -f start_node
export folder

(
    for group in $(groups); do echo "$BASHPID" > "$group/worker/node/cgroup.procs"; done
    exec setpriv --pdeathsig KILL nsenter --net="/run/netns/$worker" \
        unshare --mount --pid --fork --kill-child --mount-proc bash -c 'set -euo pipefail; start_node "$@"' bash "$@"
) > "$folder/node.log" 2>&1 &
node=$!
wait "$node"
