//! `version`.

use crate::arguments::{HostOptions, VersionOptions};
use crate::session::Session;
use crate::{Error, output};

/// Shows the plugin's version and that of the host's Kubernetes.
pub(crate) async fn version(host: &HostOptions, options: &VersionOptions) -> Result<(), Error> {
    output::put(&format!("kubectl-yoke v{}\n", env!("CARGO_PKG_VERSION")))?;
    if options.client {
        return Ok(());
    }
    let session = Session::open(host).await?;
    let version = session
        .ask("asking for the host's version", session.client.apiserver_version())
        .await?;
    output::put(&format!("host Kubernetes {}\n", version.git_version))
}
