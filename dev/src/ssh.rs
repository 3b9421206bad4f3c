//! Access to Yoke's SSH server and its HTTPS API: the demo tenant's key, and the server's public
//! keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use data_encoding::BASE64;

use crate::command::Command;
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::names::NAMESPACE;
use crate::network::Network;

/// Port of the SSH server, at the node's address.
pub const PORT: u16 = 22;
/// Port of its HTTPS API.
pub const API_PORT: u16 = 8443;
/// Host name of its HTTPS API, at the node's address.
pub const API_HOST: &str = "ssh.yoke.test";
/// Name of the Secret with the API's certificate, and of its Issuer. A value of the chart.
pub const API_SECRET: &str = "yoke-ssh-api";
/// Timeout of an SSH command. `join` waits until the tenant's cluster knows the token.
const LIMIT: Duration = Duration::from_secs(120);
/// Secret with the host key, as named by the chart.
const HOST_KEY_SECRET: &str = "yoke-ssh-host-key";

/// Private key of the demo tenant. Users rely on this path.
pub fn demo_key(layout: &Layout) -> PathBuf {
    layout.dev().join("ssh/demo")
}

/// Public key of the server, in OpenSSH's known_hosts format. Users rely on this path.
pub fn known_hosts(layout: &Layout) -> PathBuf {
    layout.dev().join("ssh/known_hosts")
}

/// Returns the content of the demo tenant's `.pub` file. Generates the key on the first call.
pub async fn make_demo_key(layout: &Layout) -> Result<String> {
    let key = demo_key(layout);
    let public = key.with_extension("pub");
    // ssh-keygen writes the public key last.
    if !public.exists() {
        let _ = fs::remove_file(&key);
        fs::create_dir_all(layout.dev().join("ssh")).context("creating .dev/ssh")?;
        Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "demo", "-f"])
            .arg(&key)
            .run()
            .await
            .context("generating the demo tenant's SSH key")?;
    }
    let line = fs::read_to_string(&public).with_context(|| format!("reading {}", public.display()))?;
    Ok(line.trim().to_owned())
}

/// Builds an `ssh` command that sends `words` to the server, authenticated with `key`.
pub fn command(layout: &Layout, network: &Network, key: &Path, words: &[&str]) -> Command {
    let known_hosts = format!("UserKnownHostsFile={}", known_hosts(layout).display());
    let own = [
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        &known_hosts,
    ];
    Command::new("ssh")
        // Ignore the user's own SSH configuration.
        .args(["-F", "none", "-i"])
        .arg(key)
        .args(own.iter().flat_map(|option| ["-o", option]))
        .arg(format!("ssh://{}:{PORT}", network.node_ip()))
        .args(words)
        .limit(LIMIT)
}

/// CA of the HTTPS API's certificate. Users rely on this path.
pub fn api_certificate(layout: &Layout) -> PathBuf {
    layout.dev().join("ssh/api.crt")
}

/// Writes the running server's host key and the CA of its certificate to `.dev/ssh`.
pub async fn write_known(layout: &Layout, network: &Network) -> Result<()> {
    let key = read_secret(layout, HOST_KEY_SECRET, "ssh_host_ed25519_key\\.pub").await?;
    let certificate = read_secret(layout, API_SECRET, "ca\\.crt").await?;
    fs::create_dir_all(layout.dev().join("ssh")).context("creating .dev/ssh")?;
    fs::write(api_certificate(layout), certificate).context("writing .dev/ssh/api.crt")?;
    fs::write(known_hosts(layout), format!("{} {key}", network.node_ip())).context("writing .dev/ssh/known_hosts")
}

/// Reads a value of a Secret. `key` is escaped for JSONPath.
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
