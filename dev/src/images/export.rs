//! Writes the images of this workspace's binaries to files, to push to a registry.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::contents::{Contents, WORKER_BINARY, build};
use super::{OWN, digests, worker};
use crate::layout::Layout;
use crate::recipes::rust::{self, Profile};
use crate::workers;

/// Writes the images of this workspace's binaries to `.dev/images` as OCI archives that registry
/// tools can read. Returns the files, and the digests of `yoke-worker` for the chart.
pub async fn export(layout: &Layout, profile: Profile) -> Result<(Vec<PathBuf>, BTreeMap<String, String>)> {
    let built = rust::build(layout, profile).await?;
    let folder = layout.dev().join("images");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut files = Vec::new();
    let bundle = workers::pack(layout).await?;
    for (repository, binary) in OWN.iter().chain([&worker::IMAGE]) {
        let path = built.join(binary);
        let image = match *binary {
            WORKER_BINARY => worker::build(path, &bundle).await?,
            _ => build(binary, &Contents::find(binary, path).await?).await?,
        };
        let name = repository.rsplit('/').next().unwrap_or(repository);
        let archive = image
            .to_archive(&[format!("{repository}:{}", env!("CARGO_PKG_VERSION"))])
            .with_context(|| format!("packing the image of {binary}"))?;
        let file = folder.join(format!("{name}.tar"));
        fs::write(&file, archive).with_context(|| format!("writing {}", file.display()))?;
        files.push(file);
    }
    Ok((files, digests(&built.join(WORKER_BINARY))?))
}
