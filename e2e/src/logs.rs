//! What Yoke's own processes log while a test runs: a warning or an error that is not listed fails the test.
//!
//! ```text
//!  pods of yoke-system ────────────┐
//!  stores of the test's Clusters ──┼──▶ lines since the test began ──▶ those not listed ──▶ the test fails
//!  the host's own store, .dev/log ─┘
//! ```
//!
//! What a pod said that the test itself replaced is gone with the pod.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, LogParams};
use serde_json::Value;

use crate::stack::Stack;

/// A warning or an error that may appear.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Text that the line holds.
    pub says: &'static str,
    /// Why it may be there.
    pub because: &'static str,
}

/// What may appear in any test.
const ALWAYS: &[Expected] = &[
    Expected {
        says: "connection closed before message completed",
        because: "the host's API server closed an idle connection just when a request was sent; it is sent again",
    },
    Expected {
        says: "tls handshake eof",
        because: "an Envoy was ended, or had waited for a second, while it connected to ingress-xds; it connects again",
    },
];

/// What tells of a request that was not answered in time and is sent again. On a busy machine each may appear in any log, but
/// not more often than [`SELDOM`].
const LATE: &[&str] = &[
    "The log does not answer",
    "writing the wake request of a Cluster failed",
    "its webhooks are not known",
    "nodes cannot be counted",
    "streams cannot be made",
    "the Lease by which one operator acts is tried again",
    "whether its Nodes are connected is not known",
];
const SELDOM: usize = 3;

/// The processes whose lines are in the form that `yoke-runtime` writes.
const SYSTEM: &str = "app.kubernetes.io/part-of=yoke,app.kubernetes.io/name!=envoy";
const STORE: &str = "kine-nats";

/// The logs from a moment on.
#[derive(Debug)]
pub struct Journal {
    since: Timestamp,
    host_store: PathBuf,
    /// Length of the file at the beginning.
    skipped: usize,
}

impl Journal {
    /// Begins now.
    pub fn begin(stack: &Stack) -> Self {
        let host_store = stack.dir.join("log/kine-nats.log");
        Self {
            since: Timestamp::now(),
            skipped: std::fs::read(&host_store).map_or(0, |log| log.len()),
            host_store,
        }
    }

    /// Unlisted lines of the stores of control planes in a hosted namespace.
    pub async fn unlisted_in_control_plane(
        &self,
        stack: &Stack,
        hosted: &str,
        listed: &[Expected],
    ) -> Result<Vec<String>> {
        let select = ListParams::default();
        self.unlisted_in_pods(stack, hosted, &select, Some(STORE), listed).await
    }

    /// Unlisted lines of Yoke's own pods and of the store of the host's API.
    pub async fn unlisted_in_system(&self, stack: &Stack, listed: &[Expected]) -> Result<Vec<String>> {
        let select = ListParams::default().labels(SYSTEM);
        let mut found = self
            .unlisted_in_pods(stack, "yoke-system", &select, None, listed)
            .await?;
        let log = std::fs::read(&self.host_store).with_context(|| format!("reading {}", self.host_store.display()))?;
        let log = String::from_utf8_lossy(log.get(self.skipped..).unwrap_or(&log)).into_owned();
        found.extend(self.unlisted("the host's kine-nats", &log, listed));
        Ok(found)
    }

    async fn unlisted_in_pods(
        &self,
        stack: &Stack,
        namespace: &str,
        select: &ListParams,
        container: Option<&str>,
        listed: &[Expected],
    ) -> Result<Vec<String>> {
        let pods: Api<Pod> = Api::namespaced(stack.host.clone(), namespace);
        let mut found = Vec::new();
        for pod in pods.list(select).await.context("listing pods")?.items {
            let name = pod.metadata.name.unwrap_or_default();
            let status = pod.status.unwrap_or_default();
            for ran in status.container_statuses.iter().flatten() {
                if container.is_some_and(|wanted| wanted != ran.name) {
                    continue;
                }
                for previous in [true, false] {
                    let log = self.read(&pods, &name, ran, previous).await?;
                    found.extend(self.unlisted(&format!("{} of {namespace}/{name}", ran.name), &log, listed));
                }
            }
        }
        Ok(found)
    }

