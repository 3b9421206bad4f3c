//! Paths of everything that the development stack creates.
//!
//! A clone owns one folder, `.dev/`. Results that are costly to build and equal for all clones are
//! in the build cache. The name of a clone is a hash of its path. It is part of the name of
//! everything outside the folder: network namespace, control groups, links, CNI network.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// Number of the first node, which also runs the host's control plane.
pub const FIRST_NODE: u8 = 1;

/// The folders of one clone, as seen by one of its nodes.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
    cache: PathBuf,
    id: String,
    node: u8,
}

impl Layout {
    /// The layout of the clone that contains the working directory.
    pub fn discover() -> Result<Self> {
        let start = std::env::current_dir().context("reading the working directory")?;
        let Some(root) = start
            .ancestors()
            .find(|dir| dir.join("dev/go").is_dir() && dir.join("Cargo.toml").is_file())
        else {
            bail!(
                "{} is not inside a clone of Yoke: run this command in one",
                start.display()
            );
        };
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
            .context("no folder for the build cache: set XDG_CACHE_HOME or HOME")?;
        let root = root
            .canonicalize()
            .with_context(|| format!("resolving {}", root.display()))?;
        Ok(Self::new(&root, &cache.join("yoke")))
    }

    /// A layout for the clone at `root` with the build cache at `cache`.
    pub fn new(root: &Path, cache: &Path) -> Self {
        let digest = Sha256::digest(root.as_os_str().as_encoded_bytes());
        let id = data_encoding::HEXLOWER.encode(&digest[..4]);
        Self {
            root: root.to_owned(),
            cache: cache.to_owned(),
            id,
            node: FIRST_NODE,
        }
    }

    /// This clone as seen by another node, which has folders of its own for its state.
    pub fn for_node(&self, number: u8) -> Self {
        Self {
            node: number,
            ..self.clone()
        }
    }

    /// Eight hexadecimal digits that identify this clone on this computer.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Number of the node.
    pub fn node_number(&self) -> u8 {
        self.node
    }

    /// Root folder of the clone.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The build cache, shared by all clones.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// `.dev`.
    pub fn dev(&self) -> PathBuf {
        self.root.join(".dev")
    }

    /// `.dev/nodes`: a folder for each added node.
    pub fn nodes(&self) -> PathBuf {
        self.dev().join("nodes")
    }

    /// Folder of the node's own state: `.dev` for the first node, `.dev/nodes/<number>` for others.
    pub fn node_dir(&self) -> PathBuf {
        match self.node {
            FIRST_NODE => self.dev(),
            number => self.nodes().join(number.to_string()),
        }
    }

    /// `.dev/bin`: every binary of the stack.
    pub fn bin(&self) -> PathBuf {
        self.dev().join("bin")
    }

    /// One binary of the stack.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// `.dev/kubectl`: kubectl's cache of API discovery.
    pub fn kubectl_cache(&self) -> PathBuf {
        self.dev().join("kubectl")
    }

    /// `log` of the node.
    pub fn log(&self) -> PathBuf {
        self.node_dir().join("log")
    }

    /// `run` of the node: sockets, pids, and the services that the supervisor runs.
    pub fn run(&self) -> PathBuf {
        self.node_dir().join("run")
    }

    /// `config` of the node: configuration files of its processes.
    pub fn config(&self) -> PathBuf {
        self.node_dir().join("config")
    }

    /// `pki` of the node: its certificate and key. The first node's folder also has all others of
    /// the host cluster.
    pub fn pki(&self) -> PathBuf {
        self.node_dir().join("pki")
    }

    /// `.dev/nats`: NATS's keys, claims and data.
    pub fn nats(&self) -> PathBuf {
        self.dev().join("nats")
    }

    /// `containerd` of the node: images, snapshots and running containers.
    pub fn containerd(&self) -> PathBuf {
        self.node_dir().join("containerd")
    }

    /// `kubelet` of the node: volumes of its pods.
    pub fn kubelet(&self) -> PathBuf {
        self.node_dir().join("kubelet")
    }

    /// `.dev/bundle`: programs and images of a worker.
    pub fn bundle(&self) -> PathBuf {
        self.dev().join("bundle")
    }

    /// `.dev/workers`: a folder for each worker.
    pub fn workers(&self) -> PathBuf {
        self.dev().join("workers")
    }

    /// Socket of containerd.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run().join("containerd.sock")
    }

    /// Control socket of the supervisor.
    pub fn control_socket(&self) -> PathBuf {
        self.run().join("supervisor.sock")
    }

    /// Kubeconfig of one user of the host cluster.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.config().join(format!("{user}.kubeconfig"))
    }

    /// Kubeconfig of the host's administrator. Users rely on this path.
    pub fn host_kubeconfig(&self) -> PathBuf {
        self.dev().join("host.kubeconfig")
    }

    /// Kubeconfig of the demo tenant cluster. Users rely on this path.
    pub fn demo_kubeconfig(&self) -> PathBuf {
        self.dev().join("demo.kubeconfig")
    }

    /// Shell exports for people and tests. Users rely on this path.
    pub fn env_file(&self) -> PathBuf {
        self.dev().join("env")
    }

    /// Locks the clone, so that one `up` or `down` runs at a time. Closing the file releases the
    /// lock.
    pub fn lock(&self) -> Result<File> {
        std::fs::create_dir_all(self.dev()).context("creating .dev")?;
        let path = self.dev().join("lock");
        let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
        if file.try_lock().is_err() {
            bail!("another `make up` or `make down` of this clone is running: wait until it has finished");
        }
        Ok(file)
    }

    /// Name of the first node's network namespace, of the top control group and of the CNI network.
    /// Other namespaces of the clone have it as a prefix.
    pub fn stack_name(&self) -> String {
        format!("yoke-{}", self.id)
    }

    /// Control group of the node. The first node's group contains the groups of the others.
    pub fn control_group(&self) -> String {
        match self.node {
            FIRST_NODE => self.stack_name(),
            number => format!("{}/node-{number}", self.stack_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clones_have_different_names() {
        let one = Layout::new(Path::new("/home/a/yoke"), Path::new("/c"));
        let two = Layout::new(Path::new("/home/b/yoke"), Path::new("/c"));
        assert_ne!(one.stack_name(), two.stack_name());
        assert_eq!(
            one.stack_name(),
            Layout::new(Path::new("/home/a/yoke"), Path::new("/d")).stack_name()
        );
        assert_eq!(one.stack_name().len(), "yoke-".len() + 8);
    }

    #[test]
    fn a_node_has_its_own_folders_and_shares_what_is_the_same_on_all() {
        let first = Layout::new(Path::new("/y"), Path::new("/c"));
        let second = first.for_node(2);
        assert_eq!(
            second.containerd_socket(),
            Path::new("/y/.dev/nodes/2/run/containerd.sock")
        );
        assert_eq!(second.kubelet(), Path::new("/y/.dev/nodes/2/kubelet"));
        assert_eq!(first.for_node(FIRST_NODE).pki(), Path::new("/y/.dev/pki"));
        assert_eq!(second.bin(), first.bin());
        assert_eq!(second.host_kubeconfig(), first.host_kubeconfig());
        assert_eq!(second.control_group(), format!("{}/node-2", first.control_group()));
    }
}
