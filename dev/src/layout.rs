//! Where everything that the development stack makes is kept.
//!
//! A clone owns one folder, `.dev/`; what is expensive to build and the same for every clone is in the build cache. The
//! name of a clone (a hash of its path) is in the name of whatever has to live outside the folder: network namespace,
//! cgroups, links, CNI network.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// The number of the node that the stack begins with, which runs the host's control plane, too.
pub const FIRST_NODE: u8 = 1;

/// The folders of one clone, as one of its nodes has them.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
    cache: PathBuf,
    id: String,
    node: u8,
}

impl Layout {
    /// The layout of the clone that the working directory is in.
    pub fn discover() -> Result<Self> {
        let start = std::env::current_dir().context("reading the working directory")?;
        let Some(root) = start
            .ancestors()
            .find(|dir| dir.join("dev/go").is_dir() && dir.join("Cargo.toml").is_file())
        else {
            bail!("{} is not inside a clone of Yoke", start.display());
        };
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
            .context("neither XDG_CACHE_HOME nor a home directory is known")?;
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

    /// The same clone, as another node has it: what a machine has for itself is in a folder of the node's own.
    pub fn of_node(&self, number: u8) -> Self {
        Self {
            node: number,
            ..self.clone()
        }
    }

    /// Eight hexadecimal digits that name this clone on this machine.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The number of the node.
    pub fn number(&self) -> u8 {
        self.node
    }

    /// The clone.
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

    /// `.dev/nodes`: a folder for each node that was added.
    pub fn nodes(&self) -> PathBuf {
        self.dev().join("nodes")
    }

    /// What is the node's own: `.dev` of the first one.
    pub fn home(&self) -> PathBuf {
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

    /// `.dev/kubectl`: what kubectl learned of the APIs.
    pub fn kubectl_cache(&self) -> PathBuf {
        self.dev().join("kubectl")
    }

    /// `log` of the node.
    pub fn log(&self) -> PathBuf {
        self.home().join("log")
    }

    /// `run` of the node: sockets, pids, what the supervisor was told to run.
    pub fn run(&self) -> PathBuf {
        self.home().join("run")
    }

    /// `config` of the node: configuration files that the stack writes for its processes.
    pub fn config(&self) -> PathBuf {
        self.home().join("config")
    }

    /// `pki` of the node: its certificate and key, and of the first one all others of the host cluster.
    pub fn pki(&self) -> PathBuf {
        self.home().join("pki")
    }

    /// `.dev/nats`: NATS's keys, claims and data.
    pub fn nats(&self) -> PathBuf {
        self.dev().join("nats")
    }

    /// `containerd` of the node: images, snapshots and running containers.
    pub fn containerd(&self) -> PathBuf {
        self.home().join("containerd")
    }

    /// `kubelet` of the node: volumes of its pods.
    pub fn kubelet(&self) -> PathBuf {
        self.home().join("kubelet")
    }

    /// `.dev/bundle`: what a worker is made of.
    pub fn bundle(&self) -> PathBuf {
        self.dev().join("bundle")
    }

    /// `.dev/workers`: a folder for each worker.
    pub fn workers(&self) -> PathBuf {
        self.dev().join("workers")
    }

    /// containerd's socket.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run().join("containerd.sock")
    }

    /// The supervisor's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.run().join("supervisor.sock")
    }

    /// A kubeconfig for one user of the host cluster.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.config().join(format!("{user}.kubeconfig"))
    }

    /// The host administrator's kubeconfig, a fixed output.
    pub fn host_kubeconfig(&self) -> PathBuf {
        self.dev().join("host.kubeconfig")
    }

    /// The demo tenant cluster's kubeconfig, a fixed output.
    pub fn demo_kubeconfig(&self) -> PathBuf {
        self.dev().join("demo.kubeconfig")
    }

    /// Shell exports for people and tests, a fixed output.
    pub fn env_file(&self) -> PathBuf {
        self.dev().join("env")
    }

    /// Takes the clone for one `up` or `down` at a time; given back when the file is closed.
    pub fn lock(&self) -> Result<File> {
        std::fs::create_dir_all(self.dev()).context("making .dev")?;
        let path = self.dev().join("lock");
        let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
        if file.try_lock().is_err() {
            bail!("another `make up` or `make down` of this clone is running");
        }
        Ok(file)
    }

    /// Name of the first node's network namespace, with which those of all others begin, of the top cgroup and of the CNI
    /// network.
    pub fn stack_name(&self) -> String {
        format!("yoke-{}", self.id)
    }

    /// The control group of the node. That of the first one has those of the others in it.
    pub fn group(&self) -> String {
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
        let second = first.of_node(2);
        assert_eq!(
            second.containerd_socket(),
            Path::new("/y/.dev/nodes/2/run/containerd.sock")
        );
        assert_eq!(second.kubelet(), Path::new("/y/.dev/nodes/2/kubelet"));
        assert_eq!(first.of_node(FIRST_NODE).pki(), Path::new("/y/.dev/pki"));
        assert_eq!(second.bin(), first.bin());
        assert_eq!(second.host_kubeconfig(), first.host_kubeconfig());
        assert_eq!(second.group(), format!("{}/node-2", first.group()));
    }
}
