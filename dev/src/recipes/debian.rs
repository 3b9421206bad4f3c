//! Debian packages, and what must be on the machine before anything else.

use anyhow::{Result, bail};

use crate::command::Command;
use crate::host_cluster::find_program;

/// Program that shows that a package is there, and the package.
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
    // For the tests: a TLS client that shows what it was given, a client of HTTP, and kill(1).
    ("openssl", "openssl"),
    ("curl", "curl"),
    ("kill", "procps"),
    // The clients of the SSH server: in its tests, and of people.
    ("ssh", "openssh-client"),
];

/// The oldest Go that builds the modules.
const GO_MIN: (u32, u32) = (1, 26);

/// Installs the packages that are missing and returns their names.
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
pub async fn check_prerequisites() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the development stack makes network namespaces, mounts and control groups, and so must run as root");
    }
    if find_program("apt-get").is_none() {
        bail!("there is no apt-get here: the development stack is made for Debian 12");
    }
    let Ok(version) = Command::new("go").arg("version").output().await else {
        bail!(
            "Go {}.{} or newer is needed and no `go` is on the PATH; see https://go.dev/dl",
            GO_MIN.0,
            GO_MIN.1
        );
    };
    match parse_go_version(&version) {
        Some(found) if found >= GO_MIN => Ok(()),
        _ => bail!(
            "Go {}.{} or newer is needed; this is {}",
            GO_MIN.0,
            GO_MIN.1,
            version.trim()
        ),
    }
}

/// `go version go1.26.8 linux/amd64` is 1.26.
fn parse_go_version(text: &str) -> Option<(u32, u32)> {
    let version = text.split_whitespace().nth(2)?.strip_prefix("go")?;
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
    Some((major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_compared_as_numbers() {
        let table = [
            ("release", "go version go1.26.8 linux/amd64", Some((1, 26))),
            ("candidate", "go version go1.27rc1 linux/amd64", Some((1, 27))),
            ("not a number", "go version devel +abc linux/amd64", None),
        ];
        for (rule, text, expected) in table {
            assert_eq!(parse_go_version(text), expected, "{rule}");
        }
        assert!((1, 9) < GO_MIN, "as text it would not be");
    }
}
