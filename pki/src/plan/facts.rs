//! The facts about a cluster from which its plan is computed.

use std::collections::BTreeMap;

use yoke_api::labels;
use yoke_api::{ClusterId, PublicName};

use super::generations::Generations;
use super::lifetimes::Lifetimes;

/// Input of the plan of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// Identity of the cluster.
    pub id: ClusterId,
    /// Name of the Tenant.
    pub tenant: String,
    /// Name of the Cluster.
    pub cluster: String,
    /// Public name of the cluster, under the base domain.
    pub public_name: PublicName,
    /// Additional names of the API server. Each must be under one of `allowed_domains`.
    pub extra_sans: Vec<String>,
    /// DNS domains of the Tenant.
    pub allowed_domains: Vec<String>,
    /// Whether there is a konnectivity-server. It presents the API server's certificate under a
    /// name of its own.
    pub konnectivity: bool,
    /// Lifetimes of the certificates.
    pub lifetimes: Lifetimes,
    /// Generations of the cluster's CAs.
    pub generations: Generations,
}

impl ClusterFacts {
    /// Labels of all objects in the plan, and of the Secrets made from them.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            (labels::ID, self.id.as_str()),
            (labels::TENANT, &self.tenant),
            (labels::CLUSTER, &self.cluster),
            (labels::COMPONENT, labels::component::PKI),
            (labels::MANAGED_BY, labels::MANAGED_BY_OPERATOR),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }

    /// Name in the API server's certificate that the ingress and the operator verify.
    pub fn upstream_name(&self) -> String {
        self.id.hosted_namespace().upstream_name(&self.cluster)
    }
}
