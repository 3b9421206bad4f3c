//! A network namespace in which every address of a network is local.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};

/// The network of the control planes. RFC 2544 reserves it for benchmarks.
pub const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// The host's own address.
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Prefix length of [`NETWORK`].
const PREFIX: u8 = 15;

/// Runs a benchmark in the sandbox. `work` returns the future of the benchmark.
///
/// Outside the sandbox, this starts the program again in a new network namespace, in place of the
/// current process.
pub fn run<F: Future<Output = Result<()>>>(work: impl FnOnce() -> F) -> Result<()> {
    if !is_inside() {
        return enter();
    }
    yoke_runtime::install_crypto();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(work())
}

fn is_inside() -> bool {
    TcpListener::bind((HOST, 0)).is_ok()
}

fn enter() -> Result<()> {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = format!(r#"ip link set lo up && ip address add {HOST}/{PREFIX} dev lo && exec "$0" "$@""#);
    command.args(["--net", "--", "sh", "-c", &script]);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
    Err(command.exec()).context("making a network namespace")
}
