//! Installs Debian packages, and checks what the computer must provide.

use anyhow::{Result, bail};
use yoke_supervisor::programs::find_program;

use crate::command::Command;

/// Program that indicates an installed package, and the package.
const PACKAGES: &[(&str, &str)] = &[
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("ipset", "ipset"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("python3", "python3"),
    // For tests: a TLS client that shows the server's certificate, an HTTP client, and kill(1).
    ("openssl", "openssl"),
    ("curl", "curl"),
    ("kill", "procps"),
    // SSH clients, for tests and for people; and a terminal for tests.
    ("ssh", "openssh-client"),
    ("tmux", "tmux"),
    // The usual supervisor of workers. Tests run it beside this computer's own instance.
    ("systemd-analyze", "systemd"),
];

/// Installs the missing packages and returns their names.
pub async fn install() -> Result<Vec<&'static str>> {
    let mut missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !Command::new("python3")
        .args(["-m", "pip", "--version"])
        .succeeds()
        .await
    {
        missing.push("python3-pip");
    }
    if missing.is_empty() {
        return Ok(missing);
    }
    apt(&["update", "--quiet"]).await?;
    let mut args = vec!["install", "--quiet", "--yes", "--no-install-recommends"];
    args.extend(&missing);
    apt(&args).await?;
    Ok(missing)
}

async fn apt(args: &[&str]) -> Result<()> {
    Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run()
        .await
        .map_err(Into::into)
}

/// Checks what the stack cannot install by itself.
pub fn check_prerequisites() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the development stack creates network namespaces, mounts and control groups: run it as root");
    }
    if find_program("apt-get").is_none() {
        bail!("apt-get is missing: the development stack needs Debian 12");
    }
    Ok(())
}
