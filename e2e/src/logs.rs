//! Logs of Yoke's processes during a test. A warning or an error that is not listed fails the test.
//!
//! ```text
//!  pods of yoke-system ────────────┐
//!  stores of the test's Clusters ──┼──▶ lines since the test started ──▶ unlisted lines ──▶ the test fails
//!  the host's own store, .dev/log ─┘
//! ```
//!
//! The log of a pod that the test itself replaced is lost with the pod.

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
    /// Part of the line.
    pub says: &'static str,
    /// Why the line may appear.
    pub because: &'static str,
}

/// Lines that may appear in any test.
const ALWAYS: &[Expected] = &[
    Expected {
        says: "connection closed before message completed",
        because: "the host's API server closed an idle connection while a request was sent; the client retries",
    },
    Expected {
        says: "tls handshake eof",
        because: "an Envoy was stopped, or timed out after a second, while it connected to ingress-xds; it reconnects",
    },
];

/// Lines about requests that timed out and are retried. On a busy computer each may appear in any
/// log, but not more often than [`SELDOM`].
const LATE: &[&str] = &[
    "The log does not answer",
    "writing the wake request of a Cluster failed",
    "webhooks cannot be checked for sleep",
    "Nodes cannot be counted",
    "streams cannot be created",
    "requesting the Lease failed",
    "Nodes cannot be checked for sleep",
];
const SELDOM: usize = 3;

/// Selector of the pods that log in the format of `yoke-runtime`.
const SYSTEM: &str = "app.kubernetes.io/part-of=yoke,app.kubernetes.io/name!=envoy";
const STORE: &str = "kine-nats";

/// The logs from a point in time on.
#[derive(Debug)]
pub struct Journal {
    since: Timestamp,
    host_store: PathBuf,
    /// Length of the file at the start.
    skipped: usize,
}

impl Journal {
    /// Starts now.
    pub fn start(stack: &Stack) -> Self {
        let host_store = stack.dir.join("log/kine-nats.log");
        Self {
            since: Timestamp::now(),
            skipped: std::fs::read(&host_store).map_or(0, |log| log.len()),
            host_store,
        }
    }

    /// Unlisted lines of the stores in a control-plane namespace.
    pub async fn unlisted_in_control_plane(
        &self,
        stack: &Stack,
        hosted: &str,
        listed: &[Expected],
    ) -> Result<Vec<String>> {
        let select = ListParams::default();
        self.unlisted_in_pods(stack, hosted, &select, Some(STORE), listed).await
    }

    /// Unlisted lines of Yoke's own pods and of the host API's store.
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
            // The container has not started yet, or has gone.
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

/// Removes lines about slow requests if they are rare.
fn drop_late(complaints: &mut Vec<&str>) {
    for says in LATE {
        let is_late = |line: &str| line.contains(says);
        if complaints.iter().filter(|line| is_late(line)).count() <= SELDOM {
            complaints.retain(|line| !is_late(line));
        }
    }
}

/// Whether a line that is not older than `since` reports a problem. A line in another format comes
/// from a panic, or from something worse.
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
    fn warnings_errors_and_other_formats_are_complaints() {
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
    fn rare_lines_about_slow_requests_are_ignored() {
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
