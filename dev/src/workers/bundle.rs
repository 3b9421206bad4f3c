//! Packs the bundle of a worker, in the form that `yoke-worker` reads: the stack's programs, images
//! of them, and their digests.
//!
//! ```text
//!   .dev/bin, Debian's containerd and runc ──links──▶ .dev/bundle/…        ─┐
//!   images.rs ──one archive each──▶ .dev/bundle/images/*.tar                ├─sha256sum─▶ .dev/bundle/SHA256SUMS
//! ```

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use yoke_supervisor::programs::find_program;

use crate::command::Command;
use crate::files::link;
use crate::images;
use crate::images::contents::stamp;
use crate::layout::Layout;
use crate::recipes::{Made, go};
use crate::releases;

/// Kubelets of other versions are added if the stack has them. A worker that follows an upgrade
/// takes the one with its version.
const KUBELET: &str = "kubelet";
/// Programs in `.dev/bin`.
const BUILT: &[&str] = &[KUBELET, "ctr", "bridge", "host-local", "loopback", "portmap"];
/// Programs of Debian packages.
const INSTALLED: &[&str] = &["containerd", "containerd-shim-runc-v2", "runc"];
/// File that records what the bundle was made of.
const STAMP: &str = ".stamp";

/// Makes the bundle, unless the existing one was made of the same programs.
pub(super) async fn make(layout: &Layout) -> Result<Made> {
    let mut programs = Vec::new();
    for name in BUILT {
        programs.push(((*name).to_owned(), layout.binary(name)));
    }
    for release in go::other_releases() {
        let kubelet = layout.binary(&releases::to_binary(KUBELET, release));
        if kubelet.exists() {
            programs.push((format!("{KUBELET}-v{release}"), kubelet));
        }
    }
    for name in INSTALLED {
        let path = find_program(name).with_context(|| format!("{name} is not installed"))?;
        programs.push(((*name).to_owned(), path));
    }
    let images = images::plan_for_workers(layout).await?;
    let sources = programs.iter().map(|(_, path)| path);
    let stamp = stamp(sources.chain(images.iter().flat_map(images::PlannedImage::paths)))?;
    let folder = layout.bundle();
    if fs::read_to_string(folder.join(STAMP)).is_ok_and(|made_of| made_of == stamp) {
        return Ok(Made::Cached);
    }
    let partial = folder.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(partial.join("images")).with_context(|| format!("creating {}", partial.display()))?;
    let mut names = Vec::new();
    for (name, path) in &programs {
        // The program may be a symbolic link.
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
    fs::write(partial.join(STAMP), stamp).context("marking the bundle as complete")?;
    let _ = fs::remove_dir_all(&folder);
    fs::rename(&partial, &folder).with_context(|| format!("storing {}", folder.display()))?;
    Ok(Made::Built)
}
