//! SSH, and the same over HTTPS: the demo tenant's key, and what its clients know of the server.

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
/// Its port for HTTPS.
pub const API_PORT: u16 = 8443;
/// Its name there, which clients find at the node's address.
pub const API_HOST: &str = "ssh.yoke.test";
/// The Secret with its certificate there, and the issuer of that, as the chart is told.
pub const API_SECRET: &str = "yoke-ssh-api";
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

/// The CA of the server's certificate for HTTPS, a fixed output.
pub fn api_certificate(layout: &Layout) -> PathBuf {
    layout.dev().join("ssh/api.crt")
}

/// Notes what the server is known by, once it runs: the key that it has drawn, and the CA of its certificate.
pub async fn write_known(layout: &Layout, network: &Network) -> Result<()> {
    let key = read_secret(layout, HOST_KEY_SECRET, "ssh_host_ed25519_key\\.pub").await?;
    let certificate = read_secret(layout, API_SECRET, "ca\\.crt").await?;
    fs::create_dir_all(layout.dev().join("ssh")).context("making .dev/ssh")?;
    fs::write(api_certificate(layout), certificate).context("writing .dev/ssh/api.crt")?;
    fs::write(known_hosts(layout), format!("{} {key}", network.node_ip())).context("writing .dev/ssh/known_hosts")
}

/// A value of a Secret, whose key is as JSONPath has it.
async fn read_secret(layout: &Layout, name: &str, key: &str) -> Result<String> {
    let output = format!("--output=jsonpath={{.data.{key}}}");
    let args = ["--namespace", NAMESPACE, "get", "secret", name, &output];
    let read = async {
        let encoded = Kubectl::new(layout).command(&args).output().await?;
        let value = BASE64.decode(encoded.trim().as_bytes())?;
        anyhow::Ok(String::from_utf8(value)?)
    };
    read.await.with_context(|| format!("reading the Secret {name}"))
}
