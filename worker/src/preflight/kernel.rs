//! Checks of the kernel. Pure.

use super::facts::{Facts, Filter};
use super::row::Row;

/// Minimum for kube-proxy's nftables mode: <https://kep.k8s.io/3866>, as of 1.33.
const VERSION_MIN: (u32, u32) = (5, 13);

pub(super) fn inspect_kernel(facts: &Facts) -> Row {
    const CHECK: &str = "kernel";
    let Some((major, minor)) = facts.kernel else {
        return Row::warning(CHECK, "cannot read the version", "mount /proc");
    };
    if (major, minor) < VERSION_MIN {
        let found = format!("{major}.{minor}; kube-proxy needs 5.13 for its nftables mode");
        return Row::warning(
            CHECK,
            found,
            "boot a newer kernel, or configure kube-proxy to use iptables",
        );
    }
    if !facts.nf_tables {
        let found = format!("{major}.{minor} without nf_tables, which kube-proxy needs for its nftables mode");
        let to_do = "modprobe nf_tables, and write `nf_tables` to /etc/modules-load.d/yoke-worker.conf; or configure kube-proxy \
                     to use iptables";
        return Row::warning(CHECK, found, to_do);
    }
    Row::ok(CHECK, format!("{major}.{minor} with nf_tables"))
}

pub(super) fn inspect_overlay(overlay: bool) -> Row {
    if overlay {
        Row::ok("overlayfs", "available")
    } else {
        let to_do = "modprobe overlay, and write `overlay` to /etc/modules-load.d/yoke-worker.conf";
        Row::failed("overlayfs", "not loaded", to_do)
    }
}

pub(super) fn inspect_forward(forward: Option<bool>) -> Row {
    const CHECK: &str = "forwarding";
    let to_do =
        "sysctl -w net.ipv4.ip_forward=1, and write `net.ipv4.ip_forward = 1` to /etc/sysctl.d/90-yoke-worker.conf";
    match forward {
        Some(true) => Row::ok(CHECK, "on"),
        // The bridge plugin enables forwarding for the first Pod. The warning is about a setting
        // that disables it again later.
        Some(false) => Row::warning(CHECK, "off until the first Pod starts", to_do),
        None => Row::failed(CHECK, "net.ipv4.ip_forward cannot be read", "boot a kernel with IPv4"),
    }
}

pub(super) fn inspect_bridge(filter: Option<bool>) -> Row {
    const CHECK: &str = "bridge filter";
    let need = "Pods need it to reach a Service with an endpoint on the same node";
    match filter {
        Some(true) => Row::ok(CHECK, "on"),
        Some(false) => Row::warning(
            CHECK,
            "net.bridge.bridge-nf-call-iptables is 0",
            format!("sysctl -w net.bridge.bridge-nf-call-iptables=1: {need}"),
        ),
        None => Row::warning(
            CHECK,
            "br_netfilter is not loaded; the worker will try to load it",
            format!("if that fails, modprobe br_netfilter: {need}"),
        ),
    }
}

pub(super) fn inspect_filter(nft: &Filter) -> Row {
    const CHECK: &str = "packet filter";
    match nft {
        Filter::Works => Row::ok(CHECK, "nftables"),
        Filter::Missing => Row::failed(CHECK, "nft is not installed", "install the package nftables"),
        Filter::Refused(why) => Row::failed(CHECK, why.clone(), "modprobe nf_tables, or boot a kernel that has it"),
    }
}

pub(super) fn inspect_tun(tun: bool) -> Row {
    const CHECK: &str = "tun";
    if tun {
        Row::ok(CHECK, "available")
    } else {
        let to_do = "modprobe tun, and write `tun` to /etc/modules-load.d/yoke-worker.conf; a container needs the device \
                     /dev/net/tun: tunnels to other workers use it";
        Row::failed(CHECK, "/dev/net/tun cannot be opened", to_do)
    }
}

pub(super) fn inspect_uplink(uplink: &Result<(), String>, needed: bool) -> Row {
    const CHECK: &str = "own network";
    let to_do = "modprobe veth, nf_nat, nft_chain_nat, nft_masq, nft_redir and nft_fib_inet, or boot a kernel that has them: \
                 `run --rm` needs them for the worker's own network";
    match uplink {
        Ok(()) => Row::ok(CHECK, "veth and address translation work"),
        Err(why) if needed => Row::failed(CHECK, why.clone(), to_do),
        Err(why) => Row::warning(CHECK, why.clone(), to_do),
    }
}
