//! Checks the storage quota and the number of a Tenant's Clusters. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use yoke_api::cluster::Cluster;
use yoke_api::{Reason, Tenant};

use crate::cluster::validate::context::ValidationContext;
use crate::cluster::validate::refuse::refuse;
use crate::model::cluster_summary::ClusterSummary;
use crate::model::quantity;
use crate::model::refusal::Refusal;

pub(super) fn check_quota(
    cluster: &Cluster,
    tenant: &Tenant,
    around: &ValidationContext<'_, '_>,
) -> Result<i64, Refusal> {
    let own = quantity::to_bytes(&cluster.spec.storage.quota)
        .or_else(|error| refuse(Reason::QuotaExceeded, format!("spec.storage.quota: {error}.")))?;
    let itself = ClusterSummary::of(cluster);
    let quota = &tenant.spec.quota;
    let allowed = usize::try_from(quota.clusters).unwrap_or(0);
    let storage = quantity::to_bytes(&quota.storage).unwrap_or(0);
    let noted = |other: &ClusterSummary| find_reserved(other, around);
    let of_tenant = |other: &&Arc<ClusterSummary>| other.namespace == itself.namespace;
    let siblings: Vec<_> = around.clusters.iter().filter(of_tenant).collect();
    let had: HashSet<&str> = siblings.iter().filter_map(|other| other.id.as_deref()).collect();
    let gone = around.reserved.iter().filter(|(id, _)| !had.contains(id.as_str()));
    let retained = sum(gone.map(|(_, bytes)| *bytes));
    let mut older: Vec<_> = siblings.iter().filter(|other| other.precedes(&itself)).collect();
    older.sort_by(|one, other| one.rank().cmp(&other.rank()));
    // An older Cluster that does not fit counts only with the bytes that its store has reserved. A
    // Cluster refused for its size takes no quota from others; a maintained one keeps what it has.
    let (mut count, mut used) = (0, retained);
    for other in older {
        let wanted = other.quota.unwrap_or(0).max(noted(other));
        if count < allowed && used.saturating_add(wanted) <= storage {
            count += 1;
            used += wanted;
        } else {
            used = used.saturating_add(noted(other));
        }
    }
    // A Cluster that requests more than it has must also leave room for what younger Clusters have.
    if own > noted(&itself) {
        let others = siblings.iter().filter(|other| other.uid != itself.uid);
        used = used.max(retained.saturating_add(sum(others.map(|other| noted(other)))));
    }
    if count >= allowed {
        return refuse(
            Reason::QuotaExceeded,
            format!(
                "The Tenant's quota allows {allowed} Clusters, and it has {count} older ones. Delete a Cluster, or \
         have the quota raised."
            ),
        );
    }
    if used.saturating_add(own) > storage {
        return refuse(
            Reason::QuotaExceeded,
            format!(
                "The Tenant's storage quota is {} in total. Other Clusters and retained data leave {} bytes, and \
         this Cluster requests {own}.",
                quota.storage.0,
                storage.saturating_sub(used).max(0)
            ),
        );
    }
    Ok(own)
}

/// Returns the bytes that the store of a Cluster has reserved.
fn find_reserved(cluster: &ClusterSummary, around: &ValidationContext<'_, '_>) -> i64 {
    let bytes = cluster.id.as_deref().and_then(|id| around.reserved.get(id));
    bytes.copied().unwrap_or(0)
}

fn sum(bytes: impl Iterator<Item = i64>) -> i64 {
    bytes.fold(0, i64::saturating_add)
}
