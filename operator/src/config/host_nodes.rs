//! Configuration of the handling of the host's nodes.

use serde::Deserialize;

/// Handling of lost nodes of the host.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineLossConfig {
    /// Maximum number of nodes per minute that the operator gives up as lost. 0 leaves all to
    /// Kubernetes.
    #[serde(default = "default_losses")]
    pub per_minute: usize,
}

impl Default for MachineLossConfig {
    fn default() -> Self {
        Self {
            per_minute: default_losses(),
        }
    }
}

/// Handling of nodes of the host that are about to shut down.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlannedTakeoverConfig {
    /// Maximum number of takeovers of control planes that start per minute. 0 leaves all to
    /// evictions.
    #[serde(default = "default_takeovers")]
    pub per_minute: usize,
    /// Keys of taints which say that a Node is about to shut down.
    #[serde(default)]
    pub taints: Vec<String>,
}

impl Default for PlannedTakeoverConfig {
    fn default() -> Self {
        Self {
            per_minute: default_takeovers(),
            taints: Vec::new(),
        }
    }
}

fn default_losses() -> usize {
    3
}

fn default_takeovers() -> usize {
    60
}
