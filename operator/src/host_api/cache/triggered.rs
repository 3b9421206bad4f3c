//! Objects to reconcile, as the watches trigger them.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::watch;
use yoke_api::{Cluster, JoinToken, Tenant};

use crate::host_api::cache::caches::Caches;
use crate::host_api::cache::sync::{SYNC_LIMIT, SyncError};

/// Streams of objects to reconcile, for the controllers.
pub struct Triggered {
    /// Clusters.
    pub clusters: BoxStream<'static, ObjectRef<Cluster>>,
    /// Tenants.
    pub tenants: BoxStream<'static, ObjectRef<Tenant>>,
    /// JoinTokens.
    pub join_tokens: BoxStream<'static, ObjectRef<JoinToken>>,
    /// Kinds that the host API does not serve.
    pub(super) unserved: watch::Receiver<BTreeSet<&'static str>>,
}

impl Debug for Triggered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Triggered")
    }
}

impl Triggered {
    /// Waits until every store has its first list. Before that, a missing object looks like one
    /// that is not listed yet. Triggers that arrive meanwhile are collected, each object once, and
    /// come first in the result.
    pub async fn wait(mut self, caches: &Caches) -> Result<Self, SyncError> {
        let (mut clusters, mut tenants, mut join_tokens) = (HashSet::new(), HashSet::new(), HashSet::new());
        let all = caches.wait(self.unserved.clone());
        let mut all = std::pin::pin!(tokio::time::timeout(SYNC_LIMIT, all));
        loop {
            tokio::select! {
                result = &mut all => {
                    let unserved = || self.unserved.borrow().iter().copied().collect::<Vec<_>>().join(", ");
                    result.map_err(|_| SyncError::Limit(unserved()))?.map_err(SyncError::Ended)?;
                    break;
                }
                Some(cluster) = self.clusters.next() => {
                    clusters.insert(cluster);
                }
                Some(tenant) = self.tenants.next() => {
                    tenants.insert(tenant);
                }
                Some(join_token) = self.join_tokens.next() => {
                    join_tokens.insert(join_token);
                }
            }
        }
        Ok(Self {
            clusters: stream::iter(clusters).chain(self.clusters).boxed(),
            tenants: stream::iter(tenants).chain(self.tenants).boxed(),
            join_tokens: stream::iter(join_tokens).chain(self.join_tokens).boxed(),
            unserved: self.unserved,
        })
    }
}
