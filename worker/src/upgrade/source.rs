//! Copies a kubelet of another version from the worker's bundle, as the bundle is now.

use std::fs;
use std::path::{Path, PathBuf};

use yoke_api::KubernetesVersion;

use super::record::{NEXT, PREVIOUS, sync};
use crate::bundle::{self, BundleError, kubelet_version};
use crate::error::Error;
use crate::host::files::{self, FileError};
use crate::layout::Layout;
use crate::root::{self, RootError};

/// The reason why the kubelet is not available.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("cannot use the bundle {}", .0.display())]
    Root(PathBuf, #[source] RootError),
    #[error("cannot use the bundle {}", .0.display())]
    Bundle(PathBuf, #[source] BundleError),
    #[error("cannot use the bundle's kubelet")]
    Program(#[source] Box<Error>),
    #[error("the bundle {} has no kubelet {version}: add it as kubelet-{version}, with a line in SHA256SUMS", bundle.display())]
    Missing {
        bundle: PathBuf,
        version: KubernetesVersion,
    },
    #[error("cannot copy the kubelet")]
    Copy(#[source] std::io::Error),
    #[error("cannot remove the kubelet of an earlier upgrade")]
    Folder(#[source] FileError),
}

/// Installs the kubelet of this version as `kubelet.next`: the one that the bundle names by this
/// version, or its only one.
pub(super) async fn stage(layout: &Layout, bundle: &Path, version: KubernetesVersion) -> Result<(), SourceError> {
    let staged = try_stage(layout, bundle, version).await;
    if staged.is_err() {
        // A partial file is of no use: the next attempt copies again.
        let _ = fs::remove_file(layout.binary(NEXT));
    }
    staged
}

async fn try_stage(layout: &Layout, bundle: &Path, version: KubernetesVersion) -> Result<(), SourceError> {
    // The kubelet of an earlier upgrade is not the previous one of this upgrade.
    files::remove(&layout.binary(PREVIOUS)).map_err(SourceError::Folder)?;
    let (from, to) = (bundle.to_owned(), layout.binary(NEXT));
    // A blocking task, because it hashes and writes a hundred megabytes.
    let copied = tokio::task::spawn_blocking(move || copy(&from, &to, version));
    copied.await.map_err(|error| SourceError::Copy(error.into()))??;
    sync(&layout.bin()).map_err(SourceError::Folder)?;
    let reported = kubelet_version::read_kubelet_version(&layout.binary(NEXT)).await;
    match reported {
        Ok(reported) if reported == version => Ok(()),
        Ok(_) => Err(SourceError::Missing {
            bundle: bundle.to_owned(),
            version,
        }),
        Err(error) => Err(SourceError::Program(Box::new(error))),
    }
}

fn copy(bundle: &Path, to: &Path, version: KubernetesVersion) -> Result<(), SourceError> {
    // The bundle was chosen long ago. Another user may own the folder by now and have written files
    // and digests.
    let bundle = root::find_owned(bundle).map_err(|error| SourceError::Root(bundle.to_owned(), error))?;
    let failed = |error| SourceError::Bundle(bundle.clone(), error);
    let sums = bundle::read_sums(&bundle).map_err(failed)?;
    let (name, digest) = bundle::find_kubelet(&sums, version).expect("one without a kubelet is none");
    // An earlier copy may be incomplete.
    let _ = fs::remove_file(to);
    bundle::copy(&bundle.join(name), to, 0o755, name, digest).map_err(failed)
}
