//! SSH: the demo tenant's key, and what its clients know of the server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use data_encoding::BASE64;

use crate::command::Command;
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::network::Network;
use crate::yoke::NAMESPACE;

/// The port of the SSH server, at the node's address.
pub const PORT: u16 = 22;
/// A join line is there when the tenant's cluster knows of it.
const LIMIT: Duration = Duration::from_secs(120);
/// The Secret with the host key, as the chart calls it.
const HOST_KEY_SECRET: &str = "yoke-ssh-host-key";

/// The demo tenant's private key, a fixed output.
pub fn demo_key(layout: &Layout) -> PathBuf {
    layout.dev().join("ssh/demo")
}

/// What the server's key is, in OpenSSH's form, a fixed output.
pub fn known_hosts(layout: &Layout) -> PathBuf {
    layout.dev().join("ssh/known_hosts")
}

/// The line of the demo tenant's `.pub` file. The key is drawn once.
pub async fn make_demo_key(layout: &Layout) -> Result<String> {
    let key = demo_key(layout);
    let public = key.with_extension("pub");
    // The public half is written last.
    if !public.exists() {
        let _ = fs::remove_file(&key);
        fs::create_dir_all(layout.dev().join("ssh")).context("making .dev/ssh")?;
        Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "demo", "-f"])
            .arg(&key)
            .run()
            .await
            .context("drawing the demo tenant's SSH key")?;
    }
    let line = fs::read_to_string(&public).with_context(|| format!("reading {}", public.display()))?;
    Ok(line.trim().to_owned())
}

/// OpenSSH's client, with words for the server from whoever has this key.
pub fn command(layout: &Layout, network: &Network, key: &Path, words: &[&str]) -> Command {
    let known_hosts = format!("UserKnownHostsFile={}", known_hosts(layout).display());
    let own = [
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        &known_hosts,
    ];
    Command::new("ssh")
        // What people have configured for themselves is nothing for the stack.
        .args(["-F", "none", "-i"])
        .arg(key)
        .args(own.iter().flat_map(|option| ["-o", option]))
        .arg(format!("ssh://{}:{PORT}", network.node_ip()))
        .args(words)
        .limit(LIMIT)
}

/// Notes the server's key, once the server has drawn it.
pub async fn write_known_hosts(layout: &Layout, network: &Network) -> Result<()> {
    let output = "--output=jsonpath={.data.ssh_host_ed25519_key\\.pub}";
    let args = ["--namespace", NAMESPACE, "get", "secret", HOST_KEY_SECRET, output];
    let encoded = Kubectl::new(layout)
        .command(&args)
        .output()
        .await
        .context("reading the SSH server's public key")?;
    let key = BASE64
        .decode(encoded.trim().as_bytes())
        .context("decoding the SSH server's public key")?;
    let key = String::from_utf8(key).context("decoding the SSH server's public key")?;
    fs::create_dir_all(layout.dev().join("ssh")).context("making .dev/ssh")?;
    fs::write(known_hosts(layout), format!("{} {key}", network.node_ip())).context("writing .dev/ssh/known_hosts")
}
