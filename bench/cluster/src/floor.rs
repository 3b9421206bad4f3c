//! Lower bound of every wait for an API server: the start of the API server itself.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;
use yoke_e2e::{process, run, wait_for};

/// Title of this value in tables.
pub const TITLE: &str = "of that, the API server by itself";
/// Script for the network namespace of an API server. It prints the time of the first answer on the
/// server's port, in seconds since boot. It first polls whether the port is open, which costs the
/// starting server less than requests.
const FIRST_ANSWER: &str = "until (: </dev/tcp/127.0.0.1/6443) 2>/dev/null; do sleep 0.05; done
    until curl --insecure --silent --max-time 1 --output /dev/null https://127.0.0.1:6443/version; do sleep 0.01; done
    cut -d' ' -f1 /proc/uptime";
/// Clock ticks per second in `/proc/PID/stat`, on every architecture that Yoke runs on.
const TICKS: f64 = 100.0;

/// Measures the next start of a Cluster's API server: from process start to its first answer on its
/// own port. A refusal counts as an answer. Nothing that waits for the API server can be faster.
#[derive(Debug)]
pub struct Floor {
    name: String,
    known: BTreeSet<u32>,
}

impl Floor {
    /// Measures API servers of the Cluster that start from now on.
    pub fn before(name: &str) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            known: api_servers(name)?,
        })
    }

    /// Waits until an API server starts on this computer and answers. Returns the time between
    /// both.
    pub async fn measure(self, limit: Duration) -> Result<Duration> {
        let pid = wait_for("an API server to start", limit, || async {
            Ok(api_servers(&self.name)?.difference(&self.known).next().copied())
        })
        .await?;
        let stat =
            std::fs::read_to_string(format!("/proc/{pid}/stat")).context("reading when an API server started")?;
        // proc(5): the 22nd field. The second field, a name in parentheses, may contain anything.
        let ticks = stat
            .rsplit(')')
            .next()
            .and_then(|fields| fields.split_whitespace().nth(19));
        let started = ticks.context("short stat line")?.parse::<f64>()? / TICKS;
        let mut ask = Command::new("nsenter");
        ask.args(["--target", &pid.to_string(), "--net", "--", "bash", "-c", FIRST_ANSWER]);
        let answered: f64 = run(ask, limit).await?.ok()?.trim().parse()?;
        Duration::try_from_secs_f64(answered - started).context("the API server answered before it started")
    }
}

/// Pids of a Cluster's API servers on this computer.
fn api_servers(name: &str) -> Result<BTreeSet<u32>> {
    let named = format!("--external-hostname={name}-");
    let arguments = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_one = |pid: &u32| String::from_utf8_lossy(&arguments(pid)).contains(&named);
    Ok(process::list_pids()?.into_iter().filter(is_one).collect())
}
