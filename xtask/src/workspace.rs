//! Reads the workspace from `cargo metadata`. No other module runs cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    /// Folder of the workspace manifest.
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    /// The members of the workspace, with their dependencies as written in the manifests.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// A dependency of a member.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `dev` or `build`; `None` for a normal dependency.
    pub(crate) kind: Option<String>,
    /// Set if the dependency is a crate of this workspace.
    pub(crate) path: Option<PathBuf>,
}

/// A library, binary, test or build script.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    /// `lib`, `bin`, `test`, `bench`, `example` or `custom-build`.
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
}

impl Workspace {
    /// Reads the workspace of this crate, without network access.
    pub(crate) fn load() -> Result<Self> {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
        ask(Path::new(manifest), &["--no-deps"])
    }
}

/// Runs `cargo metadata` for a manifest, without network access.
pub(crate) fn ask<T: DeserializeOwned>(manifest: &Path, arguments: &[&str]) -> Result<T> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .args(arguments)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata says")
}
