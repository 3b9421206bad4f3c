//! Paths in the worker's folder. Pure.
//!
//! ```text
//!  /var/lib/yoke-worker/
//!    worker.json      state of the worker: its cluster, its Node's name, its options
//!    upgrade.json     state of a kubelet upgrade, while one is in progress
//!    sysctls.json     kernel settings from before the worker
//!    bin/ images/     copies from the bundle
//!    former/          the same of the previous worker, until another token is admitted
//!    config/          files of containerd, CNI and the kubelet, written at each start
//!    pki/             the CAs, the kubelet's certificates, and the WireGuard key of the Pod network
//!    containerd/ kubelet/ cni/ logs/    data of these programs
//! ```

use std::path::{Path, PathBuf};

/// Longest path of a worker's folder. A unix socket path has at most 107 characters, and this is
/// the longest socket path below the folder.
const ROOT_MAX: usize = 107 - "/containerd/state/containerd.sock.ttrpc".len();

/// Paths of one worker's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    root: PathBuf,
}

/// The path cannot be a worker's folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The path is relative, or has characters that a configuration file would need to quote.
    #[error("{0:?} is not an absolute path of ASCII letters, digits, `/`, `-`, `_` and `.`")]
    Path(PathBuf),
    /// The path is too long for the unix sockets below it.
    #[error("{0:?} is longer than {ROOT_MAX} characters")]
    Long(PathBuf),
}

impl Layout {
    /// Validates `root`. Its path is written into files of four formats, so it must not have a
    /// character that any of them quotes.
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

    /// State of a kubelet upgrade in progress.
    pub(crate) fn upgrade(&self) -> PathBuf {
        self.root.join("upgrade.json")
    }

    /// Lock that `run`, `join` and `leave` take.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Kernel settings from before the worker.
    pub(crate) fn sysctls(&self) -> PathBuf {
        self.root.join("sysctls.json")
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    pub(crate) fn binary(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// Copy of this program, which systemd starts.
    pub(crate) fn own_program(&self) -> PathBuf {
        self.binary("yoke-worker")
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// Programs and images of the previous worker.
    pub(crate) fn previous(&self) -> PathBuf {
        self.root.join("former")
    }

    pub(crate) fn containerd_config(&self) -> PathBuf {
        self.root.join("config/containerd.toml")
    }

    pub(crate) fn kubelet_config(&self) -> PathBuf {
        self.root.join("config/kubelet.json")
    }

    /// Folder where containerd looks for a CNI configuration. The descriptions of
    /// `spec.addons.podNetwork` name it, and [`Self::bin`], for a cluster's own CNI plugin.
    pub(crate) fn cni_config(&self) -> PathBuf {
        self.root.join("config/cni")
    }

    /// CNI configuration of the built-in Pod network. Exists once that network does.
    pub(crate) fn network_config(&self) -> PathBuf {
        self.cni_config().join("10-yoke-worker.conflist")
    }

    pub(crate) fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.root.join("config/bootstrap.kubeconfig")
    }

    /// Written by the kubelet after it has a certificate.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("config/kubelet.kubeconfig")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// Newest client certificate of the kubelet, with its key.
    pub(crate) fn client_certificate(&self) -> PathBuf {
        self.pki().join("kubelet-client-current.pem")
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.pki().join("ca.crt")
    }

    pub(crate) fn client_ca(&self) -> PathBuf {
        self.pki().join("client-ca.crt")
    }

    /// WireGuard key of the Pod network.
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

    /// Addresses that the IPAM plugin has assigned to Pods.
    pub(crate) fn addresses(&self) -> PathBuf {
        self.root.join("cni")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn pod_logs(&self) -> PathBuf {
        self.root.join("logs/pods")
    }

    /// Replacements for folders of the machine that some programs write to regardless of
    /// configuration: see [`crate::sandbox`].
    pub(crate) fn replacements(&self) -> PathBuf {
        self.root.join("usual")
    }

    /// Returns the path in the worker's folder that is mounted over `usual` in a sandbox.
    pub(crate) fn replacement(&self, usual: &str) -> PathBuf {
        self.replacements().join(usual.trim_start_matches('/'))
    }

    /// Folders that must exist before anything starts.
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
