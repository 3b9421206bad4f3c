//! Where everything that the development stack makes is kept.
//!
//! A clone owns one folder, `.dev/`; what is expensive to build and the same for every clone is in the build cache. The
//! name of a clone (a hash of its path) is in the name of whatever has to live outside the folder: network namespace,
//! cgroups, links, CNI network.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// The folders of one clone.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
    cache: PathBuf,
    id: String,
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
        }
    }

    /// Eight hexadecimal digits that name this clone on this machine.
    pub fn id(&self) -> &str {
        &self.id
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

    /// `.dev/log`.
    pub fn log(&self) -> PathBuf {
        self.dev().join("log")
    }

    /// `.dev/run`: sockets, pids, what the supervisor was told to run.
    pub fn run(&self) -> PathBuf {
        self.dev().join("run")
    }

    /// `.dev/config`: configuration files that the stack writes for its processes.
    pub fn config(&self) -> PathBuf {
        self.dev().join("config")
    }

    /// `.dev/pki`: certificates and keys of the host cluster and of NATS.
    pub fn pki(&self) -> PathBuf {
        self.dev().join("pki")
    }

    /// `.dev/nats`: NATS's keys, claims and data.
    pub fn nats(&self) -> PathBuf {
        self.dev().join("nats")
    }

    /// `.dev/containerd`: images, snapshots and running containers.
    pub fn containerd(&self) -> PathBuf {
        self.dev().join("containerd")
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

    /// Name of the network namespace, the top cgroup and the CNI network.
    pub fn stack_name(&self) -> String {
        format!("yoke-{}", self.id)
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
}
