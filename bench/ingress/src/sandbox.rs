//! A network namespace in which every address of a network is local.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};

/// The network of the control planes, with the prefix length `PREFIX`. RFC 2544 reserves it for
/// benchmarks.
pub(crate) const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// The host's own address.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PREFIX: u8 = 15;

/// Whether this process runs in the sandbox.
pub(crate) fn is_inside() -> bool {
    TcpListener::bind((HOST, 0)).is_ok()
}

/// Runs the current command again in a new network namespace, in place of this process.
pub(crate) fn enter() -> Result<()> {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = format!(r#"ip link set lo up && ip address add {HOST}/{PREFIX} dev lo && exec "$0" "$@""#);
    command.args(["--net", "--", "sh", "-c", &script]);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
    Err(command.exec()).context("making a network namespace")
}
