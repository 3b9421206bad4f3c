//! Reads the version of a kubelet.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use yoke_api::KubernetesVersion;
use yoke_supervisor::programs::PATH;

use super::BundleError;
use crate::error::Error;

const VERSION_LIMIT: Duration = Duration::from_secs(30);

/// Runs a kubelet to read its version.
pub(crate) async fn read_kubelet_version(kubelet: &Path) -> Result<KubernetesVersion, Error> {
    let mut command = Command::new(kubelet);
    command
        .arg("--version")
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output_text = match tokio::time::timeout(VERSION_LIMIT, command.output()).await {
        Ok(output) => String::from_utf8_lossy(&output.map_err(Error::Start)?.stdout).into_owned(),
        Err(_) => String::new(),
    };
    Ok(parse_version(&output_text)?)
}

/// Parses `Kubernetes v1.35.4`, the output of `kubelet --version`.
fn parse_version(output_text: &str) -> Result<KubernetesVersion, BundleError> {
    let wrong = || BundleError::Version(output_text.chars().take(80).collect());
    let version = output_text.trim().strip_prefix("Kubernetes ").ok_or_else(wrong)?;
    KubernetesVersion::parse_build(version).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_tells_its_version() {
        for (output_text, version) in [
            ("Kubernetes v1.35.4\n", Some("v1.35.4")),
            ("Kubernetes v1.35.4+k3s1\n", Some("v1.35.4")),
            ("Kubernetes v1.35.4-eks-1\n", Some("v1.35.4")),
            ("v1.35.4", None),
            ("", None),
        ] {
            let found = parse_version(output_text).ok().map(|version| version.to_string());
            assert_eq!(found.as_deref(), version, "{output_text:?}");
        }
    }
}
