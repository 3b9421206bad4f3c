//! Maps watch events to the objects to reconcile.
//!
//! - An object with a Cluster's label requeues that Cluster.
//! - An object of a Tenant requeues the Tenant. It requeues the Tenant's Clusters only if a field
//!   has changed that they are validated against: a Tenant may have hundreds of Clusters.
//! - A Cluster or a Tenant that claims or releases host names requeues the Clusters of all Tenants
//!   that request one of them.
//! - A Cluster whose API answers again requeues the JoinTokens that wait for it.

mod memory;
mod requeues;

use futures::SinkExt as _;
use futures::channel::mpsc;
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use serde::Serialize;
use yoke_api::{Cluster, JoinToken, Tenant, labels};

use crate::host_api::cache::Summaries;
use crate::host_api::triggers::memory::Memory;
use crate::host_api::triggers::requeues::{OtherClusters, Requeues};

/// Sends the requeues that follow from the events of one watch.
#[derive(Clone)]
pub(crate) struct WatchRouter {
    clusters: mpsc::Sender<ObjectRef<Cluster>>,
    tenants: mpsc::Sender<ObjectRef<Tenant>>,
    join_tokens: mpsc::Sender<ObjectRef<JoinToken>>,
    all_clusters: Summaries,
    all_join_tokens: Store<JoinToken>,
    memory: Memory,
}

impl WatchRouter {
    pub(crate) fn new(
        clusters: mpsc::Sender<ObjectRef<Cluster>>,
        tenants: mpsc::Sender<ObjectRef<Tenant>>,
        join_tokens: mpsc::Sender<ObjectRef<JoinToken>>,
        all_clusters: Summaries,
        all_join_tokens: Store<JoinToken>,
    ) -> Self {
        Self {
            clusters,
            tenants,
            join_tokens,
            all_clusters,
            all_join_tokens,
            memory: Memory::default(),
        }
    }

    /// Requeues the objects that a changed or deleted object concerns.
    pub(crate) async fn send<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K, is_deleted: bool) {
        let meta = object.meta();
        let tenant = match K::kind(&()).as_ref() {
            "Cluster" | "JoinToken" => meta.namespace.clone(),
            "Tenant" => meta.name.clone(),
            _ => meta.labels.as_ref().and_then(|all| all.get(labels::TENANT)).cloned(),
        };
        let Some(tenant) = tenant else {
            return;
        };
        let requeues = self.memory.plan(object, is_deleted);
        if requeues.tenant {
            // An error means that the controller has ended. The process ends soon after.
            let _ = self.tenants.send(ObjectRef::new(&tenant)).await;
        }
        if let Some(join_token) = &requeues.join_token {
            let _ = self.join_tokens.send(ObjectRef::new(join_token).within(&tenant)).await;
        }
        for join_token in self.find_join_tokens(&tenant, &requeues) {
            let _ = self.join_tokens.send(join_token).await;
        }
        let others = self.find_other_clusters(&tenant, &requeues);
        let changed = requeues.cluster.map(|cluster| ObjectRef::new(&cluster).within(&tenant));
        for cluster in changed.into_iter().chain(others) {
            let _ = self.clusters.send(cluster).await;
        }
    }

    fn find_join_tokens(&self, tenant: &str, requeues: &Requeues) -> Vec<ObjectRef<JoinToken>> {
        if !requeues.readers && requeues.join_tokens_of.is_none() {
            return Vec::new();
        }
        let found = self.all_join_tokens.state_filter(|token| {
            token.metadata.namespace.as_deref() == Some(tenant) && requeues.concern_waiting(token)
        });
        found.iter().map(|token| ObjectRef::from_obj(token.as_ref())).collect()
    }

    fn find_other_clusters(&self, tenant: &str, requeues: &Requeues) -> Vec<ObjectRef<Cluster>> {
        // Fast path: most changes concern no other Cluster.
        if requeues.others == OtherClusters::None && requeues.names.is_empty() {
            return Vec::new();
        }
        let found = self.all_clusters.pick(|cluster| requeues.concern(tenant, cluster));
        found.iter().map(|cluster| cluster.to_key()).collect()
    }
}

#[cfg(test)]
mod tests;
