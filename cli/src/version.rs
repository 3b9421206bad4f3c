//! `version`: shows the versions of the plugin and of the host.

use k8s_openapi::apimachinery::pkg::version::Info;
use serde::Serialize;

use crate::arguments::{DataFormat, HostOptions, VersionOptions};
use crate::session::Session;
use crate::{Error, output};

/// The fields of `kubectl version -o json` that the plugin knows.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client_version: ClientVersion,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_version: Option<Info>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClientVersion {
    git_version: &'static str,
}

/// Shows the version of the plugin and of the host's Kubernetes. The plugin's version is shown even
/// if the host cannot be reached.
pub(crate) async fn version(host: &HostOptions, options: &VersionOptions) -> Result<(), Error> {
    let server = if options.client {
        None
    } else {
        Some(fetch_server_version(host).await)
    };
    let (server, failure) = match server.transpose() {
        Ok(server) => (server, None),
        Err(error) => (None, Some(error)),
    };
    let versions = Versions {
        client_version: ClientVersion {
            git_version: concat!("v", env!("CARGO_PKG_VERSION")),
        },
        server_version: server,
    };
    output::put(&match options.output {
        Some(DataFormat::Json) => output::to_json(&versions)?,
        Some(DataFormat::Yaml) => output::to_yaml(&versions)?,
        None => to_text(&versions),
    })?;
    failure.map_or(Ok(()), Err)
}

async fn fetch_server_version(host: &HostOptions) -> Result<Info, Error> {
    let session = Session::open(host).await?;
    session
        .request("getting the host's version", || session.client.apiserver_version())
        .await
}

fn to_text(versions: &Versions) -> String {
    let mut text = format!("kubectl-yoke {}\n", versions.client_version.git_version);
    if let Some(server) = &versions.server_version {
        text += &format!("host Kubernetes {}\n", server.git_version);
    }
    text
}
