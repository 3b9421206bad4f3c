//! Where things are in the worker's folder. Pure.
//!
//! ```text
//!  /var/lib/yoke-worker/
//!    worker.json      what the worker is: of which cluster, under which name
//!    upgrade.json     what is being done about the kubelet's version, if anything is
//!    sysctls.json     what settings of the kernel were before
//!    bin/ images/     copies of the bundle
//!    former/          those of the worker that was there before, until another token has been let in
//!    config/          files of containerd, CNI and the kubelet, written anew at each start
//!    pki/             the CAs, the kubelet's certificates, and the key of the network of Pods
//!    containerd/ kubelet/ cni/ logs/    what these keep
//! ```

use std::path::{Path, PathBuf};

/// A unix socket's path has at most 107 characters, and the longest one is this much below the folder.
const ROOT_MAX: usize = 107 - "/containerd/state/containerd.sock.ttrpc".len();

/// The worker's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    root: PathBuf,
}

/// The folder cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Its path is relative, or has what a configuration file cannot hold.
    #[error("{0:?} is not an absolute path of letters, digits and `/`, `-`, `_`, `.`")]
    Path(PathBuf),
    /// Its path is so long that no socket can be in it.
    #[error("{0:?} is longer than {ROOT_MAX} characters")]
    Long(PathBuf),
}

impl Layout {
    /// The folder `root`. Its path gets into files of four formats, so it has nothing that any of them would quote.
    pub(crate) fn new(root: &Path) -> Result<Self, LayoutError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
        let text = root.to_str().unwrap_or_default();
        let inner = root.components().count() > 1 && !text.split('/').any(|part| part == "..");
        if !root.is_absolute() || !inner || !text.bytes().all(plain) {
            return Err(LayoutError::Path(root.to_owned()));
        }
        if text.len() > ROOT_MAX {
            return Err(LayoutError::Long(root.to_owned()));
        }
        Ok(Self { root: root.to_owned() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("worker.json")
    }

    /// What is being done about the kubelet's version.
    pub(crate) fn upgrade(&self) -> PathBuf {
        self.root.join("upgrade.json")
    }

    /// Held by whoever runs, joins or leaves.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// What the kernel's settings were before the worker.
    pub(crate) fn sysctls(&self) -> PathBuf {
        self.root.join("sysctls.json")
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// This program, as systemd starts it.
    pub(crate) fn own_program(&self) -> PathBuf {
        self.binary("yoke-worker")
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// Programs and images of the worker that was there before.
    pub(crate) fn former(&self) -> PathBuf {
        self.root.join("former")
    }

    pub(crate) fn containerd_config(&self) -> PathBuf {
        self.root.join("config/containerd.toml")
    }

    pub(crate) fn kubelet_config(&self) -> PathBuf {
        self.root.join("config/kubelet.json")
    }

    /// Where containerd looks for a network of Pods. Descriptions of `spec.addons.podNetwork` name it, and [`Self::bin`], for CNI
    /// plugins of a cluster's own.
    pub(crate) fn cni_config(&self) -> PathBuf {
        self.root.join("config/cni")
    }

    /// What Pods are connected by, as soon as it is there.
    pub(crate) fn network_config(&self) -> PathBuf {
        self.cni_config().join("10-yoke-worker.conflist")
    }

    pub(crate) fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.root.join("config/bootstrap.kubeconfig")
    }

    /// Written by the kubelet when it has a certificate.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("config/kubelet.kubeconfig")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// The newest certificate that the kubelet was given to ask with, and its key.
    pub(crate) fn client_certificate(&self) -> PathBuf {
        self.pki().join("kubelet-client-current.pem")
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.pki().join("ca.crt")
    }

    pub(crate) fn client_authority(&self) -> PathBuf {
        self.pki().join("client-ca.crt")
    }

    /// The key of the network of Pods.
    pub(crate) fn wireguard_key(&self) -> PathBuf {
        self.pki().join("wireguard.key")
    }

    pub(crate) fn containerd(&self) -> PathBuf {
        self.root.join("containerd")
    }

    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.containerd().join("state/containerd.sock")
    }

    pub(crate) fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    /// The addresses that Pods have.
    pub(crate) fn addresses(&self) -> PathBuf {
        self.root.join("cni")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn pod_logs(&self) -> PathBuf {
        self.root.join("logs/pods")
    }

    /// What stands for folders of the machine that others write to whatever they are told: see [`crate::boxed`].
    pub(crate) fn usual(&self) -> PathBuf {
        self.root.join("usual")
    }

    /// Every folder that must be there before anything starts.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        vec![
            self.bin(),
            self.images(),
            self.cni_config(),
            self.pki(),
            self.containerd().join("state"),
            self.kubelet(),
            self.addresses(),
            self.pod_logs(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_some_format_would_quote_is_refused() {
        for (root, good) in [
            ("/var/lib/yoke-worker", true),
            ("/srv/a_b.c", true),
            ("var/lib", false),
            ("/", false),
            ("", false),
            ("/a b", false),
            ("/a\"b", false),
            ("/a/../b", false),
            ("/ä", false),
        ] {
            assert_eq!(Layout::new(Path::new(root)).is_ok(), good, "{root:?}");
        }
        let long = format!("/{}", "a".repeat(ROOT_MAX));
        assert!(matches!(Layout::new(Path::new(&long)), Err(LayoutError::Long(_))));
    }
}
