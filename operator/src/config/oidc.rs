//! Configuration of the egress to OIDC providers.

use std::net::IpAddr;

use serde::Deserialize;

/// Egress of control planes to the OIDC providers of their Clusters: port 443 of these ranges, and
/// DNS.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OidcConfig {
    /// Address ranges. Private ranges inside them are excluded, since the host's own networks are
    /// there. A private range that is listed itself is not excluded.
    #[serde(default = "default_oidc_cidrs")]
    pub cidrs: Vec<String>,
    /// Further ranges to exclude: networks of the host's nodes, Pods and Services that are not
    /// private.
    #[serde(default)]
    pub except: Vec<String>,
    /// DNS servers. Without an entry, control planes use the host's cluster DNS: the pods `k8s-app:
    /// kube-dns` of `kube-system`.
    #[serde(default)]
    pub nameservers: Vec<IpAddr>,
}

impl Default for OidcConfig {
    fn default() -> Self {
        Self {
            cidrs: default_oidc_cidrs(),
            except: Vec::new(),
            nameservers: Vec::new(),
        }
    }
}

/// Without IPv6: IPv6 Pods often have public addresses.
fn default_oidc_cidrs() -> Vec<String> {
    vec!["0.0.0.0/0".into()]
}
