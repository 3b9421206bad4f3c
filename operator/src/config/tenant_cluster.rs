//! Configuration of what the operator sets up in tenants' clusters.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Number of cluster DNS's address in the Service range, as usual in Kubernetes.
pub const DNS_NUMBER: u32 = 10;

/// Add-ons in tenants' clusters.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddonsConfig {
    /// Registry and path of the images that the catalog entry of a version does not set. Workers
    /// pull them.
    #[serde(default = "default_registry")]
    pub registry: String,
}

impl Default for AddonsConfig {
    fn default() -> Self {
        Self {
            registry: default_registry(),
        }
    }
}

/// The `yoke-worker` program, as join commands describe it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerConfig {
    /// SHA-256 of the program in hexadecimal digits, by architecture (`amd64`, `arm64`).
    #[serde(default)]
    pub digests: BTreeMap<String, String>,
    /// Public address of the SSH server that serves the program: a name or an IP address, and the
    /// port if it is not 22. Empty if there is none.
    #[serde(default)]
    pub ssh: String,
}

fn default_registry() -> String {
    "registry.k8s.io".into()
}
