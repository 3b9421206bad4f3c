//! Pods of a tenant's cluster that has workers.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use yoke_test_support::eventually;

use crate::command::{Output, run};
use crate::stack::Stack;
use crate::worker::ECHO;

/// Timeout of a Pod's start. The image is present, so a Pod that takes longer never starts.
pub const POD_LIMIT: Duration = Duration::from_secs(60);

/// A cluster, and the credentials to use it.
#[derive(Clone, Copy)]
pub struct Workload<'a> {
    /// The stack of the cluster.
    pub stack: &'a Stack,
    /// Kubeconfig of the cluster.
    pub kubeconfig: &'a Path,
}

impl Workload<'_> {
    /// Runs kubectl, which must succeed. Returns its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.stack.kubectl(self.kubeconfig, arguments).await?.ok()
    }

    /// Applies objects.
    pub async fn apply(&self, objects: &[Value]) -> Result<()> {
        let file = tempfile::NamedTempFile::new().context("making a file for a manifest")?;
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(file.path(), list.to_string()).context("writing a manifest")?;
        let path = file.path().to_str().context("a path that is not UTF-8")?;
        self.kubectl(&["apply", "-f", path]).await.map(drop)
    }

    /// Runs [`ECHO`] with arguments in a Pod, on the given worker or on any.
    pub async fn run_pod(&self, name: &str, arguments: &[&str], node: Option<&str>) -> Result<()> {
        let selector = node.map(|node| json!({"kubernetes.io/hostname": node}));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": selector,
                "containers": [{"name": "echo", "image": ECHO, "imagePullPolicy": "IfNotPresent", "args": arguments}],
            },
        });
        self.apply(&[pod]).await
    }

    /// Waits until a Pod has a phase.
    pub async fn wait_phase(&self, pod: &str, phase: &str) -> Result<()> {
        let find = ["get", "pod", pod, "-o", "jsonpath={.status.phase}"];
        let what = format!("Pod {pod} to be {phase}");
        eventually(
            &what,
            POD_LIMIT,
            async || self.kubectl(&find).await,
            |found| found == phase,
        )
        .await?;
        Ok(())
    }

    /// Waits until the add-on's Pods are ready on every worker.
    pub async fn wait_addon(&self, daemon_set: &str, workers: usize) -> Result<()> {
        let ready = "jsonpath={.status.updatedNumberScheduled} {.status.numberReady}";
        let find = ["get", "daemonset", daemon_set, "-n", "kube-system", "-o", ready];
        let (what, all) = (
            format!("{daemon_set} on {workers} workers"),
            format!("{workers} {workers}"),
        );
        eventually(
            &what,
            POD_LIMIT * 2,
            async || self.kubectl(&find).await,
            |found| *found == all,
        )
        .await?;
        Ok(())
    }

    /// Endpoints of cluster DNS, and last log lines of cluster DNS and kube-proxy, for the message
    /// of a failed test.
    pub async fn recent_logs(&self) -> String {
        let questions = [
            "get endpointslices -n kube-system -o jsonpath={.items[*].endpoints}",
            "logs -n kube-system daemonset/coredns --timestamps --tail=12",
            "logs -n kube-system daemonset/kube-proxy --timestamps --tail=8",
        ];
        let mut said = Vec::new();
        for question in questions {
            let words = self.kubectl(&question.split(' ').collect::<Vec<_>>()).await;
            said.push(words.unwrap_or_else(|error| format!("{error:#}")));
        }
        said.join("\n")
    }

    /// Sends a request from a Pod to a URL.
    pub async fn ask_from(&self, pod: &str, url: &str) -> Result<Output> {
        let exec = ["exec", pod, "--", "/echo", "get", url];
        self.stack.kubectl(self.kubeconfig, &exec).await
    }

    /// Runs kubectl on a terminal. Once the output contains `asks`, types `keys` and enter. Returns
    /// all output.
    pub async fn on_terminal(&self, arguments: &[&str], asks: &str, keys: &str) -> Result<String> {
        let (program, kubeconfig) = (self.stack.dir.join("bin/kubectl"), self.kubeconfig.display());
        let line = format!(
            "{} --kubeconfig {kubeconfig} {}",
            program.display(),
            arguments.join(" ")
        );
        let mut terminal = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut keyboard = terminal.stdin.take().context("no input")?;
        let mut screen = terminal.stdout.take().context("no output")?;
        let (mut shown, mut unused) = (Vec::new(), Some(format!("{keys}\r")));
        let used = async {
            while screen.read_buf(&mut shown).await? > 0 {
                let is_asked = String::from_utf8_lossy(&shown).contains(asks);
                if let Some(keys) = unused.take_if(|_| is_asked) {
                    keyboard.write_all(keys.as_bytes()).await?;
                }
            }
            anyhow::Ok(terminal.wait().await?)
        };
        let ended = tokio::time::timeout(POD_LIMIT, used).await;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        let ended = ended.with_context(|| format!("{line} timed out; it showed {shown:?}"))??;
        ensure!(ended.success(), "{line}: {ended}: {shown:?}");
        Ok(shown)
    }

    /// Sends a request to a Pod's port through `kubectl port-forward`.
    pub async fn ask_forwarded(&self, pod: &str) -> Result<String> {
        let mut command = self.stack.program("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig);
        command.args(["port-forward", &format!("pod/{pod}"), ":8080"]);
        let mut forward = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(forward.stdout.take().context("no output")?).lines();
        let line = tokio::time::timeout(POD_LIMIT, lines.next_line()).await??;
        // Format: Forwarding from 127.0.0.1:41234 -> 8080
        let line = line.context("kubectl port-forward printed nothing")?;
        let port = line.split_whitespace().nth(2).context("no address")?;
        let mut curl = Command::new("curl");
        let url = format!("http://{port}/");
        curl.args(["--silent", "--show-error", "--max-time", "10", &url]);
        run(curl, POD_LIMIT).await?.ok()
    }
}
