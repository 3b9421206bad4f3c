//! Builds this workspace's binaries.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::Command;
use crate::files::{copy, make_executable, same_file};
use crate::layout::Layout;

/// Package and binary of each.
pub const BINARIES: &[(&str, &str)] = &[
    ("yoke-operator", "yoke-operator"),
    ("yoke-ingress-xds", "yoke-ingress-xds"),
    ("yoke-ssh-ui", "yoke-ssh-ui"),
    ("yoke-kine-nats", "kine-nats"),
    ("yoke-kine-nats", "yoke-launch"),
    ("yoke-cli", "kubectl-yoke"),
    ("yoke-worker", "yoke-worker"),
];

/// Cargo profile of this workspace's binaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Fast to build.
    Dev,
    /// Fast to run, for measurements.
    Release,
}

/// Builds all binaries in one cargo run and copies changed ones into `.dev/bin`. Returns how many
/// changed.
pub async fn make(layout: &Layout, profile: Profile) -> Result<usize> {
    let built = build(layout, profile).await?;
    let changed = install(layout, &built, BINARIES.iter().map(|(_, binary)| *binary))?;
    install_completion(layout).await?;
    Ok(changed)
}

/// Builds all binaries. Returns the folder with the results.
pub async fn build(layout: &Layout, profile: Profile) -> Result<PathBuf> {
    let (name, folder) = match profile {
        Profile::Dev => ("dev", "debug"),
        Profile::Release => ("release", "release"),
    };
    let mut command = Command::new("cargo").args(["build", "--bins", "--profile", name]);
    for (package, _) in BINARIES {
        command = command.args(["--package", package]);
    }
    command
        .dir(layout.root())
        .run()
        .await
        .context("building this workspace's binaries")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| layout.root().join("target"), Into::into);
    Ok(target.join(folder))
}

/// Installs the script that kubectl runs to complete arguments of the plugin.
async fn install_completion(layout: &Layout) -> Result<()> {
    let script = Command::new(layout.binary("kubectl-yoke"))
        .args(["completion", "kubectl"])
        .output()
        .await
        .context("generating kubectl's completion script with the plugin")?;
    let file = layout.binary("kubectl_complete-yoke");
    fs::write(&file, script).with_context(|| format!("writing {}", file.display()))?;
    make_executable(&file)
}

/// Installs a copy of this program, which the supervisor runs. Returns true if the program changed.
pub fn install_self(layout: &Layout) -> Result<bool> {
    let own = std::env::current_exe().context("finding this program's own binary")?;
    let installed = layout.binary("yoke-dev");
    if own == installed || same_file(&own, &installed) {
        return Ok(false);
    }
    fs::create_dir_all(layout.bin()).context("creating .dev/bin")?;
    copy(&own, &installed).context("installing yoke-dev")?;
    Ok(true)
}

fn install<'a>(layout: &Layout, built: &Path, binaries: impl Iterator<Item = &'a str>) -> Result<usize> {
    fs::create_dir_all(layout.bin()).context("creating .dev/bin")?;
    let mut changed = 0;
    for binary in binaries {
        let (built, installed) = (built.join(binary), layout.binary(binary));
        if !same_file(&built, &installed) {
            // A copy: cargo may overwrite its own file while a process runs from this one.
            copy(&built, &installed).with_context(|| format!("installing {binary}"))?;
            changed += 1;
        }
    }
    Ok(changed)
}
