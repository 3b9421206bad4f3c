//! One worker: its folder, its process, and how it joins and leaves.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use tokio::time::Instant;
use yoke_supervisor::programs::find_program;

use crate::cgroups;
use crate::command::Command;
use crate::files::{list_entries, make_executable, write_secret};
use crate::images::contents::WORKER_BINARY;
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::network::Network;
use crate::network::lan::{WORKERS_MAX, WorkerLink};
use crate::ssh;
use crate::supervisor::client;

/// Timeout of joining: download the program, copy others, load images, start a kubelet and
/// register.
const READY_LIMIT: Duration = Duration::from_secs(180);
/// Timeout of leaving: drain the Pods, then remove everything.
const LEAVE_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(300);
/// Prefix of a worker's name, before its number.
const PREFIX: &str = "worker-";
/// Folder where a join command installs the program, and where administrators install programs.
const PLACE: &str = "/usr/local/bin";
/// `PATH` of a login shell.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
/// End of a join command, before the token.
const JOINS: &str = "exec $p join $0";

/// A worker on this computer.
pub(super) struct Worker<'a> {
    layout: &'a Layout,
    /// Name of its Node.
    pub(super) name: String,
    pub(super) folder: PathBuf,
    pub(super) link: WorkerLink,
}

impl<'a> Worker<'a> {
    fn new(layout: &'a Layout, number: u8) -> Self {
        Self {
            layout,
            name: format!("{PREFIX}{number}"),
            folder: layout.workers().join(number.to_string()),
            link: WorkerLink::new(layout, number),
        }
    }

    /// The worker with this name, if it exists.
    pub(super) fn find(layout: &'a Layout, name: &str) -> Option<Self> {
        let number = name.strip_prefix(PREFIX)?.parse().ok()?;
        Some(Self::new(layout, number)).filter(|worker| worker.folder.is_dir())
    }

