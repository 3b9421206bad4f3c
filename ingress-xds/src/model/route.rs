//! A routed cluster: its names, its sources and its trust settings. Pure.

use std::net::IpAddr;

use yoke_api::ingress::Asleep;
use yoke_api::{Cidr, ClusterId};

use crate::authz::token::TokenTrust;

/// A routed cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The control-plane namespace, which is unique to the cluster.
    pub namespace: String,
    /// The ID of the cluster.
    pub id: ClusterId,
    /// Name of the Tenant.
    pub tenant: String,
    /// Name of the Cluster object.
    pub cluster: String,
    /// The name under the base domain.
    pub public_name: String,
    /// Extra names, sorted. An older cluster may own some of them.
    pub extra_names: Vec<String>,
    /// The SNI name of the cluster's konnectivity agents, if it has a konnectivity-server.
    pub konnectivity_name: Option<String>,
    /// Source ranges that may reach the cluster; `None` allows all.
    pub sources: Option<Vec<Cidr>>,
    /// Name of the Service whose addresses are the control plane.
    pub service: String,
    /// Trust settings for the TLS connection to the control plane.
    pub upstream: UpstreamTrust,
    /// Trust settings for the cluster's service account tokens.
    pub tokens: TokenTrust,
    /// The sleep state, if the activator answers in place of the API server.
    pub asleep: Option<Sleep>,
}

/// The sleep state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// The state that the operator has published.
    pub state: Asleep,
    /// The CA certificates (PEM) that verify client certificates.
    pub client_ca: String,
}

/// Trust settings for the TLS connection from the ingress to a control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTrust {
    /// The exact DNS name in the control plane's certificate.
    pub server_name: String,
    /// CA certificates, PEM.
    pub ca: String,
}

impl Route {
    /// Every name that the cluster claims.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.public_name)
            .chain(&self.extra_names)
            .chain(&self.konnectivity_name)
            .map(String::as_str)
    }

    /// Whether a name is the SNI name of the cluster's konnectivity agents.
    pub fn is_konnectivity(&self, name: &str) -> bool {
        self.konnectivity_name.as_deref() == Some(name)
    }

    /// Whether this source address may reach the cluster. An unknown address is in no range.
    pub fn allows(&self, source: Option<IpAddr>) -> bool {
        let Some(ranges) = &self.sources else {
            return true;
        };
        source.is_some_and(|address| ranges.iter().any(|range| range.contains(address)))
    }
}
