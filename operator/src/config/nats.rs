//! Configuration of the NATS servers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// The NATS servers of the stores.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NatsConfig {
    /// URLs for the operator and for kine-nats, `tls://host:port`.
    pub urls: Vec<String>,
    /// Hosts entries for pods without DNS. Required if `urls` contain names.
    #[serde(default)]
    pub host_aliases: BTreeMap<String, IpAddr>,
    /// Address ranges of the servers, the only ones that a control plane may connect to.
    pub cidrs: Vec<String>,
    /// Port of the servers.
    #[serde(default = "default_nats_port")]
    pub port: u16,
    /// Folder with `operator-signing.nk`, `system.creds` and `ca.crt`.
    pub secret_dir: PathBuf,
}

fn default_nats_port() -> u16 {
    4222
}
