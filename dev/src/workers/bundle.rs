//! What a worker is made of, as `yoke-worker` reads it: the stack's own programs, images made of them, and their digests.
//!
//! ```text
//!   .dev/bin, Debian's containerd and runc ──links──▶ .dev/bundle/…        ─┐
//!   images.rs ──one archive each──▶ .dev/bundle/images/*.tar                ├─sha256sum─▶ .dev/bundle/SHA256SUMS
//! ```

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::command::Command;
use crate::host_cluster::find_program;
use crate::images;
use crate::layout::Layout;
use crate::recipes::{Made, link};

/// In `.dev/bin`.
const BUILT: &[&str] = &["kubelet", "ctr", "bridge", "host-local", "loopback", "portmap"];
/// Debian's.
const INSTALLED: &[&str] = &["containerd", "containerd-shim-runc-v2", "runc"];
/// Where it is kept what the bundle was made of.
const STAMP: &str = ".stamp";

/// Makes the bundle, unless there is one of the programs as they are.
pub(super) async fn make(layout: &Layout) -> Result<Made> {
    let mut programs = Vec::new();
    for name in BUILT {
        programs.push((*name, layout.binary(name)));
    }
    for name in INSTALLED {
        let path = find_program(name).with_context(|| format!("{name} is not installed"))?;
        programs.push((*name, path));
    }
    let images = images::plan_for_workers(layout).await?;
    let sources = programs.iter().map(|(_, path)| path);
    let stamp = images::stamp(sources.chain(images.iter().flat_map(images::Plan::paths)))?;
    let folder = layout.bundle();
    if fs::read_to_string(folder.join(STAMP)).is_ok_and(|made_of| made_of == stamp) {
        return Ok(Made::Cached);
    }
    let partial = folder.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(partial.join("images")).with_context(|| format!("making {}", partial.display()))?;
    let mut names = Vec::new();
    for (name, path) in &programs {
        // What is found may be a link itself.
        let path = path.canonicalize().with_context(|| format!("finding {name}"))?;
        link(&path, &partial.join(name))?;
        names.push(PathBuf::from(name));
    }
    for image in &images {
        let name = PathBuf::from(format!("images/{}.tar", image.binary));
        image.write(&partial.join(&name)).await?;
        names.push(name);
    }
    let sums = Command::new("sha256sum").args(&names).dir(&partial).output().await?;
    fs::write(partial.join("SHA256SUMS"), sums).context("writing the bundle's digests")?;
    fs::write(partial.join(STAMP), stamp).context("completing the bundle")?;
    let _ = fs::remove_dir_all(&folder);
    fs::rename(&partial, &folder).with_context(|| format!("keeping {}", folder.display()))?;
    Ok(Made::Built)
}
