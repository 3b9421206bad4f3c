//! The metrics of the process. Label values are closed sets; the audit log says which Tenant did
//! what.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use yoke_runtime::Metrics as Registry;

use crate::limits::admission::Refusal;

/// Prefix of the process in its metric names.
pub const PROCESS: &str = "ssh_ui";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabels {
    command: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The process's own metrics. Clones share their counters.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    keys: Gauge,
    connections: Gauge,
    running: Gauge,
    refused: Family<ReasonLabel, Counter>,
    logins: Family<ResultLabel, Counter>,
    refused_tokens: Family<ReasonLabel, Counter>,
    commands: Family<CommandLabels, Counter>,
    watch_errors: Counter,
}

/// Guard of the gauge of running commands.
#[derive(Debug)]
pub(crate) struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(|registry| {
            let m = metrics.clone();
            registry.register("keys", "SSH keys of all Tenants", m.keys);
            registry.register("connections", "Open connections", m.connections);
            registry.register("running_commands", "Running commands and file transfers", m.running);
            registry.register("refused_connections", "Connections closed at once", m.refused);
            registry.register("logins", "Logins by result", m.logins);
            let help = "HTTPS requests whose token was refused";
            registry.register("refused_tokens", help, m.refused_tokens);
            registry.register("commands", "Commands and file transfers", m.commands);
            registry.register("watch_errors", "Failures of the watch of Tenants", m.watch_errors);
        });
        metrics
    }

    pub(crate) fn set_keys(&self, count: usize) {
        self.keys.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn add_connections(&self, change: i64) {
        self.connections.inc_by(change);
    }

    /// Counts a running command until the returned guard is dropped.
    pub(crate) fn running(&self) -> Running {
        self.running.inc();
        Running(self.running.clone())
    }

    pub(crate) fn count_refusal(&self, refusal: Refusal) {
        let reason = refusal.as_str();
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn count_login(&self, good: bool) {
        let result = if good { "ok" } else { "unknown_key" };
        self.logins.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn count_refused_token(&self, reason: &'static str) {
        self.refused_tokens.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn count_command(&self, command: &'static str, result: &'static str) {
        self.commands.get_or_create(&CommandLabels { command, result }).inc();
    }

    pub(crate) fn count_watch_error(&self) {
        self.watch_errors.inc();
    }
}

#[cfg(test)]
mod tests;
