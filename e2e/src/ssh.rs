//! Runs OpenSSH's clients with a Tenant's key.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;
use yoke_api::TenantSpec;
use yoke_api::tenant::SshKey;

use crate::command::{Output, run};
use crate::stack::Stack;
use crate::tenant::READY_LIMIT;

/// A key that was generated for a test.
#[derive(Debug)]
pub struct Key {
    /// Path of the private key.
    pub path: PathBuf,
    public: String,
    _files: tempfile::TempDir,
}

impl Key {
    /// Generates a key.
    pub async fn generate() -> Result<Self> {
        let files = tempfile::tempdir().context("making a folder")?;
        let path = files.path().join("key");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path);
        run(keygen, Duration::from_secs(10)).await?.ok()?;
        let public = std::fs::read_to_string(path.with_extension("pub")).context("reading a public key")?;
        Ok(Self {
            path,
            public,
            _files: files,
        })
    }

    /// Spec of a Tenant with this key, named `test`.
    pub fn to_spec(&self) -> TenantSpec {
        TenantSpec {
            ssh_keys: vec![SshKey {
                name: "test".into(),
                public_key: self.public.trim().into(),
            }],
            ..TenantSpec::default()
        }
    }
}

/// Runs a command of the SSH server, with a private key.
pub async fn ssh(stack: &Stack, key: &Path, line: &str) -> Result<Output> {
    let mut command = Command::new("ssh");
    command.args(options(stack, key));
    command.arg(format!("ssh://{}", stack.var("YOKE_SSH")?)).arg(line);
    run(command, READY_LIMIT + Duration::from_secs(30)).await
}

/// Copies a file from the SSH server, with a private key.
pub async fn scp(stack: &Stack, key: &Path, file: &str, to: &Path) -> Result<Output> {
    let mut command = Command::new("scp");
    command.args(options(stack, key));
    command.arg(format!("scp://{}/{file}", stack.var("YOKE_SSH")?)).arg(to);
    run(command, Duration::from_secs(60)).await
}

/// OpenSSH options for this key.
fn options(stack: &Stack, key: &Path) -> Vec<String> {
    let known_hosts = stack.dir.join("ssh/known_hosts");
    let options = [
        format!("UserKnownHostsFile={}", known_hosts.display()),
        "StrictHostKeyChecking=yes".into(),
        "IdentitiesOnly=yes".into(),
        "IdentityAgent=none".into(),
        format!("IdentityFile={}", key.display()),
    ];
    let none = ["-F".to_owned(), "none".to_owned()];
    none.into_iter()
        .chain(options.into_iter().flat_map(|option| ["-o".to_owned(), option]))
        .collect()
}