    /// Claims the first free number by creating its folder.
    pub(super) fn claim(layout: &'a Layout) -> Result<Self> {
        fs::create_dir_all(layout.workers()).context("creating .dev/workers")?;
        for number in 1..=WORKERS_MAX {
            let worker = Self::new(layout, number);
            match fs::create_dir(&worker.folder) {
                Ok(()) => return Ok(worker),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("creating {}", worker.folder.display())),
            }
        }
        bail!(
            "the maximum of {WORKERS_MAX} workers exists already: remove one with `.dev/bin/yoke-dev remove-worker NAME`"
        )
    }

    /// All workers of this clone.
    pub(super) fn list(layout: &'a Layout) -> Vec<Self> {
        let folders = list_entries(&layout.workers());
        let mut numbers: Vec<u8> = folders
            .iter()
            .filter_map(|folder| folder.file_name()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| Self::new(layout, number)).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn root(&self) -> PathBuf {
        self.file("root")
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.file("kubeconfig")
    }

    fn join_command(&self) -> PathBuf {
        self.file("line")
    }

    fn bin(&self) -> PathBuf {
        self.file("bin")
    }

    fn log_file(&self) -> PathBuf {
        self.layout.log().join(format!("{}.log", self.name))
    }

    /// Requests a join command and the cluster's kubeconfig from the SSH server.
    pub(super) async fn request_join(
        &self,
        ssh: impl Fn(&[&str]) -> Command,
        cluster: &str,
        line_file: Option<&Path>,
    ) -> Result<String> {
        let line = match line_file {
            Some(file) => fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?,
            None => ssh(&["join", cluster]).output().await?,
        };
        write_secret(&self.join_command(), &line)?;
        let kubeconfig = ssh(&["kubeconfig", cluster]).output().await?;
        write_secret(&self.kubeconfig(), &kubeconfig)?;
        Ok(String::new())
    }

    /// Installs an `ssh` script for the worker, which uses the Tenant's key and knows the server's
    /// key.
    pub(super) fn install_ssh(&self, key: &Path) -> Result<()> {
        let program = find_program("ssh").context("ssh is not installed")?;
        let script = format!(
            "#!/bin/sh\nexec '{}' -F none -i '{}' -o IdentitiesOnly=yes -o IdentityAgent=none \\\n  \
             -o StrictHostKeyChecking=yes -o UserKnownHostsFile='{}' \"$@\"\n",
            program.display(),
            key.display(),
            ssh::known_hosts(self.layout).display()
        );
        let ssh = self.bin().join("ssh");
        fs::create_dir_all(self.bin()).context("creating the folder of the worker's programs")?;
        fs::write(&ssh, script).context("writing the worker's ssh")?;
        make_executable(&ssh)
    }

    /// Starts the worker in the background.
    pub(super) async fn start(&self, network: &Network, ttl: Option<&str>) -> Result<()> {
        // No DNS server knows the API's name.
        let name = "--output=jsonpath={.clusters[0].cluster.tls-server-name}";
        let name = self.kubectl(&["config", "view", "--minify", name]).output().await?;
        let hosts = format!("127.0.0.1 localhost\n{} {name}\n", network.node_ip());
        fs::write(self.file("hosts"), hosts).context("writing the worker's hosts")?;
        // Joins the group so that `down` finds the child processes.
        cgroups::join_host(&self.layout.stack_name())?;
        // Detached, so that the caller of `make worker` does not wait for it.
        let script = r#"exec setsid --fork sh -c 'echo $$ > "$0/pid" && exec "$@"' "$@" >>"$0" 2>&1 </dev/null"#;
        let line = fs::read_to_string(self.join_command()).context("reading the worker's join command")?;
        let line = to_ephemeral(&line)?;
        let mut command = Command::new("sh")
            .env("PATH", PATH)
            .args(["-c", script])
            .arg(self.log_file())
            .arg(&self.folder)
            .args(self.build_entry_command())
            .args(["sh", "-c", &line, "sh"])
            .args(["--rm", "--allow-cgroup-v1", "--name", &self.name])
            .args(["--node-ip", &self.link.address.to_string()])
            .arg("--root")
            .arg(self.root())
            .arg("--bundle")
            .arg(self.layout.bundle());
        if let Some(ttl) = ttl {
            command = command.args(["--ttl", ttl]);
        }
        command.run().await.context("starting yoke-worker")
    }

    /// Command prefix that enters the worker's environment: its network namespace, /etc/hosts and
    /// programs.
    fn build_entry_command(&self) -> Vec<String> {
        let namespace = format!("--net=/run/netns/{}", self.link.namespace);
        let script = format!(r#"mount --bind "$0/hosts" /etc/hosts && mount --bind "$0/bin" {PLACE} && exec "$@""#);
        let folder = self.folder.display().to_string();
        [
            "nsenter", &namespace, "unshare", "--mount", "sh", "-c", &script, &folder,
        ]
        .map(str::to_owned)
        .into()
    }

    pub(super) async fn wait_ready(&self) -> Result<String> {
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let Err(problem) = self.check_ready().await else {
                return Ok(format!("{} is Ready", self.name));
            };
            if self.find_process().is_none() {
                bail!("the worker has exited\n{}", client::log_tail(&self.log_file()));
            }
            if Instant::now() > deadline {
                let log = client::log_tail(&self.log_file());
                bail!("the worker's Node is not Ready after {READY_LIMIT:?}: {problem:#}\n{log}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(super) async fn check_ready(&self) -> Result<()> {
        let ready = "--output=jsonpath={.status.conditions[?(@.type==\"Ready\")]['status','message']}";
        let args = ["--request-timeout=5s", "get", "node", &self.name, ready];
        let said = match self.kubectl(&args).output().await {
            Ok(said) => said,
            Err(error) => bail!(error.to_line()),
        };
        if said.split(' ').next() == Some("True") {
            return Ok(());
        }
        bail!("Ready={said}");
    }

    fn kubectl(&self, args: &[&str]) -> Command {
        Kubectl::new(self.layout).with(&self.kubeconfig(), args)
    }

    /// The worker's process, if it still runs.
    pub(super) fn find_process(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.file("pid")).ok()?;
        let pid: i32 = text.trim().parse().ok()?;
        // Another process may have the same pid by now.
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let root = self.root();
        let own = arguments
            .split(|byte| *byte == 0)
            .any(|argument| Path::new(&*String::from_utf8_lossy(argument)) == root);
        own.then(|| Pid::from_raw(pid))?
    }

    /// Control group of the worker's child processes.
    pub(super) fn find_group(&self) -> Option<String> {
        let text = fs::read(self.root().join("worker.json")).ok()?;
        let worker: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let id = worker["id"].as_str()?;
        id.bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then(|| format!("yoke-worker-{id}"))
    }

    pub(super) async fn leave(&self) -> Result<()> {
        if let Some(pid) = self.find_process() {
            rustix::process::kill_process(pid, Signal::TERM).context("sending SIGTERM to the worker")?;
        }
        let deadline = Instant::now() + LEAVE_LIMIT;
        while self.find_process().is_some() {
            if Instant::now() > deadline {
                bail!(
                    "the worker has not exited within {LEAVE_LIMIT:?}\n{}",
                    client::log_tail(&self.log_file())
                );
            }
            tokio::time::sleep(POLL).await;
        }
        // The worker was killed and left its files.
        if self.root().exists() {
            let mut entry = self.build_entry_command().into_iter();
            Command::new(entry.next().unwrap_or_default())
                .args(entry)
                .arg(Path::new(PLACE).join(WORKER_BINARY))
                .args(["leave", "--root"])
                .arg(self.root())
                .limit(LEAVE_LIMIT)
                .run()
                .await?;
        }
        self.remove_files().await
    }

    /// Removes what is left of a worker that does not run.
    pub(super) async fn remove_files(&self) -> Result<()> {
        self.link.remove().await.context("removing the worker's network")?;
        fs::remove_dir_all(&self.folder).with_context(|| format!("removing {}", self.folder.display()))
    }
}

/// Changes a join command so that it accepts further arguments and runs the worker in the
/// foreground, without systemd. All else stays as printed.
fn to_ephemeral(line: &str) -> Result<String> {
    let line = line.trim_end();
    let (before, token) = line
        .split_once(JOINS)
        .with_context(|| format!("unexpected join command without {JOINS:?}: {line:?}"))?;
    Ok(format!("exec {before}exec $p run \"$@\" $0{token} \"$@\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_command_stays_as_printed_except_for_one_word() {
        let line = to_ephemeral("sh -c 'p=/a; c $p || exit 1; exec $p join $0' yoke1.x\n").unwrap();
        assert_eq!(
            line,
            r#"exec sh -c 'p=/a; c $p || exit 1; exec $p run "$@" $0' yoke1.x "$@""#
        );
        assert!(to_ephemeral("yoke-worker join yoke1.x").is_err());
    }
}
