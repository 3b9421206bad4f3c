//! The floor of whatever waits for an API server: that one's own start.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;

use crate::{process, run, wait_for};

/// What it is called in tables.
pub const TITLE: &str = "of that, the API server by itself";
/// Run where an API server is: says when its own port answers, in seconds since the machine was started. To look whether the port is
/// open takes less from that start than to ask.
const FIRST_ANSWER: &str = "until (: </dev/tcp/127.0.0.1/6443) 2>/dev/null; do sleep 0.05; done
    until curl --insecure --silent --max-time 1 --output /dev/null https://127.0.0.1:6443/version; do sleep 0.01; done
    cut -d' ' -f1 /proc/uptime";
/// Ticks a second in `/proc/PID/stat`, on every architecture that Yoke runs on.
const TICKS: f64 = 100.0;

/// How long the API server of a Cluster takes that starts next, from its process' start to its first answer on its own port, be it a
/// refusal: nothing that waits for it is quicker.
#[derive(Debug)]
pub struct Floor {
    name: String,
    known: BTreeSet<u32>,
}

impl Floor {
    /// Of the Cluster's API servers that start from now on.
    pub fn before(name: &str) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            known: api_servers(name)?,
        })
    }

    /// Waits for the start of one on this machine, and for its first answer.
    pub async fn measure(self, limit: Duration) -> Result<Duration> {
        let pid = wait_for("an API server to start", limit, || async {
            Ok(api_servers(&self.name)?.difference(&self.known).next().copied())
        })
        .await?;
        let stat =
            std::fs::read_to_string(format!("/proc/{pid}/stat")).context("reading when an API server started")?;
        // proc(5): the 22nd field; the second one is the name in brackets and may hold anything.
        let ticks = stat
            .rsplit(')')
            .next()
            .and_then(|fields| fields.split_whitespace().nth(19));
        let started = ticks.context("short stat line")?.parse::<f64>()? / TICKS;
        let mut ask = Command::new("nsenter");
        ask.args(["--target", &pid.to_string(), "--net", "--", "bash", "-c", FIRST_ANSWER]);
        let answered: f64 = run(ask, limit).await?.ok()?.trim().parse()?;
        Duration::try_from_secs_f64(answered - started).context("an API server that answered before it started")
    }
}

/// The API servers of a Cluster that run on this machine.
fn api_servers(name: &str) -> Result<BTreeSet<u32>> {
    let named = format!("--external-hostname={name}-");
    let arguments = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_one = |pid: &u32| String::from_utf8_lossy(&arguments(pid)).contains(&named);
    Ok(process::list_pids()?.into_iter().filter(is_one).collect())
}
