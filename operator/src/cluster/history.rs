//! Reads the version history in the status of a Cluster. Pure.

use yoke_api::{Cluster, KubernetesVersion};

/// The running version is the version whose rollout started last.
pub(crate) fn running_version(cluster: &Cluster) -> Option<KubernetesVersion> {
    let latest = cluster.status.as_ref()?.history.first()?;
    latest.version.parse().ok()
}

/// The version whose API answered last. The store holds objects as this version wrote them.
pub(crate) fn answered_version(cluster: &Cluster) -> Option<KubernetesVersion> {
    let mut history = cluster.status.as_ref()?.history.iter();
    history.find(|entry| entry.completed.is_some())?.version.parse().ok()
}

/// Whether this Cluster object ever had an API, and so has state that depends on its credentials.
pub(crate) fn had_api(cluster: &Cluster) -> bool {
    let mut history = cluster.status.iter().flat_map(|status| &status.history);
    history.any(|entry| entry.completed.is_some())
}
