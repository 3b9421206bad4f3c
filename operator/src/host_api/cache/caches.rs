//! The caches of all watched kinds.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use tokio::sync::watch;
use yoke_api::{JoinToken, Tenant};
use yoke_pki::cert_manager::{Certificate, Issuer};

use crate::host_api::cache::clusters::Clusters;
use crate::host_api::cache::reserved_storage::Reserved;
use crate::host_api::cache::sync::wait_for;
use crate::host_api::compact_store::{CompactStore, Ended};
use crate::model::host_node::HostNode;

/// The only kind that may be missing when the operator starts.
const JOIN_TOKEN: &str = "JoinToken";

/// The caches of all watched kinds.
#[derive(Clone, Debug)]
pub struct Caches {
    /// All Clusters.
    pub clusters: Clusters,
    /// All Tenants.
    pub tenants: Store<Tenant>,
    /// All JoinTokens.
    pub join_tokens: Store<JoinToken>,
    /// Namespaces that the operator created.
    pub namespaces: CompactStore<Namespace>,
    /// Secrets that the operator created or requested from cert-manager: names of their keys, and
    /// values that are not secret.
    pub secrets: CompactStore<Secret>,
    /// Bytes that stores have reserved at NATS, from their Secrets.
    pub reserved: Reserved,
    /// ConfigMaps of control-plane namespaces: the configuration that is published to the ingress.
    pub config_maps: CompactStore<ConfigMap>,
    /// Services of control planes.
    pub services: CompactStore<Service>,
    /// StatefulSets of control planes: only the fields that the operator reads.
    pub stateful_sets: CompactStore<StatefulSet>,
    /// Pods of control planes.
    pub pods: Store<Pod>,
    /// PodDisruptionBudgets of control planes.
    pub budgets: Store<PodDisruptionBudget>,
    /// Nodes of the host.
    pub nodes: Store<HostNode>,
    /// NetworkPolicies of control-plane namespaces.
    pub network_policies: CompactStore<NetworkPolicy>,
    /// Roles in Tenants' namespaces.
    pub roles: Store<Role>,
    /// RoleBindings in Tenants' namespaces.
    pub role_bindings: Store<RoleBinding>,
    /// ResourceQuotas in Tenants' namespaces.
    pub resource_quotas: Store<ResourceQuota>,
    /// Certificates of clusters, and their host names.
    pub certificates: CompactStore<Certificate>,
    /// Issuers of clusters.
    pub issuers: CompactStore<Issuer>,
}

impl Caches {
    /// Waits for the first list of every kind.
    pub(super) async fn wait(&self, mut unserved: watch::Receiver<BTreeSet<&'static str>>) -> Result<(), Ended> {
        // With a chart that does not install CRDs, the operator may be newer than the CRDs. Workers
        // cannot join then, but Clusters are still maintained.
        let join_tokens = async {
            tokio::select! {
                ready = wait_for(&self.join_tokens) => ready,
                Ok(_) = unserved.wait_for(|kinds| kinds.contains(JOIN_TOKEN)) => Ok(()),
            }
        };
        tokio::try_join!(
            self.clusters.wait_until_listed(),
            wait_for(&self.tenants),
            join_tokens,
            self.namespaces.wait_until_listed(),
            self.secrets.wait_until_listed(),
            self.config_maps.wait_until_listed(),
            self.services.wait_until_listed(),
            self.stateful_sets.wait_until_listed(),
            wait_for(&self.pods),
            wait_for(&self.budgets),
            wait_for(&self.nodes),
            self.network_policies.wait_until_listed(),
            wait_for(&self.roles),
            wait_for(&self.role_bindings),
            wait_for(&self.resource_quotas),
            self.certificates.wait_until_listed(),
            self.issuers.wait_until_listed(),
        )
        .map(|_| ())
    }

    /// The JoinTokens in a Tenant's namespace, the oldest first.
    pub fn join_tokens_of(&self, tenant: &str) -> Vec<std::sync::Arc<JoinToken>> {
        let mut found = self
            .join_tokens
            .state_filter(|token| token.metadata.namespace.as_deref() == Some(tenant));
        found.sort_by_key(|token| (token.creation_timestamp().map(|made| made.0), token.name_any()));
        found
    }
}
