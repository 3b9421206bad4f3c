//! The running development stack, found through the file `.dev/env` that `make up` writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::process::Command;

use crate::command::{Output, run};

const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Access to the running stack.
#[derive(Clone)]
pub struct Stack {
    /// The folder `.dev`.
    pub dir: PathBuf,
    /// Client of the host's API, with administrator permissions.
    pub host: Client,
    env: BTreeMap<String, String>,
}

impl Stack {
    /// Connects to the stack of this checkout.
    pub async fn connect() -> Result<Self> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.dev");
        let dir = dir
            .canonicalize()
            .context("no .dev folder: start the stack with `make up`")?;
        let text = std::fs::read_to_string(dir.join("env")).context("no .dev/env: start the stack with `make up`")?;
        let env = parse_env(&text);
        let host = client(&dir.join("host.kubeconfig")).await?;
        Ok(Self { dir, host, env })
    }

    /// A client of the host's API in which the administrator impersonates a user.
    pub async fn host_as(&self, user: &str) -> Result<Client> {
        let mut config = configuration(&self.dir.join("host.kubeconfig")).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).context("making a client")
    }

    /// A variable of `.dev/env`.
    pub fn var(&self, name: &str) -> Result<&str> {
        self.env
            .get(name)
            .map(String::as_str)
            .with_context(|| format!(".dev/env does not export {name}"))
    }

    /// Address of the ingress, `IP:PORT`.
    pub fn ingress(&self) -> Result<&str> {
        self.var("YOKE_INGRESS")
    }

    /// Parent domain of all clusters' public names.
    pub fn base_domain(&self) -> Result<&str> {
        self.var("YOKE_BASE_DOMAIN")
    }

    /// A command for a program in `.dev/bin`.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.dir.join("bin").join(name));
        command
            .env_remove("KUBECONFIG")
            .env("KUBECACHEDIR", self.dir.join("kubectl"));
        command
    }

    /// Socket of a host node's containerd. Names of added nodes end in their number.
    pub fn containerd(&self, node: &str) -> Result<PathBuf> {
        Ok(match added_number(node) {
            Some(number) => self.dir.join(format!("nodes/{number}/run/containerd.sock")),
            None => self.var("CONTAINERD_ADDRESS")?.into(),
        })
    }

    /// Pid of a process that the stack's supervisor runs.
    pub async fn supervised_pid(&self, name: &str) -> Result<u32> {
        let mut command = self.program("yoke-dev");
        command.args(["pid", name]);
        let text = run(command, Duration::from_secs(10)).await?.ok()?;
        text.trim()
            .parse()
            .with_context(|| format!("the supervisor's pid of {name} is {text:?}"))
    }

    /// Runs kubectl with the given kubeconfig.
    pub async fn kubectl(&self, kubeconfig: &Path, args: &[&str]) -> Result<Output> {
        let mut command = self.program("kubectl");
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--request-timeout=30s")
            .args(args);
        run(command, COMMAND_LIMIT).await
    }

    /// Runs kubectl as the host's administrator.
    pub async fn host_kubectl(&self, args: &[&str]) -> Result<Output> {
        self.kubectl(&self.dir.join("host.kubeconfig"), args).await
    }

    /// Applies a manifest as the host's administrator.
    pub async fn apply(&self, manifest: &str) -> Result<Output> {
        let file = tempfile::NamedTempFile::new().context("making a file for a manifest")?;
        std::fs::write(file.path(), manifest).context("writing a manifest")?;
        let path = file
            .path()
            .to_str()
            .context("the path of a temporary file is not UTF-8")?;
        self.host_kubectl(&["apply", "-f", path]).await
    }

    /// Runs the CLI as the host's administrator.
    pub async fn yoke(&self, args: &[&str]) -> Result<Output> {
        let mut command = self.program("kubectl-yoke");
        command
            .arg("--kubeconfig")
            .arg(self.dir.join("host.kubeconfig"))
            .args(args);
        run(command, Duration::from_secs(180)).await
    }
}

/// A client from a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    Client::try_from(configuration(kubeconfig).await?).context("making a client")
}

/// A client with its own `User-Agent`.
pub async fn client_called(kubeconfig: &Path, agent: &str) -> Result<Client> {
    let mut config = configuration(kubeconfig).await?;
    config.headers.push(("user-agent".parse()?, agent.parse()?));
    Client::try_from(config).context("making a client")
}

pub(crate) async fn configuration(kubeconfig: &Path) -> Result<kube::Config> {
    let config = Kubeconfig::read_from(kubeconfig).with_context(|| format!("reading {}", kubeconfig.display()))?;
    kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("using {}", kubeconfig.display()))
}

fn added_number(node: &str) -> Option<u8> {
    node.strip_prefix("yoke-host-")?.parse().ok()
}

fn parse_env(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("export ")?.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.trim_matches(['"', '\'']).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_has_no_number() {
        assert_eq!(added_number("yoke-host"), None);
        assert_eq!(added_number("yoke-host-2"), Some(2));
    }

    #[test]
    fn shell_exports_are_read() {
        let env = parse_env("# head\nexport A=1\nexport B=\"x y\"\nexport C='z'\nD=4\n");
        let read: Vec<_> = env
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(read, [("A", "1"), ("B", "x y"), ("C", "z")]);
    }
}