    async fn read(&self, pods: &Api<Pod>, pod: &str, ran: &ContainerStatus, previous: bool) -> Result<String> {
        if previous && ran.restart_count == 0 {
            return Ok(String::new());
        }
        let parameters = LogParams {
            container: Some(ran.name.clone()),
            previous,
            since_time: Some(self.since),
            ..LogParams::default()
        };
        match pods.logs(pod, &parameters).await {
            Ok(log) => Ok(log),
            // It has not started yet, or is gone.
            Err(kube::Error::Api(status)) if status.code == 400 || status.code == 404 => Ok(String::new()),
            Err(error) => Err(error).with_context(|| format!("reading the log of {} in {pod}", ran.name)),
        }
    }

    fn unlisted(&self, source: &str, log: &str, listed: &[Expected]) -> Vec<String> {
        let listed = |line: &str| ALWAYS.iter().chain(listed).any(|expected| line.contains(expected.says));
        let complaints = log
            .lines()
            .filter(|line| is_complaint(line, self.since) && !listed(line));
        let mut found = complaints.collect();
        drop_late(&mut found);
        found.iter().map(|line| format!("{source}: {line}")).collect()
    }
}

/// Leaves out what tells of something late, if it does so seldom.
fn drop_late(complaints: &mut Vec<&str>) {
    for says in LATE {
        let is_late = |line: &str| line.contains(says);
        if complaints.iter().filter(|line| is_late(line)).count() <= SELDOM {
            complaints.retain(|line| !is_late(line));
        }
    }
}

/// Whether a line that is not older than `since` tells of something wrong. What is not in the processes' own form is
/// written by a panic, or by something worse.
fn is_complaint(line: &str, since: Timestamp) -> bool {
    let fields: Value = serde_json::from_str(line).unwrap_or_default();
    let mut words = line.split_whitespace();
    let (time, level) = match (fields["timestamp"].as_str(), fields["level"].as_str()) {
        (Some(time), Some(level)) => (time, level),
        _ => (words.next().unwrap_or_default(), words.next().unwrap_or_default()),
    };
    match time.parse::<Timestamp>() {
        Ok(time) => time >= since && !["INFO", "DEBUG", "TRACE"].contains(&level),
        Err(_) => !line.trim().is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_errors_and_what_is_no_log_line_are_complaints() {
        let since = "2026-01-01T00:00:10Z".parse().unwrap();
        for (line, expected) in [
            (
                r#"{"timestamp":"2026-01-01T00:00:11.5Z","level":"WARN","message":"a"}"#,
                true,
            ),
            (
                r#"{"timestamp":"2026-01-01T00:00:11.5Z","level":"ERROR","message":"a"}"#,
                true,
            ),
            (
                r#"{"timestamp":"2026-01-01T00:00:11.5Z","level":"INFO","message":"WARN"}"#,
                false,
            ),
            (
                r#"{"timestamp":"2026-01-01T00:00:09.9Z","level":"ERROR","message":"a"}"#,
                false,
            ),
            ("2026-01-01T00:00:11.5Z  WARN a: b", true),
            ("2026-01-01T00:00:11.5Z  INFO a: WARN", false),
            ("2026-01-01T00:00:09.9Z ERROR a: b", false),
            ("thread 'main' panicked at src/main.rs:1:1:", true),
            ("", false),
        ] {
            assert_eq!(is_complaint(line, since), expected, "{line}");
        }
    }

    #[test]
    fn what_is_late_is_left_out_while_it_is_seldom() {
        let late = format!("WARN {}", LATE[0]);
        for count in 0..=SELDOM + 1 {
            let mut complaints = vec![late.as_str(); count];
            complaints.push("ERROR another");
            drop_late(&mut complaints);
            let left = if count <= SELDOM { 0 } else { count };
            assert_eq!(complaints.len(), left + 1, "{count}");
        }
    }
}
